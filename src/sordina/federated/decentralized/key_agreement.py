"""Secrets that parties share: keys that two agree on, and Shamir's shares of one secret.

============================  ===================================================================================
`KeyPair`                     a fresh X25519 pair; the public half may travel through anybody
`shared_key`                  the 32 bytes that two parties derive, each from its own pair and the other's public half
`words`                       numbers modulo 2^32 or 2^64 from a key: AES-256 in counter mode, the same on every machine
`encrypt`, `decrypt`          a message that only the holder of a shared key can read or change (ChaCha20-Poly1305)
============================  ===================================================================================

A key serves one purpose (``context``) and one message: keys are made anew in every round, so no counter is used twice.

Shamir's secret sharing over a prime field: any ``threshold`` shares give the secret, fewer say nothing about it.

Shamir 1979. A secret s is the value at 0 of a random polynomial of degree threshold - 1 modulo P; a share is its value
at a public point x != 0. Any threshold - 1 values at other points are independent and uniform whatever s is.
P = 2^256 + 297 is the least prime above 2^256, so any 32 bytes are a secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
        raise InvalidInput("an invalid public key: the party that sent it is left out.") from error
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
        raise InvalidInput("a sealed message cannot be read: it was changed, or is meant for somebody else.") from error


# Shamir's secret sharing over a prime field: any ``threshold`` shares give the secret, fewer say nothing about it.

PRIME = 2**256 + 297
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """One share per point.

    Args:
        secret: 32 bytes.
        threshold: How many shares give the secret.
        points: Different numbers from 1 on, one for each holder.

    >>> shares = split(bytes(31) + b"x", 2, [1, 2, 5])
    >>> combine({5: shares[5], 1: shares[1]}, 2)[-1:]
    b'x'
    """
    if len(secret) != 32:
        raise InvalidInput(f"a secret has 32 bytes, got {len(secret)}.")
    if not 1 <= threshold <= len(points):
        raise InvalidInput(f"the threshold must lie in [1, {len(points)}], got {threshold}.")
    if len(set(points)) < len(points) or not all(0 < point < PRIME for point in points):
        raise InvalidInput("shares need different points from 1 on.")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    coefficients.reverse()
    shares = {}
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SHARE_BYTES, "big")
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the first ``threshold`` shares; refused if there are fewer, or if they are no shares.

    Args:
        shares: Shares by point.
        threshold: How many are needed.
    """
    if len(shares) < threshold:
        raise InvalidInput(f"{threshold} shares are needed, {len(shares)} are there.")
    points = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[point], "big") for point in points]
    if any(value >= PRIME for value in values):
        raise InvalidInput("not a valid share.")
    secret = sum(value * weight for value, weight in zip(values, _weights(points), strict=True)) % PRIME
    if secret >= 2**256:
        raise InvalidInput("the shares do not fit together.")
    return secret.to_bytes(32, "big")


def correct(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, list[int]]:
    """The secret though some shares are wrong, and the points of these; refused if they are too many.

    Berlekamp and Welch's decoding of a Reed-Solomon code: with m shares up to ``e = (m - threshold) // 2`` wrong ones
    are found. There are Q of degree ``threshold - 1 + e`` and E of degree e, monic, with ``Q(x) = y E(x)`` at every
    share (x, y), and then Q / E is the polynomial. A caller who can check the secret should: beyond e wrong shares
    another polynomial may fit.

    Args:
        shares: Shares by point.
        threshold: How many right ones give the secret.

    >>> shares = split(bytes(31) + b"x", 2, [1, 2, 5, 6])
    >>> correct(shares | {5: bytes(33)}, 2)[1]
    [5]
    """
    points = sorted(shares)
    values = [int.from_bytes(shares[point], "big") % PRIME for point in points]
    most = (len(points) - threshold) // 2
    if most < 0:
        raise InvalidInput(f"{threshold} shares are needed, {len(shares)} are there.")
    width = threshold + most
    rows = []
    for x, y in zip(points, values, strict=True):
        powers = [pow(x, k, PRIME) for k in range(width)]
        rows.append([*powers, *(-y * powers[k] % PRIME for k in range(most)), y * pow(x, most, PRIME) % PRIME])
    solution = _solved(rows, width + most)
    quotient, rest = _divided(solution[:width], [*solution[width:], 1])
    if any(rest):
        raise InvalidInput("too many shares are wrong: they do not fit together.")
    quotient += [0] * (threshold - len(quotient))
    if any(quotient[threshold:]) or quotient[0] >= 2**256:
        raise InvalidInput("too many shares are wrong: they do not fit together.")
    wrong = [x for x, y in zip(points, values, strict=True) if _value(quotient, x) != y]
    if len(wrong) > most:
        raise InvalidInput("too many shares are wrong: they do not fit together.")
    return quotient[0].to_bytes(32, "big"), wrong


def _value(coefficients: Sequence[int], point: int) -> int:
    """A polynomial, its constant first, at a point."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def _solved(rows: list[list[int]], unknowns: int) -> list[int]:
    """One solution of linear equations modulo the prime, the right side last in each row; free unknowns are 0."""
    rows = [list(row) for row in rows]
    pivots: list[int] = []
    for column in range(unknowns):
        place = len(pivots)
        chosen = next((k for k in range(place, len(rows)) if rows[k][column]), None)
        if chosen is None:
            continue
        rows[place], rows[chosen] = rows[chosen], rows[place]
        inverse = pow(rows[place][column], -1, PRIME)
        rows[place] = pivot = [value * inverse % PRIME for value in rows[place]]
        for k, row in enumerate(rows):
            if k != place and row[column]:
                factor = row[column]
                rows[k] = [(value - factor * own) % PRIME for value, own in zip(row, pivot, strict=True)]
        pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        raise InvalidInput("too many shares are wrong: they do not fit together.")
    solution = [0] * unknowns
    for row, column in zip(rows, pivots, strict=False):
        solution[column] = row[-1]
    return solution


def _divided(above: Sequence[int], below: Sequence[int]) -> tuple[list[int], list[int]]:
    """Quotient and rest of two polynomials, constants first; ``below`` is monic."""
    rest, degree = list(above), len(below) - 1
    quotient = [0] * max(1, len(rest) - degree)
    for k in range(len(rest) - 1 - degree, -1, -1):
        quotient[k] = factor = rest[k + degree]
        for place, value in enumerate(below):
            rest[k + place] = (rest[k + place] - factor * value) % PRIME
    return quotient, rest


@lru_cache(maxsize=4096)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0: ``prod_{j != i} x_j / (x_j - x_i)``."""
    weights = []
    for place, point in enumerate(points):
        above = below = 1
        for other in points[:place] + points[place + 1 :]:
            above = above * other % PRIME
            below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
