"""Standard Gaussian draws by the hundred thousand: a key's AES-128 stream, then Box and Muller.

A generator draws Gaussians one after the other, in 10 ns each or more; for a small network that takes as long as the
rest of a private step. Here it only gives a fresh 128-bit key. The key's stream (AES in counter mode, OpenSSL) yields
96 bits for every two draws,

    x = R cos(theta),  y = R sin(theta),  R = sqrt(-2 log u),

with theta to 32 bits and u to 57 bits or more, so that tails reach to 8.8 standard deviations. Telling the draws from
true ones is as hard as breaking AES-128 under a key that the generator chose: for the secure generator, the claim it
makes itself. A key serves one call; no state is kept, so there is nothing to copy, to fork or to save.
"""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import NDArray

PAIRS = 1 << 14
"""How many pairs are drawn at a time: few enough to stay in cache."""
_ZEROS = memoryview(bytes(12 * PAIRS))
_OWN = threading.local()
"""Room to work in, one per thread: fresh memory costs more than the work."""

Single = NDArray[np.float32]


def expand(key: bytes, out: Single) -> None:
    """Fill the flat array ``out`` with the draws that belong to ``key``."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    memory, bits, floats = _room()
    for start in range(0, len(out), 2 * PAIRS):
        part = out[start : start + 2 * PAIRS]
        n = (len(part) + 1) // 2
        stream.update_into(_ZEROS[: 12 * n], memory[: 12 * n])
        floats[: 3 * n] = bits[: 3 * n]
        _box_muller(floats[:n], floats[n : 2 * n], floats[2 * n : 3 * n], part)


def _room() -> tuple[memoryview, NDArray[np.int32], Single]:
    if not hasattr(_OWN, "room"):
        bits = np.empty(3 * PAIRS, np.int32)
        _OWN.room = bits.data.cast("B"), bits, np.empty(3 * PAIRS, np.float32)
    room: tuple[memoryview, NDArray[np.int32], Single] = _OWN.room
    return room


def _box_muller(coarse: Single, fine: Single, angle: Single, out: Single) -> None:
    """Turn n random integers of 32 bits, signed, of each kind into 2n draws, or 2n - 1 if there is no room for more.

    With k coarse and f = fine / 2^32 + 1/2 in [0, 1), ``|k + f|`` is uniform on [0, 2^31].
    """
    fine *= 2.0**-32
    coarse += 0.5
    coarse += fine
    coarse *= 2.0**-31
    np.abs(coarse, out=coarse)
    np.log(coarse, out=coarse)
    coarse *= -2
    radius = np.sqrt(coarse, out=coarse)
    angle *= math.pi * 2.0**-31
    first, second = out[: len(angle)], out[len(angle) :]
    np.cos(angle, out=first)
    first *= radius
    np.sin(angle, out=angle)
    angle *= radius
    second[:] = angle[: len(second)]
