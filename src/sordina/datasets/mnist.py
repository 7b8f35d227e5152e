"""The idx format of MNIST and its kin: two zero bytes, a type, a rank, big-endian sizes, then the values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets.data import Data, Task
from sordina.datasets.files import File, obtain, read_bytes
from sordina.errors import InvalidInput
from sordina.progress import StagedProgress

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

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_CONTENT = {
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


FILES = files("mnist", _CONTENT, _MIRRORS)


def images_and_labels(files: dict[str, File], split: str, progress: StagedProgress | None) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) in [0, 1] and labels (N,), of ``split`` "train" or "t10k"."""
    pixels = read_idx(obtain(files[f"{split}-images-idx3-ubyte.gz"], progress=progress))
    labels = read_idx(obtain(files[f"{split}-labels-idx1-ubyte.gz"], progress=progress))
    images = torch.from_numpy(pixels.copy()).unsqueeze(1).to(torch.float32).div_(255)
    return images, torch.from_numpy(labels.copy()).to(torch.int64)


def load(*, progress: StagedProgress | None = None) -> Data:
    """MNIST for classification."""
    return Data(
        name="mnist",
        train=TensorDataset(*images_and_labels(FILES, "train", progress)),
        test=TensorDataset(*images_and_labels(FILES, "t10k", progress)),
        task=Task.CLASSIFICATION,
        classes=10,
        source="MNIST (LeCun et al. 1998), complete: 60 000 + 10 000",
    )
