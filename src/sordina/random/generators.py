"""Where randomness comes from: a cryptographic stream by default, a seed when a run must be repeatable.

Everything random in Sordina takes a ``numpy.random.Generator`` as an argument.

`secure`
    AES-128 in counter mode (randomgen's ``AESCounter``) under a fresh 128-bit key from the operating system. The tests
    check its blocks against the FIPS-197 vector. What that gives: telling the stream from coin flips, or finding the
    noise of a release, is as hard as breaking AES-128 with a random key. What it does not give: certification (it is
    no NIST SP 800-90A generator), forward secrecy (whoever reads the process's memory reads the key), and on processors
    without AES instructions, protection against timing.
`seeded`
    An ordinary reproducible generator (PCG64).
`bit_stream`
    The bits behind bulk noise (`sordina.random.noise`): AES-128 in counter mode, by OpenSSL. For a secure generator
    every call starts at a fresh 128-bit point from the operating system; for a seeded one it gives the key.

**The rule of marking.** Whoever knows the seed can subtract the noise. A run, report or model made with a generator for
which `releasable` is false is therefore marked as not releasable, and one unmarked part is enough to spoil the whole:
``result.releasable = all(map(releasable, generators))``. A mechanism called without a generator draws a secure one.

**No secure stream exists twice**, or two releases would carry the same noise and their difference would carry none. It
refuses to be copied or pickled. A copy of the whole process is noticed at the next draw:

=============================  ====================================================================================
fork, by Python or not         the process's number changed, or a page that Linux wipes in a child (any child, also
                               one that has the same number in another namespace): a new key is taken
restored snapshot              more than `STALE_AFTER` seconds lie between two draws, or the clock ran back: a new key
                               is taken. A snapshot restored within that time is not noticed by `secure`
bulk noise (`bit_stream`)      nothing needs to be noticed: every call mixes fresh entropy of the operating system
=============================  ====================================================================================

A bound method kept from before the copy (``draw = rng.random``) escapes the check: keep the generator, not its methods.

The process's own generators, which dropout and collators draw from, seeded in secret.

How many numbers a record uses up (the length of a text, the size of a batch) shifts what all later ones get. Under a
seed that is public, such as the 42 of many training scripts, one record would so choose the dropout masks of others;
under a secret one, every mask is as likely with the record as without it.
"""

from __future__ import annotations

import mmap
import os
import random
import secrets
import threading
import time
import weakref
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from randomgen import AESCounter

from sordina.errors import InvalidInput
from sordina.privacy import check_seed

STALE_AFTER = 1.0
"""Seconds between two draws after which a secure generator takes a new key: far below the time a snapshot takes."""
_KEY_BITS = 128
_WIPE_ON_FORK = 18
"""Linux's MADV_WIPEONFORK."""
_CHUNK = memoryview(bytes(1 << 18))
_OWN = threading.local()
"""One cipher per thread: two threads never share a position in a stream."""


class _ForkSign:
    """Tells whether this process is still the one that looked last."""

    def __init__(self) -> None:
        self._page: mmap.mmap | None = None
        if hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap.mmap, "madvise"):
            page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            try:
                page.madvise(_WIPE_ON_FORK)
                self._page = page
            except OSError:
                pass
        self._generation = 0
        self.generation()

    def generation(self) -> tuple[int, int]:
        """A value that differs from every value seen before the process was forked."""
        if self._page is not None and self._page[0] == 0:
            self._page[0] = 1
            self._generation += 1
        return os.getpid(), self._generation


_FORK_SIGN = _ForkSign()


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


class SecureGenerator(np.random.Generator):
    """A generator over a `SecureStream` that looks, whenever it is used, whether its process was copied."""

    def __init__(self) -> None:
        super().__init__(SecureStream())
        self._seen = _FORK_SIGN.generation()
        self._used = time.time()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            object.__getattribute__(self, "_refresh")()
        return object.__getattribute__(self, name)

    def _refresh(self) -> None:
        generation, now = _FORK_SIGN.generation(), time.time()
        if generation != self._seen or not 0 <= now - self._used <= STALE_AFTER:
            stream: SecureStream = object.__getattribute__(self, "bit_generator")
            stream.rekey()
            self._seen = generation
        self._used = now

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a secure random generator cannot be copied or pickled: noise would repeat. Call secure() anew."
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
    return SecureGenerator()


