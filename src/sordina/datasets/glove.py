"""GloVe word vectors (Pennington et al. 2014): the user's own full files, or a packed part of the vocabulary."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordina.datasets.files import File, find, obtain
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

ARCHIVE = File(
    "glove/glove.6B.zip",
    "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    ("https://nlp.stanford.edu/data/glove.6B.zip", "https://downloads.cs.stanford.edu/nlp/data/glove.6B.zip"),
)
"""862 MB; holds 50, 100, 200 and 300 dimensions of 400 000 words."""


@dataclass(frozen=True)
class Vectors:
    """A vector per known word; row 0 is all zeros and stands for every other word."""

    index: dict[str, int]
    table: npt.NDArray[np.float32]

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.table.shape[1])


def load(words: Collection[str], *, dimension: int | None = None, progress: StagedProgress | None = None) -> Vectors:
    """Vectors of ``words``: 50-d if at hand, else 100-d, unless ``dimension`` decides; downloaded if none is there."""
    for size in (50, 100) if dimension is None else (dimension,):
        text = find(f"glove/glove.6B.{size}d.txt")
        if text is not None:
            with text.open(encoding="utf-8") as lines:
                return _parse(lines, words, size, text)
        packed = find(f"glove/glove_6b_{size}d_agnews.npz")
        if packed is not None:
            return _unpack(packed)
    size = 50 if dimension is None else dimension
    archive = obtain(ARCHIVE, progress=progress)
    with zipfile.ZipFile(archive) as opened, opened.open(f"glove.6B.{size}d.txt") as member:
        return _parse((line.decode("utf-8") for line in member), words, size, archive)


def _parse(lines: Iterable[str], words: Collection[str], size: int, path: Path) -> Vectors:
    wanted = set(words)
    index: dict[str, int] = {}
    rows = [np.zeros(size, dtype=np.float32)]
    for number, line in enumerate(lines, start=1):
        word, _, values = line.partition(" ")
        if word not in wanted:
            continue
        row = np.array(values.split(), dtype=np.float32)
        if row.shape != (size,):
            raise InvalidInput(f"{path}, line {number}: {row.size} numbers where {size} belong.")
        index[word] = len(rows)
        rows.append(row)
    return Vectors(index, np.stack(rows))


def _unpack(path: Path) -> Vectors:
    with np.load(path) as packed:
        words = packed["words"].tobytes().decode().split("\n")
        vectors = packed["vectors"].astype(np.float32)
    index = {word: position for position, word in enumerate(words, start=1)}
    return Vectors(index, np.concatenate([np.zeros_like(vectors[:1]), vectors]))
