"""Gaussian noise for vectors of any length, with the law that the accountant assumes: proved, not approximated.

`add_gaussian` replaces every value x by

    x  ->  g round((x + sigma Z) / g),     Z independent standard Gaussians, g a public power of two,

and draws the integer ``round((x + sigma Z) / g)`` with its *exact* law (`sordina.random.rounded_gaussian`).

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
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.random.generators import BitStream, bit_stream
from sordina.random.rounded_gaussian import BLOCK, Double, Indices, NotFinite, room, round_block

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
