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
