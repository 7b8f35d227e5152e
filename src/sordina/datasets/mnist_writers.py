"""MNIST with the writer of every digit, from QMNIST's extended labels (Yadav and Bottou 2019).

539 people wrote the training images and 297 others the test images: a real division into people, which stands in for
FEMNIST.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from sordina.datasets import mnist
from sordina.datasets.data import Column, Data
from sordina.datasets.files import File, find, obtain
from sordina.progress import StagedProgress

_URL = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
FILES = {
    "train": File(
        "mnist-writers/qmnist-train-labels-idx2-int.gz",
        "sha256:2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        (f"{_URL}qmnist-train-labels-idx2-int.gz",),
    ),
    "test": File(
        "mnist-writers/qmnist-test-labels-idx2-int.gz",
        "sha256:9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
        (f"{_URL}qmnist-test-labels-idx2-int.gz",),
    ),
}
_WRITER_COLUMN = 2
"""Of QMNIST's extended labels: class, NIST series, writer, ..."""
_SIZES = {"train": 60_000, "test": 10_000}
"""QMNIST's test part goes on after the 10 000 images that MNIST has."""


def _writers(split: str, progress: StagedProgress | None) -> npt.NDArray[np.int64]:
    packed = find("mnist-writers/mnist_writers.npz")
    if packed is not None:
        with np.load(packed) as arrays:
            return np.asarray(arrays[f"{split}_writer"], dtype=np.int64)
    labels = mnist.read_idx(obtain(FILES[split], progress=progress))
    return labels[: _SIZES[split], _WRITER_COLUMN].astype(np.int64)


def load(*, progress: StagedProgress | None = None) -> Data:
    """MNIST for classification, with ``users`` the writers."""
    train, test = (torch.from_numpy(_writers(split, progress)) for split in ("train", "test"))
    return replace(
        mnist.load(progress=progress),
        name="mnist-writers",
        users=Column(train, test),
        source="MNIST with QMNIST's writers, complete: 539 writers of 60 000 digits, 297 others of 10 000",
    )
