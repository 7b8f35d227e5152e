"""Small grey images as data addresses, so that a page needs no other file."""

from __future__ import annotations

import base64
import struct
import zlib

from sordina.reports.facts import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_8_BIT = struct.pack(">BBBBB", 8, 0, 0, 0, 0)


def png(image: Image) -> bytes:
    """The image as an 8-bit grey PNG (ISO/IEC 15948), every row unfiltered.

    >>> png(((0.0, 1.0),))[:4]
    b'\\x89PNG'
    """
    rows = b"".join(b"\0" + bytes(round(255 * value) for value in row) for row in image)
    size = struct.pack(">II", len(image[0]), len(image))
    return (
        _SIGNATURE
        + _chunk(b"IHDR", size + _GREY_8_BIT)
        + _chunk(b"IDAT", zlib.compress(rows, 9))
        + _chunk(b"IEND", b"")
    )


def data_address(image: Image) -> str:
    """``data:image/png;base64,...``."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
