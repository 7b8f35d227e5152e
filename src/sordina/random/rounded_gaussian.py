"""Integers with the exact law of ``round(offset + k Z)``, Z standard Gaussian: by inversion, in blocks.

``Z = Q^-1(s)`` with ``Q(t) = P(Z > t)`` and s uniform on (0, 1), whose bits are drawn one after the other. Rounding
only asks whether Z lies above or below a few numbers, and a finite number of bits of s decides that. So the law of the
integers is exact if the bits are fair; nothing is truncated or approximated. They are computed in three stages:

1. *Fast*, in single precision. 32 bits make ``s = m / 2^32`` (mod 1, m signed: precise in both tails). The float of m
   selects, by its sign, exponent and leading bits of its mantissa, a line ``a + b m`` that is near Q^-1.
   If ``offset + k (a + b m)`` is nearer to a half-integer than the error bound below, or m is one of the 2^-13 of all
   values for which there is no line, the value is *doubtful*.
2. *Doubtful* values (a few in ten thousand) get 64 more bits and scipy's ``ndtri`` in double precision.
3. What is doubtful still (about one in 2^27 of these) is compared with Q in as many digits as it takes (mpmath), with
   as many further bits as it takes.

A stage that decides does so for *every* continuation of the bits drawn, so a later stage never contradicts it.

**The error of stage 1.** Only additions, multiplications and conversions that IEEE 754 rounds correctly are used, each
off by at most half a unit in the last place, 2^-24 of the result. With p = |m| / 2^32, f = float(m), the ratio
r = p / phi(z) <= 1.26 and |z| <= 3.85 where there are lines:

=========================================  ==========================================================
the line, against Q^-1 in double precision  computed for every line when the table is made (`Lines`)
rounding of the line's a and b              2^-24 |a| + 2^-24 |b f|
bits of s not yet drawn, rounding of f      (2^-19 + 2^-24) r at most: m >= 2^18, d z / d p = -1 / phi(z)
``b f``, then ``a + b f``                   2^-24 |b f| + 2^-24 |z|
times k, plus offset                        2^-16 each: product and sum are below 2^9
=========================================  ==========================================================

The first four rows, of every line, are added up when the table is made; their maximum is `Lines.error`, in which 2^-30
is allowed for ``ndtri`` (which is right to about 2^-50; the tests hold it against mpmath). An error bound that is too
large costs time only.

**The error of stage 2**: 2^-36 is allowed for ``ndtri``, p is right to 2^-42 of itself, and the sum to 2^-44, so
``k 2^-35 + 2^-44 < 2^-27``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordina.random.generators import BitStream

BLOCK = 1 << 16
"""How many integers are drawn at a time: enough to make up for what a call costs."""
_STEPS = 8
_LEAST = 18
"""Lines cover 2^18 <= |m| <= 2^31."""
_SHIFT = 23 - _STEPS
_SUM_ERROR = 2.0**-16 + 2.0**-16
_SECOND_ERROR = 2.0**-27
_FEW = 1 << 14
_ALL_TRUE = np.uint64(0x0101010101010101)

Single = NDArray[np.float32]
Double = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Lines:
    """``a + b m`` for every pattern of sign, exponent and leading mantissa of m; NaN where there is none."""

    table: NDArray[np.complex64]
    """``a + i b``: both are fetched at once."""
    error: float
    """How far a line, evaluated in single precision, is from ``Q^-1`` at most."""


@cache
def lines() -> Lines:
    """The table, made at first use (about a millisecond)."""
    edges = np.concatenate([np.ldexp(1 + np.arange(1 << _STEPS) / (1 << _STEPS), e) for e in range(_LEAST, 31)])
    edges = np.append(edges, 2.0**31)
    low, high = edges[:-1], edges[1:]
    at_low, at_high, between = (-ndtri(x / 2**32) for x in (low, high, (low + high) / 2))
    slope = (at_high - at_low) / (high - low)
    bulge = between - (at_low + at_high) / 2
    intercept = at_low - slope * low + bulge / 2
    density = np.exp(-at_low * at_low / 2) / np.sqrt(2 * np.pi)
    mills = high / 2**32 / density
    unit = 2.0**-24
    error = (
        np.abs(bulge) * 0.6
        + 2.0**-30
        + unit * (np.abs(intercept) + np.abs(slope * high))
        + (0.5 / low + unit) * mills * 1.01
        + unit * (np.abs(slope * high) + np.abs(at_low))
    )
    table = np.full(1 << (9 + _STEPS), complex(np.nan, np.nan), np.complex64)
    for sign in (1, -1):
        place = (sign * edges).astype(np.float32).view(np.uint32) >> _SHIFT
        table.real[place] = sign * np.append(intercept, intercept[-1])
        table.imag[place] = np.append(slope, slope[-1])
    return Lines(table, float(error.max()) * 1.01)


class NotFinite(Exception):
    """An offset is NaN: such a one is always doubtful, so looking for it there costs nothing."""


class _Room:
    """Memory to work in, one per thread: fresh memory costs more than the work."""

    def __init__(self) -> None:
        self.bits = np.empty(BLOCK, np.int32)
        self.memory = self.bits.data.cast("B")
        self.floats = np.empty(BLOCK, np.float32)
        self.codes = np.empty(BLOCK, np.uint32)
        self.index = np.empty(BLOCK, np.int64)
        self.lines = np.empty(BLOCK, np.complex64)
        self.values = np.empty(BLOCK, np.float32)
        self.offsets = np.empty(BLOCK, np.float32)
        self.whole = np.empty(BLOCK, np.float32)
        self.counts = np.empty(BLOCK, np.float32)
        self.sure = np.ones(BLOCK + 8, np.bool_)


_OWN = threading.local()


def room() -> _Room:
    """This thread's."""
    if not hasattr(_OWN, "room"):
        _OWN.room = _Room()
    own: _Room = _OWN.room
    return own


