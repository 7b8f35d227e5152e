"""Where randomness comes from: a cryptographic stream by default, a seed when a run must be repeatable.

Everything random in Sordina takes a ``numpy.random.Generator`` as an argument. `secure` gives one that runs AES in
counter mode under a fresh 128-bit key from the operating system; `seeded` gives an ordinary reproducible one. Whoever
knows the seed can subtract the noise, so a seeded result is not releasable, and `releasable` tells the two apart.
"""

from __future__ import annotations

import secrets

import numpy as np

_SECURE = "AESCounter"


def secure() -> np.random.Generator:
    """A generator keyed by the operating system's entropy.

    >>> releasable(secure())
    True
    """
    from randomgen import AESCounter

    return np.random.Generator(AESCounter(key=secrets.randbits(128)))


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


def releasable(rng: np.random.Generator) -> bool:
    """Whether noise from ``rng`` protects: true for the secure stream only."""
    return type(rng.bit_generator).__name__ == _SECURE
