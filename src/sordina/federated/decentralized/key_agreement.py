"""Secrets that two parties share: X25519, HKDF, streams of numbers from a key, and sealed letters.

============================  ===================================================================================
`KeyPair`                     a fresh X25519 pair; the public half may travel through anybody
`shared_key`                  the 32 bytes that two parties derive, each from its own pair and the other's public half
`words`                       numbers modulo 2^32 or 2^64 from a key: AES-256 in counter mode, the same on every machine
`encrypt`, `decrypt`          a message that only the holder of a shared key can read or change (ChaCha20-Poly1305)
============================  ===================================================================================

A key serves one purpose (``context``) and one message: keys are made anew in every round, so no counter is used twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordina.errors import InvalidInput

KEY_BYTES = 32
Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, repr=False)
class KeyPair:
    """An X25519 key pair.

    >>> one, other = KeyPair.fresh(), KeyPair.fresh()
    >>> shared_key(one, other.public, b"mask") == shared_key(other, one.public, b"mask")
    True
    """

    private: bytes
    public: bytes

    @classmethod
    def fresh(cls) -> KeyPair:
        """A pair from the operating system's randomness."""
        return cls.of(X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """The pair of a private half.

        Args:
            private: 32 bytes.
        """
        return cls(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def shared_key(mine: KeyPair, public: bytes, context: bytes) -> bytes:
    """What two parties share for one purpose; a public half that is no key is refused.

    Args:
        mine: This party's pair.
        public: The other party's public half.
        context: The purpose; other purposes give unrelated keys.
    """
    try:
        secret = X25519PrivateKey.from_private_bytes(mine.private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise InvalidInput("a public key that is none: the party that sent it is left out.") from error
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=b"sordina " + context).derive(secret)


def words(key: bytes, count: int, bits: int = 32) -> Words:
    """``count`` numbers, uniform modulo 2^bits to whoever does not know the key.

    Args:
        key: 32 bytes, for this use only.
        count: How many numbers.
        bits: 32 or 64.

    >>> words(bytes(32), 2).tolist()
    [2025887196, 2307473570]
    """
    if bits not in (32, 64):
        raise InvalidInput(f"numbers have 32 or 64 bits, got {bits}.")
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(count * bits // 8)), dtype=f"<u{bits // 8}")


def encrypt(key: bytes, message: bytes) -> bytes:
    """A letter for whoever shares the key; the key must not be used again.

    Args:
        key: 32 bytes, for this letter only.
        message: What it says.
    """
    return ChaCha20Poly1305(key).encrypt(bytes(12), message, None)


def decrypt(key: bytes, letter: bytes) -> bytes:
    """What a letter says; one that was changed, or is for somebody else, is refused.

    Args:
        key: The key it was written with.
        letter: What arrived.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), letter, None)
    except InvalidTag as error:
        raise InvalidInput("a letter that cannot be read: it was changed, or is for somebody else.") from error
