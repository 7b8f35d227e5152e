"""The idx format of MNIST and its kin: two zero bytes, a type, a rank, big-endian sizes, then the values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sordina.datasets.files import read_bytes
from sordina.errors import InvalidInput

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read(path: Path) -> npt.NDArray[Any]:
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
