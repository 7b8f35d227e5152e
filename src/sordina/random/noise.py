"""Gaussian noise for vectors of any length, and the exact sampler it rests on.

`add_gaussian` replaces every value x by

    x  ->  g round((x + sigma Z) / g),     Z independent standard Gaussians, g a public power of two,

and draws the integer ``round((x + sigma Z) / g)`` with its *exact* law (below).

**Theorem.** Let two vectors x, x', as they stand in memory, differ by at most Delta in the L2 norm, and let sigma >= nu
Delta. Then what `add_gaussian` makes of them is as hard to tell apart as the ideal Gaussian mechanism of noise
multiplier nu: every (epsilon, delta) of it holds, nothing is added to delta.

*Proof.* x is a vector of floats, hence of real numbers; x + sigma' Z with real-valued Gaussian Z and sigma' >= sigma is
the ideal mechanism. Rounding to multiples of g is a fixed function of its output: post-processing. The integers that
are computed have exactly that law, whatever x is. Multiplying them by g and rounding to the type of x (and adding them
to a multiple of g that was split off before, see below) computes the float nearest to a real number that is determined
by the ideal output: post-processing again. QED

Neither x nor sigma Z is rounded before they meet, so the sensitivity does not change; the total variation distance to
the rounded ideal is 0, per coordinate and in all.

What is assumed: the bits are fair (AES-128 is hard to break, `sordina.random.generators`); numpy's additions,
multiplications, conversions and roundings follow IEEE 754; scipy's ``ndtri`` and Python's ``NormalDist`` are right to
2^-36, mpmath's ``erfc`` to its working precision less 40 bits; a seed is no secret, so a seeded run protects nobody.
What the theorem is *not* about: how x was computed. That neighbouring data sets give x and x' at most Delta apart must
hold for the sums in memory (`sordina.private_step` says what is known of that).

**The grid.** ``64 g <= sigma < 128 g``. Rounding adds the variance g^2 / 12 <= 2.1e-5 sigma^2 and no bias that any
number could show (exp(-2 pi^2 64^2)). sigma is raised by 2^-22 of itself at most, to a single-precision multiple of g.

**The sampler.** Integers with the exact law of ``round(offset + k Z)``, Z standard Gaussian, by inversion, in blocks:
``Z = Q^-1(s)`` with ``Q(t) = P(Z > t)`` and s uniform on (0, 1), whose bits are drawn one after the other. Rounding
only asks whether Z lies above or below a few numbers, and a finite number of bits of s decides that. So the law of the
integers is exact if the bits are fair; nothing is truncated or approximated. They are computed in three stages:

1. *Fast*, in single precision. 32 bits make ``s = m / 2^32`` (mod 1, m signed: precise in both tails). The float of m
   selects, by its sign, exponent and leading bits of its mantissa, a line ``a + b m`` that is near Q^-1.
   If ``offset + k (a + b m)`` is nearer to a half-integer than the error bound below, or m is one of the 2^-13 of all
   values for which there is no line, the value is *doubtful*.
2. *Doubtful* values (a few in ten thousand) get 64 more bits and ``statistics.NormalDist`` in double precision.
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

**The error of stage 2**: 2^-36 is allowed for ``inv_cdf``, p is right to 2^-42 of itself, and the sum to 2^-44, so
``k 2^-35 + 2^-44 < 2^-27``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordina.errors import InvalidInput
from sordina.random.generators import BitStream, bit_stream

_FINENESS = 6
_RANGE = (2.0**-100, 2.0**100)
_LARGEST = 2.0**1000
"""Values of more steps are cut off there, so that no two move apart."""

Floats = NDArray[np.float32] | NDArray[np.float64]


def grid_of(sigma: float) -> tuple[float, np.float32]:
    """The step g of the grid and sigma in steps, rounded up.

    >>> grid_of(1.0)
    (0.015625, np.float32(64.00001))
    """
    if not _RANGE[0] <= sigma <= _RANGE[1]:
        raise InvalidInput(
            f"a noise of standard deviation {sigma:.3g} is out of range: it must lie between 2^-100 and 2^100."
        )
    step = math.ldexp(1.0, math.frexp(sigma)[1] - 1 - _FINENESS)
    return step, np.float32(sigma / step * (1 + 2.0**-23))


def add_gaussian(values: Floats, sigma: float, rng: np.random.Generator) -> None:
    """Add Gaussian noise of standard deviation ``sigma`` to ``values``, in place and rounded to a public grid.

    A value that is not finite counts as 0: no noise could hide it. Nothing that ``values`` hold stops the call.

    >>> from sordina.random import seeded
    >>> values = np.zeros(3, np.float32)
    >>> add_gaussian(values, 1.0, seeded(0))
    >>> bool((values * 64 == np.rint(values * 64)).all())
    True

    Args:
        values: A contiguous array of float32 or float64.
        sigma: The standard deviation; 0 leaves the values as they are.
        rng: A secure generator if what comes out is to be released.
    """
    if not values.flags.c_contiguous or values.dtype.char not in "fd":
        raise InvalidInput(f"noise is added to contiguous arrays of float32 or float64, got {values.dtype}.")
    if sigma == 0:
        return
    step, scale = grid_of(sigma)
    stream = bit_stream(rng)
    flat = values.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(flat), BLOCK):
            part = flat[start : start + BLOCK]
            try:
                _noise_block(part, step, scale, stream)
            except NotFinite:
                finite = np.nan_to_num(part.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
                _noise_doubles(finite, step, scale, stream)
                part[:] = finite


def _noise_block(part: Floats, step: float, scale: np.float32, stream: BitStream) -> None:
    """Of ``x / g`` the nearest whole number w is split off: ``round(w + r + k Z) = w + round(r + k Z)``.

    A power of two divides exactly, and r = x / g - w is exact too.
    """
    if part.dtype.char == "f":
        own = room(len(part))
        whole, rest = own.whole, own.offsets
        np.multiply(part, np.float32(1 / step), out=rest)
        np.rint(rest, out=whole)
        rest -= whole
        noise = round_block(rest, scale, stream)
        noise += whole
        np.multiply(noise, np.float32(step), out=part)
    else:
        _noise_doubles(part, step, scale, stream)


def _noise_doubles(part: Floats, step: float, scale: np.float32, stream: BitStream) -> None:
    counts: Double = np.divide(part, step, dtype=np.float64)
    np.clip(counts, -_LARGEST, _LARGEST, out=counts)
    whole = np.rint(counts)
    rest = counts - whole

    def exact(places: Indices) -> Double:
        chosen: Double = rest[places]
        return chosen

    whole += round_block(rest.astype(np.float32), scale, stream, exact)
    np.multiply(whole, step, out=part)


# Integers with the exact law of ``round(offset + k Z)``, Z standard Gaussian: by inversion, in blocks.

BLOCK = 1 << 16
"""How many integers are drawn at a time: enough to make up for what a call costs."""
_STEPS = 8
_LEAST = 18
"""Lines cover 2^18 <= |m| <= 2^31."""
_SHIFT = 23 - _STEPS
_SUM_ERROR = 2.0**-16 + 2.0**-16
_SECOND_ERROR = 2.0**-27
_FEW = 1 << 14
_SIZES_KEPT = 16
_inverse = NormalDist().inv_cdf
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
        self._whole = _Views(BLOCK)
        self._views = {BLOCK: self._whole}

    def views(self, n: int) -> _Views:
        """The first ``n`` places of everything; those of a few sizes are kept, as the same sizes come again."""
        if n not in self._views:
            if len(self._views) > _SIZES_KEPT:
                self._views = {BLOCK: self._whole}
            self._views[n] = _Views(n, self._whole)
        return self._views[n]


class _Views:
    def __init__(self, n: int, of: _Views | None = None) -> None:
        def new(name: str, kind: Any) -> Any:
            return np.empty(n, kind) if of is None else getattr(of, name)[:n]

        self.bits: NDArray[np.int32] = new("bits", np.int32)
        self.memory = self.bits.data.cast("B")
        self.floats: Single = new("floats", np.float32)
        self.patterns = self.floats.view(np.uint32)
        self.codes: NDArray[np.uint32] = new("codes", np.uint32)
        self.index: Indices = new("index", np.int64)
        self.lines: NDArray[np.complex64] = new("lines", np.complex64)
        self.intercepts, self.slopes = self.lines.real, self.lines.imag
        self.values: Single = new("values", np.float32)
        self.offsets: Single = new("offsets", np.float32)
        self.whole: Single = new("whole", np.float32)
        self.counts: Single = new("counts", np.float32)
        self.sure: NDArray[np.bool_] = new("sure", np.bool_)


_OWN = threading.local()


def room(n: int) -> _Views:
    """This thread's memory for ``n`` values."""
    if not hasattr(_OWN, "room"):
        _OWN.room = _Room()
    views: _Views = _OWN.room.views(n)
    return views


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
    table, own = lines(), room(len(offsets))
    values, counts = own.values, own.counts
    stream.fill(own.memory)
    own.floats[:] = own.bits
    np.right_shift(own.patterns, _SHIFT, out=own.codes)
    own.index[:] = own.codes
    np.take(table.table, own.index, out=own.lines, mode="clip")
    np.multiply(own.slopes, own.floats, out=values)
    values += own.intercepts
    values *= scale
    values += offsets
    np.rint(values, out=counts)
    values -= counts
    np.abs(values, out=values)
    bound = table.error * float(scale) + _SUM_ERROR + margin
    np.less_equal(values, np.float32(0.4999999 - bound), out=own.sure)
    doubtful = _false(own.sure)
    if len(doubtful):
        exact = offsets[doubtful] if exact_offsets is None else exact_offsets(doubtful)
        counts[doubtful] = _second(own.bits[doubtful].tolist(), exact.tolist(), float(scale), stream, second_margin)
    return counts


