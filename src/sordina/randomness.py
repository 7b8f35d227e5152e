"""Where randomness comes from: a cryptographic stream by default, a seed when a run must be repeatable.

Everything random in Sordina takes a ``numpy.random.Generator`` as an argument.

`secure`
    AES-128 in counter mode (randomgen's ``AESCounter``) under a fresh 128-bit key from the operating system. The tests
    check its blocks against the FIPS-197 vector. What that gives: telling the stream from coin flips, or finding the
    noise of a release, is as hard as breaking AES-128 with a random key. What it does not give: certification (it is
    no NIST SP 800-90A generator: it never reseeds by itself), forward secrecy (whoever reads the process's memory reads
    the key), and on processors without AES instructions, protection against timing.
`seeded`
    An ordinary reproducible generator (PCG64).

**The rule of marking.** Whoever knows the seed can subtract the noise. A run, report or model made with a generator for
which `releasable` is false is therefore marked as not releasable, and one unmarked part is enough to spoil the whole:
``result.releasable = all(map(releasable, generators))``. A mechanism called without a generator draws a secure one.

A secure stream must not exist twice, or two releases would carry the same noise and their difference would carry none:
it refuses to be copied or pickled, and takes a new key in a forked child.
"""

from __future__ import annotations

import os
import secrets
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from sordina.errors import InvalidInput
from sordina.normals import expand

_KEY_BITS = 128
_EXPAND_FROM = 1 << 14
"""Size from which `fill_normal` draws single precision from a key's stream: below it, the generator is as fast."""
_SPLIT_FROM = 1 << 18
"""Size from which it draws double precision from two generators: below it, starting a thread costs what it saves."""

Floats = TypeVar("Floats", bound=NDArray[np.floating[Any]])


class SecureStream(AESCounter):  # type: ignore[misc]
    """AES-128 in counter mode under a key that nobody chose."""

    def __init__(self) -> None:
        super().__init__(key=secrets.randbits(_KEY_BITS))
        _LIVING.add(self)

    def rekey(self) -> None:
        """Start over under a fresh key from the operating system."""
        self.seed(key=secrets.randbits(_KEY_BITS), counter=0)

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a secure random stream cannot be copied or pickled: noise would repeat. Call secure() anew."
        )


_LIVING: weakref.WeakSet[SecureStream] = weakref.WeakSet()


def _rekey_after_fork() -> None:
    for stream in tuple(_LIVING):
        stream.rekey()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rekey_after_fork)


def secure() -> np.random.Generator:
    """A generator keyed by the operating system's entropy.

    >>> releasable(secure())
    True
    """
    return np.random.Generator(SecureStream())


def seeded(seed: int) -> np.random.Generator:
    """A reproducible generator, for experiments and tests: what it yields must not be released.

    >>> int(seeded(0).integers(100)) == int(seeded(0).integers(100))
    True
    >>> releasable(seeded(0))
    False
    """
    return np.random.default_rng(seed)


def generator(seed: int | None = None) -> np.random.Generator:
    """`secure` without a seed, `seeded` with one."""
    return secure() if seed is None else seeded(seed)


def releasable(rng: np.random.Generator | None) -> bool:
    """Whether noise from ``rng`` protects: true for the secure stream (and for None, its default) only."""
    return rng is None or isinstance(rng.bit_generator, SecureStream)


def _sibling(rng: np.random.Generator) -> np.random.Generator:
    """A second stream, independent of ``rng``: secure if it is, else determined by it."""
    if releasable(rng):
        return secure()
    return np.random.default_rng(rng.integers(0, 1 << 32, size=4, dtype=np.uint32).tolist())


def fill_normal(out: Floats, rng: np.random.Generator) -> Floats:
    """Fill a contiguous float32 or float64 array with standard normal draws, in place.

    Large arrays are drawn from a key that ``rng`` gives (`sordina.normals`), or in double precision from two generators
    at once; what a seed gives does not depend on the number of processors.

    These are ordinary floating-point draws. Their lowest bits are not those of a real-valued Gaussian, so
    noise added to a secret in floating point does not carry the textbook proof to the last bit (Mironov 2012):
    the mechanisms for scalars and histograms sample exactly instead, see `sordina.mechanisms.grid`.

    >>> fill_normal(np.empty(3, np.float32), seeded(0)).dtype
    dtype('float32')
    """
    if not out.flags.c_contiguous or out.dtype not in (np.float32, np.float64):
        raise InvalidInput(f"fill_normal needs a contiguous float32 or float64 array, got {out.dtype}.")
    flat = out.reshape(-1)
    if flat.size < (_EXPAND_FROM if out.dtype == np.float32 else _SPLIT_FROM):
        rng.standard_normal(out=flat, dtype=out.dtype)
        return out
    if out.dtype == np.float32:
        expand(rng.integers(0, 1 << 64, 2, np.uint64).tobytes(), flat)
        return out
    half = flat.size // 2
    other = _sibling(rng)
    with ThreadPoolExecutor(max_workers=1) as pool:
        rest = pool.submit(other.standard_normal, out=flat[half:], dtype=out.dtype)
        rng.standard_normal(out=flat[:half], dtype=out.dtype)
        rest.result()
    return out
