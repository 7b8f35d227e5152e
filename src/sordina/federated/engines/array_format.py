"""The one form in which arrays cross a network, and its parser, which believes nothing it reads.

An array travels as four fields: the name of its dtype, its shape, the name of this format, and its values as raw
little-endian bytes in C order. There is no header to interpret, nothing is unpickled or unzipped, and a parser never
allocates more than the bytes that came.

=======================  ======================================================================
field                    what is refused
=======================  ======================================================================
format                   anything but `FORMAT` (an .npy, an .npz, a tensor of another library)
dtype                    any name not in `DTYPES`: other byte orders, float128, objects, text
shape                    more than 8 dimensions, entries that are no integers or negative
data                     no bytes, or not exactly as many as dtype and shape say
=======================  ======================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput

FORMAT = "sordina.little-endian"
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("bool", "uint8", "int32", "int64", "float32", "float64")}
_DIMENSIONS = 8


def encode(array: NDArray[Any]) -> tuple[str, tuple[int, ...], str, bytes]:
    """dtype, shape, format and data of an array.

    Args:
        array: Numbers of one of the kinds in `DTYPES`.

    >>> encode(np.array([[1, 2]], dtype=np.uint8))
    ('uint8', (1, 2), 'sordina.little-endian', b'\\x01\\x02')
    """
    name = array.dtype.newbyteorder("=").name
    if name not in DTYPES:
        raise InvalidInput(f"cannot send an array of {array.dtype}: use one of {', '.join(DTYPES)}.")
    return name, tuple(int(one) for one in array.shape), FORMAT, array.astype(DTYPES[name], copy=False).tobytes()


def decode(dtype: object, shape: object, form: object, data: object) -> NDArray[Any]:
    """The array in four foreign fields, or an `InvalidInput` that quotes none of them.

    Args:
        dtype: What should be a name in `DTYPES`.
        shape: What should be a sequence of integers.
        form: What should be `FORMAT`.
        data: What should be the values.

    >>> decode(*encode(np.array([[0.5, 2.0]]))).tolist()
    [[0.5, 2.0]]
    """
    if type(form) is not str or form != FORMAT:
        raise InvalidInput("malformed: an array in a format that is not ours")
    if type(dtype) is not str or dtype not in DTYPES:
        raise InvalidInput("malformed: an array of a dtype that is never sent")
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes) or len(shape) > _DIMENSIONS:
        raise InvalidInput("malformed: an array without a proper shape")
    if any(type(one) is not int or one < 0 for one in shape):
        raise InvalidInput("malformed: an array without a proper shape")
    if type(data) is not bytes or math.prod(shape) * DTYPES[dtype].itemsize != len(data):
        raise InvalidInput("malformed: an array whose bytes do not fit its shape")
    if dtype == "bool" and data.strip(b"\x00\x01"):
        raise InvalidInput("malformed: truth values other than 0 and 1")
    return np.frombuffer(data, dtype=DTYPES[dtype]).reshape(tuple(shape)).astype(dtype)
