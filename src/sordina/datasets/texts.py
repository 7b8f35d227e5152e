"""Texts: AG News by word vectors (GloVe), and WikiText-2.

AG News: world, sports, business or technology, from the vectors of the first words (000 chapter 3).

A text is its title and description, its first 15 words each replaced by a GloVe vector and laid end to end: 750
inputs with 50 dimensions (errata 13), 1 500 with 100. Words without a vector are passed over.

WikiText-2 (Merity et al. 2016), the word-level version, cut into sequences of equal length.

The thesis audits with samples of 126 tokens. A sequence's input is its tokens but the last, its target its tokens but
the first, so that ``loss(model(inputs), targets)`` needs to know nothing else.
"""

from __future__ import annotations

import csv
import html
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets import tiny_lm
from sordina.datasets.data import Data, File, Task, find, obtain, open_text
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

# GloVe word vectors (Pennington et al. 2014): the user's own full files, or a packed part of the vocabulary.

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


def load_vectors(
    words: Collection[str], *, dimension: int | None = None, progress: StagedProgress | None = None
) -> Vectors:
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


# AG News: world, sports, business or technology, from the vectors of the first words (000 chapter 3).

_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
AG_NEWS_FILES = {
    "train": File(
        "ag-news/train.csv",
        "sha256:76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
        (f"{_AG_NEWS}train.csv",),
    ),
    "test": File(
        "ag-news/test.csv",
        "sha256:521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
        (f"{_AG_NEWS}test.csv",),
    ),
}
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
COMPLETE = 120_000
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_ESCAPES = re.compile(r"\s?#(\d+);")


def words(text: str) -> list[str]:
    """Lower-case words of a text, its escapes undone.

    >>> words("Oil #36;50 &lt;b&gt;Reuters&lt;/b&gt; - The U.S.\\\\economy isn #39;t")
    ['oil', 'reuters', 'the', 'u', 's', 'economy', 'isn', 't']
    """
    plain = html.unescape(_ESCAPES.sub(lambda escape: chr(int(escape[1])), text)).replace("\\", " ")
    return _WORD.findall(re.sub(r"<[^>]*>", " ", plain).lower())


def read_ag_news(path: Path) -> tuple[list[int], list[list[str]]]:
    """Classes (0 to 3) and the words of every text in ``path``."""
    labels, texts = [], []
    with open_text(path) as text:
        for number, row in enumerate(csv.reader(text), start=1):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise InvalidInput(f"{path}, row {number}: expected class 1 to 4, title and description.")
            labels.append(int(row[0]) - 1)
            texts.append(words(f"{row[1]} {row[2]}"))
    return labels, texts


def encode(texts: list[list[str]], vectors: Vectors, length: int) -> torch.Tensor:
    """The vectors of the first ``length`` known words of each text, end to end; zeros where a text is short."""
    rows = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        known = [vectors.index[word] for word in text if word in vectors.index][:length]
        row[: len(known)] = known
    return torch.from_numpy(vectors.table)[torch.from_numpy(rows)].flatten(start_dim=1)


def load_ag_news(*, length: int = 15, dimension: int | None = None, progress: StagedProgress | None = None) -> Data:
    """AG News; the 120 000 training rows if ``train.csv`` is there, the subset ``train_subset.csv`` otherwise."""
    labels, texts = read_ag_news(
        obtain(AG_NEWS_FILES["train"], "ag-news/train.csv", "ag-news/train_subset.csv", progress=progress)
    )
    test_labels, test_texts = read_ag_news(obtain(AG_NEWS_FILES["test"], progress=progress))
    vocabulary = {word for text in (*texts, *test_texts) for word in text}
    vectors = load_vectors(vocabulary, dimension=dimension, progress=progress)
    share = "complete" if len(labels) == COMPLETE else f"{len(labels)} of {COMPLETE} training rows"
    return Data(
        name="ag-news",
        train=TensorDataset(encode(texts, vectors, length), torch.tensor(labels)),
        test=TensorDataset(encode(test_texts, vectors, length), torch.tensor(test_labels)),
        task=Task.CLASSIFICATION,
        classes=len(AG_NEWS_CLASSES),
        source=f"AG News (Zhang et al. 2015), {share}; {length} words x GloVe 6B, {vectors.dimension} dimensions",
    )


# WikiText-2 (Merity et al. 2016), the word-level version, cut into sequences of equal length.

_WIKITEXT = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
_CONTENT = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
WIKITEXT_FILES = {
    split: File(f"wikitext-2/{split}.txt", f"sha256:{digest}", (f"{_WIKITEXT}{split}.txt",))
    for split, digest in _CONTENT.items()
}
UNKNOWN, END = "<unk>", "<eos>"


def read_wikitext(split: str, *, progress: StagedProgress | None = None) -> list[str]:
    """The words of "train", "valid" or "test", with ``<eos>`` at the end of each line."""
    with open_text(obtain(WIKITEXT_FILES[split], progress=progress)) as text:
        return [word for line in text for word in (*line.split(), END)]


def _sequences(ids: list[int], length: int) -> TensorDataset:
    count = len(ids) // length
    blocks: Tensor = torch.tensor(ids[: count * length]).reshape(count, length)
    return TensorDataset(blocks[:, :-1], blocks[:, 1:])


def load_wikitext(
    *, length: int = 126, vocabulary: int | None = None, pieces: bool = False, progress: StagedProgress | None = None
) -> Data:
    """Sequences of ``length`` tokens, without overlap.

    Tokens are words; ``vocabulary`` keeps the most frequent ones and makes the others ``<unk>`` (which words are
    frequent is a statistic of the training text: public here, because the text is). With ``pieces`` they are the 512
    pieces of `tiny_lm`, whose vocabulary owes nothing to this text.
    """
    if length < 2 or (vocabulary is not None and vocabulary < 2):
        raise InvalidInput(f"length and vocabulary must be at least 2, got {length} and {vocabulary}.")
    train, test = (read_wikitext(split, progress=progress) for split in ("train", "test"))
    if pieces:
        tokenizer = tiny_lm.load_tokenizer(progress=progress)
        spelled = {word: tokenizer.encode("\n" if word == END else f" {word}") for word in {*train, *test}}
        parts = [[token for word in words for token in spelled[word]] for words in (train, test)]
        names = tuple(piece.decode(errors="replace") for piece in tokenizer.pieces)
    else:
        ranked = [word for word, _ in Counter(train).most_common() if word != UNKNOWN]
        names = (UNKNOWN, *ranked[: None if vocabulary is None else vocabulary - 1])
        code = {name: index for index, name in enumerate(names)}
        parts = [[code.get(word, 0) for word in words] for words in (train, test)]
    return Data(
        name="wikitext-2",
        train=_sequences(parts[0], length),
        test=_sequences(parts[1], length),
        task=Task.LANGUAGE,
        classes=len(names),
        vocabulary=names,
        source="WikiText-2 (Merity et al. 2016), word level, complete",
    )
