"""FEMNIST in the format of LEAF (Caldas et al. 2018): letters and digits of 62 classes, grouped by writer.

LEAF has no file to download; its ``preprocess.sh`` writes ``train/*.json`` and ``test/*.json``, which belong under
``femnist/`` of the data folder. Each file holds ``users``, ``num_samples`` and, per user, ``x`` (784 numbers in
[0, 1] a row) and ``y``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets.data import Column, Data, Task
from sordina.datasets.files import find, missing
from sordina.errors import InvalidInput

CLASSES = 62
_SIDE = 28


def _read_file(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    writers = {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for user in content["users"]:
            rows = content["user_data"][user]
            pixels = torch.from_numpy(np.array(rows["x"], dtype=np.float32)).reshape(-1, 1, _SIDE, _SIDE)
            labels = torch.tensor(rows["y"], dtype=torch.int64)
            if len(pixels) != len(labels) or not bool(((labels >= 0) & (labels < CLASSES)).all()):
                raise ValueError(f"writer {user} needs as many labels from 0 to {CLASSES - 1} as images")
            writers[user] = (pixels, labels)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{path} is not in LEAF's format: {error}.") from error
    return writers


def read(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (N, 1, 28, 28) and labels (N,) by writer, from every json file in ``folder``."""
    writers: dict[str, tuple[Tensor, Tensor]] = {}
    for path in sorted(folder.glob("*.json")):
        writers.update(_read_file(path))
    if not writers:
        raise missing("femnist/train/*.json", f"{folder} holds no json file of LEAF")
    return writers


def load() -> Data:
    """FEMNIST for classification, with ``users`` the writers. Ink is dark (0) on white (1), as LEAF leaves it."""
    folders = {split: find(f"femnist/{split}", f"femnist/data/{split}") for split in ("train", "test")}
    for split, folder in folders.items():
        if folder is None:
            raise missing(f"femnist/{split}/*.json", "LEAF's preprocess.sh has to make it")
    parts = {split: read(folder) for split, folder in folders.items() if folder is not None}
    writers = tuple(sorted({*parts["train"], *parts["test"]}))
    code = {writer: index for index, writer in enumerate(writers)}
    data, users = {}, {}
    for split, part in parts.items():
        data[split] = TensorDataset(*(torch.cat(tensors) for tensors in zip(*part.values(), strict=True)))
        users[split] = torch.cat([torch.full((len(y),), code[writer]) for writer, (_, y) in part.items()])
    return Data(
        name="femnist",
        train=data["train"],
        test=data["test"],
        task=Task.CLASSIFICATION,
        classes=CLASSES,
        users=Column(users["train"], users["test"], writers),
        source=f"FEMNIST (LEAF, Caldas et al. 2018): {len(writers)} writers, {len(data['train'])} training images",
    )