def _false(flags: NDArray[np.bool_]) -> Indices:
    """Where the flags are false: of many, eight at a time, as few are."""
    if len(flags) % 8 or len(flags) <= _FEW:
        places: Indices = (~flags).nonzero()[0]
        return places
    words = (flags.view(np.uint64) != _ALL_TRUE).nonzero()[0]
    inside = (~flags.reshape(-1, 8)[words]).ravel().nonzero()[0]
    found: Indices = words[inside >> 3] * 8 + (inside & 7)
    return found


def _second(bits: list[int], offsets: list[float], scale: float, stream: BitStream, margin: float) -> list[float]:
    """The second stage, for the values with these first 32 bits."""
    memory = bytearray(8 * len(bits))
    stream.fill(memoryview(memory))
    counts = []
    for place, (first, offset) in enumerate(zip(bits, offsets, strict=True)):
        if not math.isfinite(offset):
            raise NotFinite
        further = int.from_bytes(memory[8 * place : 8 * place + 8], "little")
        tail = first + further * 2.0**-64
        size = abs(tail)
        guess = 0
        if size >= 2.0**-10:
            value = offset - scale * math.copysign(1.0, tail) * _inverse(size * 2.0**-32)
            guess = round(value)
            if abs(value - guess) <= 0.5 - _SECOND_ERROR - margin:
                counts.append(float(guess))
                continue
        counts.append(float(settle((first << 64) + further, offset, scale, stream, guess)))
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
