"""Images: MNIST, Fashion-MNIST, MNIST by writer, FEMNIST, and the digits that come with scikit-learn.

MNIST with the writer of every digit, from QMNIST's extended labels (Yadav and Bottou 2019).

539 people wrote the training images and 297 others the test images: a real division into people, which stands in for
FEMNIST.

FEMNIST in the format of LEAF (Caldas et al. 2018): letters and digits of 62 classes, grouped by writer.

LEAF has no file to download; its ``preprocess.sh`` writes ``train/*.json`` and ``test/*.json``, which belong under
``femnist/`` of the data folder. Each file holds ``users``, ``num_samples`` and, per user, ``x`` (784 numbers in
[0, 1] a row) and ``y``.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets.data import Column, Data, File, Task, find, missing, obtain, read_bytes
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

# The idx format of MNIST and its kin: two zero bytes, a type, a rank, big-endian sizes, then the values.

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> npt.NDArray[Any]:
    """The array in ``path``, gzipped or not."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise InvalidInput(f"{path} is not an idx file: it begins with {content[:4].hex() or 'nothing'}.")
    kind, rank = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    expected = start + math.prod(shape) * kind.itemsize
    if len(shape) != rank or len(content) != expected:
        raise InvalidInput(f"{path} is cut short or too long: {len(content)} bytes where its header says {expected}.")
    return np.frombuffer(content, kind, offset=start).reshape(shape)


# MNIST: 60 000 + 10 000 handwritten digits, 28 x 28, pixels mapped to [0, 1] by the public constant 255.

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MNIST_CONTENT = {
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def files(folder: str, content: dict[str, str], mirrors: tuple[str, ...]) -> dict[str, File]:
    """The four idx files of a data set laid out like MNIST, with the sha256 of their decompressed content."""
    return {
        name: File(f"{folder}/{name}", f"sha256:{digest}", tuple(url + name for url in mirrors), decompressed=True)
        for name, digest in content.items()
    }


MNIST_FILES = files("mnist", _MNIST_CONTENT, _MNIST_MIRRORS)


def images_and_labels(files: dict[str, File], split: str, progress: StagedProgress | None) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) in [0, 1] and labels (N,), of ``split`` "train" or "t10k"."""
    pixels = read_idx(obtain(files[f"{split}-images-idx3-ubyte.gz"], progress=progress))
    labels = read_idx(obtain(files[f"{split}-labels-idx1-ubyte.gz"], progress=progress))
    images = torch.from_numpy(pixels.copy()).unsqueeze(1).to(torch.float32).div_(255)
    return images, torch.from_numpy(labels.copy()).to(torch.int64)


def load_mnist(*, progress: StagedProgress | None = None) -> Data:
    """MNIST for classification."""
    return Data(
        name="mnist",
        train=TensorDataset(*images_and_labels(MNIST_FILES, "train", progress)),
        test=TensorDataset(*images_and_labels(MNIST_FILES, "t10k", progress)),
        task=Task.CLASSIFICATION,
        classes=10,
        source="MNIST (LeCun et al. 1998), complete: 60 000 + 10 000",
    )


# Fashion-MNIST as chapter 3 of the thesis uses it: an autoencoder's target is its own input.

_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_FASHION_CONTENT = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

FASHION_FILES = files("fashion-mnist", _FASHION_CONTENT, _FASHION_MIRRORS)


def load_fashion_mnist(*, task: Task | str = Task.RECONSTRUCTION, progress: StagedProgress | None = None) -> Data:
    """Fashion-MNIST; ``task`` "reconstruction" (target = image) or "classification" (target = article)."""
    if task not in (Task.RECONSTRUCTION, Task.CLASSIFICATION):
        raise InvalidInput(f"fashion-mnist serves reconstruction or classification, not {task}.")
    classify = task == Task.CLASSIFICATION
    images, labels = images_and_labels(FASHION_FILES, "train", progress)
    test_images, test_labels = images_and_labels(FASHION_FILES, "t10k", progress)
    return Data(
        name="fashion-mnist",
        train=TensorDataset(images, labels if classify else images),
        test=TensorDataset(test_images, test_labels if classify else test_images),
        task=Task(task),
        classes=10 if classify else 0,
        source="Fashion-MNIST (Xiao et al. 2017), complete: 60 000 + 10 000",
    )


# MNIST with the writer of every digit, from QMNIST's extended labels (Yadav and Bottou 2019).

_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
WRITER_FILES = {
    "train": File(
        "mnist-writers/qmnist-train-labels-idx2-int.gz",
        "sha256:2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        (f"{_QMNIST}qmnist-train-labels-idx2-int.gz",),
    ),
    "test": File(
        "mnist-writers/qmnist-test-labels-idx2-int.gz",
        "sha256:9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
        (f"{_QMNIST}qmnist-test-labels-idx2-int.gz",),
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
    labels = read_idx(obtain(WRITER_FILES[split], progress=progress))
    return labels[: _SIZES[split], _WRITER_COLUMN].astype(np.int64)


def load_mnist_writers(*, progress: StagedProgress | None = None) -> Data:
    """MNIST for classification, with ``users`` the writers."""
    train, test = (torch.from_numpy(_writers(split, progress)) for split in ("train", "test"))
    return replace(
        load_mnist(progress=progress),
        name="mnist-writers",
        users=Column(train, test),
        source="MNIST with QMNIST's writers, complete: 539 writers of 60 000 digits, 297 others of 10 000",
    )


# FEMNIST in the format of LEAF (Caldas et al. 2018): letters and digits of 62 classes, grouped by writer.

FEMNIST_CLASSES = 62
_SIDE = 28


def _read_file(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    writers = {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for user in content["users"]:
            rows = content["user_data"][user]
            pixels = torch.from_numpy(np.array(rows["x"], dtype=np.float32)).reshape(-1, 1, _SIDE, _SIDE)
            labels = torch.tensor(rows["y"], dtype=torch.int64)
            if len(pixels) != len(labels) or not bool(((labels >= 0) & (labels < FEMNIST_CLASSES)).all()):
                raise ValueError(f"writer {user} needs as many labels from 0 to {FEMNIST_CLASSES - 1} as images")
            writers[user] = (pixels, labels)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{path} is not in LEAF's format: {error}.") from error
    return writers


def read_femnist(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (N, 1, 28, 28) and labels (N,) by writer, from every json file in ``folder``."""
    writers: dict[str, tuple[Tensor, Tensor]] = {}
    for path in sorted(folder.glob("*.json")):
        writers.update(_read_file(path))
    if not writers:
        raise missing("femnist/train/*.json", f"{folder} holds no json file of LEAF")
    return writers