def round_block(
    offsets: Single,
    scale: np.float32,
    stream: BitStream,
    exact_offsets: Callable[[Indices], Double] | None = None,
    *,
    margin: float = 0.0,
    second_margin: float = 0.0,
) -> Single:
    """``round(offset + scale Z)`` for every offset, Z independent standard Gaussians; overwritten by the next call.

    Args:
        offsets: At most `BLOCK` numbers between -1/2 and 1/2.
        scale: At most 129.
        stream: Where the bits come from.
        exact_offsets: The offsets of some places in double precision, where ``offsets`` are off by up to 2^-25.
        margin: Added to the error bound of the first stage, to test the second.
        second_margin: Added to the error bound of the second stage, to test the third.
    """
    table, own, n = lines(), room(), len(offsets)
    stream.fill(own.memory[: 4 * n])
    bits, floats, codes, index = own.bits[:n], own.floats[:n], own.codes[:n], own.index[:n]
    chosen, values, counts, sure = own.lines[:n], own.values[:n], own.counts[:n], own.sure[:n]
    floats[:] = bits
    np.right_shift(floats.view(np.uint32), _SHIFT, out=codes)
    index[:] = codes
    np.take(table.table, index, out=chosen, mode="clip")
    np.multiply(chosen.imag, floats, out=values)
    values += chosen.real
    values *= scale
    values += offsets
    np.rint(values, out=counts)
    values -= counts
    np.abs(values, out=values)
    bound = table.error * float(scale) + _SUM_ERROR + margin
    np.less_equal(values, np.float32(0.4999999 - bound), out=sure)
    doubtful = _false(own.sure, n)
    if len(doubtful):
        exact = offsets[doubtful].astype(np.float64) if exact_offsets is None else exact_offsets(doubtful)
        counts[doubtful] = _second(bits[doubtful], exact, float(scale), stream, second_margin)
    return counts


def _false(flags: NDArray[np.bool_], n: int) -> Indices:
    """Where the first ``n`` flags are false: of many, eight at a time, as few are."""
    if n <= _FEW:
        places: Indices = (~flags[:n]).nonzero()[0]
        return places
    end = -(-n // 8) * 8
    flags[n:end] = True
    words = (flags[:end].view(np.uint64) != _ALL_TRUE).nonzero()[0]
    inside = (~flags[:end].reshape(-1, 8)[words]).ravel().nonzero()[0]
    found: Indices = words[inside >> 3] * 8 + (inside & 7)
    return found


def _second(bits: NDArray[np.int32], offsets: Double, scale: float, stream: BitStream, margin: float) -> Double:
    """The second stage, for the values with these first 32 bits."""
    if not np.isfinite(offsets).all():
        raise NotFinite
    further = np.empty(len(bits), np.uint64)
    stream.fill(further.data.cast("B"))
    tail = bits + further * 2.0**-64
    values = offsets + scale * np.copysign(ndtri(np.abs(tail) * 2.0**-32), tail)
    counts = np.rint(values)
    bound = 0.5 - _SECOND_ERROR - margin
    for place in np.flatnonzero(~((np.abs(values - counts) <= bound) & (np.abs(tail) >= 2.0**-10))):
        guess = counts[place] if np.isfinite(counts[place]) else offsets[place]
        drawn = (int(bits[place]) << 64) + int(further[place])
        counts[place] = settle(drawn, float(offsets[place]), scale, stream, round(float(guess)))
    return counts


def settle(drawn: int, offset: float, scale: float, stream: BitStream, guess: int) -> int:
    """The third stage: ``round(offset + scale Z)`` for the Z whose s begins with the 96 bits ``drawn``, exactly.

    ``guess`` is where the search begins; any will do.
    """
    from mpmath import mp, mpf

    drawn, size = drawn % (1 << 96), 96

    def above(threshold: Fraction) -> bool:
        """Whether Z > threshold, that is s < Q(threshold); draws bits until it is plain."""
        nonlocal drawn, size
        while True:
            with mp.workprec(size + 80):
                point = mpf(threshold.numerator) / threshold.denominator
                chance = mp.ldexp(mp.erfc(point / mp.sqrt(2)) / 2, size)
                slack = mp.ldexp(1, -40)
                if drawn + 1 <= chance - slack:
                    return True
                if drawn >= chance + slack:
                    return False
            more = bytearray(8)
            stream.fill(memoryview(more))
            drawn, size = (drawn << 64) + int.from_bytes(more, "little"), size + 64

    def edge(count: int) -> Fraction:
        """The Z at which ``count - 1`` becomes ``count``."""
        return (Fraction(2 * count - 1, 2) - Fraction(offset)) / Fraction(scale)

    count = guess
    while above(edge(count + 1)):
        count += 1
    while not above(edge(count)):
        count -= 1
    return count
