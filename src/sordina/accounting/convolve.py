"""Composition: the loss of many mechanisms is the sum of their losses, here by one tilted Fourier transform.

Masses are multiplied by ``e^(theta x)`` before the transform and divided by it afterwards (Esscher's tilt), with theta
such that the tilted sum is centred where the answer lies. What the Fourier transform loses in absolute precision is
then lost relative to the answer, so that a delta of 1e-12 is as exact as one of 0.1. What is not exact is bounded and
added to delta:

* sums beyond the window on the right: Chernoff's bound ``e^(K(theta') - theta' x)``;
* sums beyond the window on the left wrap around into it, and count as the larger losses they land on;
* rounding: an FFT of n numbers whose absolute values sum to 1 is off by at most ``6 u log2(n)`` in every coordinate, by
  induction over its butterflies; the power k multiplies that by ``k |z|^(k-1)``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sordina.accounting.curve import Curve
from sordina.accounting.grid import Pmf, multiples
from sordina.accounting.special import Array, fast_length
from sordina.accounting.window import Cumulants, Parts, Window, window

_UNIT = 2.0**-53
_LONGEST = 1 << 22
"""Points of the longest transform."""


class TooFine(Exception):
    """The grid is too fine for the range of sums to resolve; take a coarser one."""


def compose(parts: Parts, log_delta: float | None = None, epsilon: float | None = None) -> Curve:
    """The hockey-stick curve of all ``parts`` around one of delta and epsilon; all parts share one step."""
    step = parts[0][0].step
    last = sum(count * (pmf.start + pmf.masses.size - 1) for pmf, count in parts)
    lost = -math.expm1(sum(count * math.log1p(-min(pmf.infinite, 1 - 1e-15)) for pmf, count in parts))
    shift = sum(count * pmf.blur for pmf, count in parts)
    if epsilon is not None and epsilon - shift >= step * last:
        return Curve(np.array([step * last]), np.array([lost]), shift)
    look = window(parts, log_delta, epsilon)
    low, masses, beyond = summed(parts, look)
    losses = multiples(step, low, low + masses.size)
    slack = 1 + 1e-9 + 1e-12 * sum(count for _, count in parts)
    return Curve.of(losses, masses, look.centre, lost + beyond, slack, shift)


def summed(parts: Parts, look: Window) -> tuple[int, Array, float]:
    """The masses of the sum of all ``parts`` in a window, rounded up.

    Args:
        parts: Losses on one grid, and how often each occurs.
        look: The window, and the tilt.

    Returns:
        The number of the first grid point, the masses from there on, and a bound on the mass beyond.
    """
    step = parts[0][0].step
    last = sum(count * (pmf.start + pmf.masses.size - 1) for pmf, count in parts)
    first = sum(count * pmf.start for pmf, count in parts)
    low = math.floor(max(look.low / step, first))
    high = math.ceil(min(look.high / step, last))
    size = fast_length(max(high - low + 1, 16))
    if size > _LONGEST:
        raise TooFine
    high = low + size - 1
    exact = Cumulants.of(parts)
    beyond = 0.0
    if high < last:
        beyond = math.exp(min(exact.total(look.beyond) - look.beyond * step * (high + 1) + 1e-9, 0.0))
    norms = exact.each(look.theta)
    tilted = np.roll(_tilted_power(parts, look.theta, norms, size), -((low - first) % size))
    total = math.fsum(count * norm for (_, count), norm in zip(parts, norms, strict=True))
    losses = multiples(step, low, high + 1)
    return low, np.minimum(tilted * np.exp(np.minimum(total - look.theta * losses, 700.0)), 1.0), beyond


def _tilted_power(parts: Parts, theta: float, norms: list[float], size: int) -> Array:
    """The tilted masses of the sum, modulo ``size`` grid points, rounded up."""
    precision = (6 * math.log2(size) + 16) * _UNIT
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    sensitivity = np.ones(size // 2 + 1)
    vanished = 0
    for (pmf, count), norm in zip(parts, norms, strict=True):
        transform = np.fft.rfft(_folded(pmf, theta, norm, size))
        magnitude = np.abs(transform)
        vanished += int((magnitude < precision).sum())
        sensitivity += count / np.maximum(magnitude, precision)
        product *= _power(transform, count)
    result: Array = np.fft.irfft(product, size)
    error = precision * 2 / size * (float(np.abs(product) @ sensitivity) + 4 * vanished)
    return np.maximum(result, 0.0) + error


def _power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """``base ** exponent`` by squaring: each multiplication is off by at most a few units in the last place."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def _folded(pmf: Pmf, theta: float, norm: float, size: int) -> Array:
    """Tilted masses of one part, wrapped around ``size`` grid points."""
    with np.errstate(divide="ignore"):
        tilted = np.exp(np.log(pmf.masses) + (theta * pmf.losses - norm))
    folded = np.zeros(-(-tilted.size // size) * size)
    folded[: tilted.size] = tilted
    wrapped: Array = folded.reshape(-1, size).sum(axis=0)
    return wrapped
