"""Shamir's secret sharing over a prime field: any ``threshold`` shares give the secret, fewer say nothing about it.

Shamir 1979. A secret s is the value at 0 of a random polynomial of degree threshold - 1 modulo P; a share is its value
at a public point x != 0. Any threshold - 1 values at other points are independent and uniform whatever s is.
P = 2^256 + 297 is the least prime above 2^256, so any 32 bytes are a secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from sordina.errors import InvalidInput

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
        raise InvalidInput("a share that is none.")
    secret = sum(value * weight for value, weight in zip(values, _weights(points), strict=True)) % PRIME
    if secret >= 2**256:
        raise InvalidInput("the shares do not fit together.")
    return secret.to_bytes(32, "big")


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