def load_femnist() -> Data:
    """FEMNIST for classification, with ``users`` the writers. Ink is dark (0) on white (1), as LEAF leaves it."""
    folders = {split: find(f"femnist/{split}", f"femnist/data/{split}") for split in ("train", "test")}
    for split, folder in folders.items():
        if folder is None:
            raise missing(f"femnist/{split}/*.json", "LEAF's preprocess.sh has to make it")
    parts = {split: read_femnist(folder) for split, folder in folders.items() if folder is not None}
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
        classes=FEMNIST_CLASSES,
        users=Column(users["train"], users["test"], writers),
        source=f"FEMNIST (LEAF, Caldas et al. 2018): {len(writers)} writers, {len(data['train'])} training images",
    )


# The digits that come with scikit-learn: 1 797 images of 8 x 8, no download.

_HIGHEST = 16.0
"""Public: a pixel counts the dark points of a 4 x 4 block."""
_TRAIN = 1437
"""Four fifths."""


def load_digits(*, seed: int = 0) -> Data:
    """Digits, pixels mapped to [0, 1], split 1437 + 360 by ``seed``.

    >>> data = load_digits()
    >>> len(data.train), len(data.test), data.input_shape
    (1437, 360, (1, 8, 8))
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = torch.from_numpy((pixels[order] / _HIGHEST).astype(np.float32)).reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels[order].astype(np.int64))
    return Data(
        name="digits",
        train=TensorDataset(images[:_TRAIN], targets[:_TRAIN]),
        test=TensorDataset(images[_TRAIN:], targets[_TRAIN:]),
        task=Task.CLASSIFICATION,
        classes=10,
        source="Optical recognition of handwritten digits (Alpaydin and Kaynak 1998), the 1 797 of scikit-learn",
    )