def seeded(seed: int) -> np.random.Generator:
    """A reproducible generator, for experiments and tests: what it yields must not be released.

    Args:
        seed: A whole number, not negative.

    >>> int(seeded(0).integers(100)) == int(seeded(0).integers(100))
    True
    >>> releasable(seeded(0))
    False
    """
    return np.random.default_rng(check_seed(seed))


def generator(seed: int | None = None) -> np.random.Generator:
    """`secure` without a seed, `seeded` with one."""
    return secure() if seed is None else seeded(seed)


def releasable(rng: np.random.Generator | None) -> bool:
    """Whether noise from ``rng`` protects: true for the secure generator (and for None, its default) only.

    A plain numpy generator around a `SecureStream` is not: it does not look whether its process was copied.
    """
    return rng is None or isinstance(rng, SecureGenerator)


class BitStream:
    """Random bytes, as many as are asked for."""

    def __init__(self, cipher: CipherContext) -> None:
        self._cipher = cipher

    def fill(self, memory: memoryview) -> None:
        """Overwrite ``memory`` (bytes) with the next bytes of the stream."""
        for start in range(0, len(memory), len(_CHUNK)):
            part = memory[start : start + len(_CHUNK)]
            self._cipher.update_into(_CHUNK[: len(part)], part)


def bit_stream(rng: np.random.Generator) -> BitStream:
    """The bits for one call of bulk noise.

    Under one key, two calls of 2^L blocks overlap with a chance of 2^(L + 1 - 128): 2^30 calls of 2^20 blocks, 2^-48.

    Args:
        rng: A secure generator: the stream starts at a fresh point, whoever has copied the process. Any other: the
            stream is determined by the next 16 bytes that it gives.
    """
    if not isinstance(rng, SecureGenerator):
        return BitStream(Cipher(AES(rng.bytes(16)), CTR(bytes(16))).encryptor())
    if not hasattr(_OWN, "cipher"):
        _OWN.cipher = Cipher(AES(os.urandom(16)), CTR(os.urandom(16))).encryptor()
    cipher: CipherContext = _OWN.cipher
    cipher.reset_nonce(os.urandom(16))
    return BitStream(cipher)


# The process's own generators, which dropout and collators draw from, seeded in secret.

_WORDS, _FIRST = 624, 24
"""Size of the Mersenne twister, and the byte in torch's state where its words (of 8 bytes each, half used) begin."""


def reseed_globally() -> None:
    """Seed the generators of torch, numpy and Python from the operating system's entropy.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> first = torch.rand(4)
    >>> _ = torch.manual_seed(0)
    >>> reseed_globally()
    >>> bool((torch.rand(4) == first).any())
    False
    """
    import torch

    torch.manual_seed(secrets.randbits(64))  # on all devices
    reseed(torch.default_generator)
    random.seed(os.urandom(64))
    np.random.seed(np.frombuffer(os.urandom(64), np.uint32))  # noqa: NPY002


def reseed(generator: Any) -> None:
    """Seed a generator of torch, of Python or of numpy from the operating system's entropy.

    Args:
        generator: A ``torch.Generator``, ``random.Random``, or one of numpy's, of whichever kind.
    """
    if isinstance(generator, random.Random):
        generator.seed(os.urandom(64))
    elif isinstance(generator, np.random.RandomState):
        generator.seed(np.frombuffer(os.urandom(64), np.uint32))
    elif isinstance(generator, (np.random.Generator, np.random.BitGenerator)):
        bits: Any = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
        bits.state = type(bits)(secrets.randbits(256)).state
    else:
        import torch

        generator.manual_seed(secrets.randbits(64))
        if generator.device.type == "cpu":  # there torch uses half of a seed only: the whole state is drawn instead
            state = generator.get_state()
            words = np.frombuffer(os.urandom(4 * _WORDS), np.uint32).astype(np.int64)
            state[_FIRST : _FIRST + 8 * _WORDS] = torch.from_numpy(words).view(torch.uint8)
            generator.set_state(state)
