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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordina.accounting.curve import Curve
from sordina.accounting.grid import Pmf, multiples
from sordina.accounting.roots import falling_root
from sordina.accounting.special import Array, fast_length

_UNIT = float(np.finfo(float).eps) / 2
_TAIL = math.log(1e-7)
"""Part of the tilted mass that may lie on either side of the window, and wrap around into it."""
_COARSE = 600
"""Groups of grid points, on either side of 0, enough to place the window by."""
Parts = Sequence[tuple[Pmf, int]]


@dataclass(frozen=True)
class Cumulants:
    """``K(theta) = sum_j k_j ln sum_x p_j(x) e^(theta x)`` and its derivative, for all parts together."""

    parts: tuple[tuple[Array, Array, int], ...]
    """Losses, logarithms of masses, count."""

    @classmethod
    def of(cls, parts: Parts, rough: bool = False) -> Cumulants:
        """Exact, or ``rough`` but fast."""
        return cls(tuple((*_points(pmf, rough), count) for pmf, count in parts))

    def each(self, theta: float) -> list[float]:
        """``ln sum_x p_j(x) e^(theta x)`` of every part."""
        return [_log_sum(logs + theta * losses) for losses, logs, _ in self.parts]

    def total(self, theta: float) -> float:
        """``K(theta)``."""
        return math.fsum(count * value for value, (_, _, count) in zip(self.each(theta), self.parts, strict=True))

    def slope(self, theta: float) -> float:
        """``K'(theta)``: the mean of the tilted sum."""
        total = 0.0
        for losses, logs, count in self.parts:
            tilted = logs + theta * losses
            weights = np.exp(tilted - tilted.max())
            total += count * float(weights @ losses) / float(weights.sum())
        return total

    def exponent(self, theta: float) -> float:
        """``K(theta) - theta K'(theta)``: log of Chernoff's bound at the tilted mean, falling for theta >= 0."""
        return self.total(theta) - theta * self.slope(theta)


def _points(pmf: Pmf, rough: bool) -> tuple[Array, Array]:
    losses, masses = pmf.losses, pmf.masses
    if rough and masses.size > 2 * _COARSE:
        starts = _ladder(pmf.start, masses.size)
        moments = np.add.reduceat(masses * losses, starts)
        masses = np.add.reduceat(masses, starts)
        losses = moments / np.maximum(masses, 1e-300)
    kept = masses > 0
    return losses[kept], np.log(masses[kept])


def _ladder(start: int, size: int) -> npt.NDArray[np.intp]:
    """First indices of groups of grid points that grow with their distance from loss 0."""
    rungs = np.unique(np.geomspace(1, max(abs(start), abs(start + size)) + 1, _COARSE).astype(np.intp))
    indices = np.concatenate([-rungs[::-1], [0], rungs]) - start
    return np.unique(np.clip(indices, 0, size - 1))


def _log_sum(logs: Array) -> float:
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))


@dataclass(frozen=True)
class Window:
    """Where to look: the tilt, and the range of sums to resolve."""

    theta: float
    low: float
    centre: float
    high: float
    beyond: float
    """The tilt of Chernoff's bound for what lies above ``high``."""


def window(parts: Parts, log_delta: float | None, epsilon: float | None) -> Window:
    """The window around the answer to "which epsilon at this delta", or "which delta at this epsilon"."""
    rough = Cumulants.of(parts, rough=True)
    least = sum(count * float(losses[0]) for losses, _, count in rough.parts)
    most = sum(count * float(losses[-1]) for losses, _, count in rough.parts)
    width = max(most - least, parts[0][0].step)
    steepest = 1e4 / parts[0][0].step
    if log_delta is not None:
        theta = falling_root(lambda tilt: rough.exponent(tilt) - log_delta, 1e-3 / width, steepest, 1e-2)
    else:
        assert epsilon is not None
        theta = falling_root(lambda tilt: epsilon - rough.slope(tilt), 1e-3 / width, steepest, 1e-2)
    here = rough.total(theta)

    def beyond(move: float) -> float:
        """The logarithm of Chernoff's bound on the tilted mass beyond the mean at tilt ``theta + move``."""
        return rough.total(theta + move) - here - move * rough.slope(theta + move)

    def edge(sign: int) -> tuple[float, float]:
        """How far to move the tilt until what lies beyond does not matter, and where that is: inf if it always does."""
        if beyond(sign * steepest) > _TAIL:
            return sign * steepest, sign * math.inf
        move = sign * falling_root(lambda size: beyond(sign * size) - _TAIL, 1e-3 / width, steepest, 1e-2)
        return move, rough.slope(theta + move)

    move, high = edge(1)
    return Window(theta, edge(-1)[1], rough.slope(theta), high, theta + move)


def compose(parts: Parts, log_delta: float | None = None, epsilon: float | None = None) -> Curve:
    """The hockey-stick curve of all ``parts`` around one of delta and epsilon; all parts share one step."""
    step = parts[0][0].step
    last = sum(count * (pmf.start + pmf.masses.size - 1) for pmf, count in parts)
    first = sum(count * pmf.start for pmf, count in parts)
    lost = -math.expm1(sum(count * math.log1p(-min(pmf.infinite, 1 - 1e-15)) for pmf, count in parts))
    shift = sum(count * pmf.blur for pmf, count in parts)
    if epsilon is not None and epsilon - shift >= step * last:
        return Curve(np.array([step * last]), np.array([lost]), shift)
    look = window(parts, log_delta, epsilon)
    exact = Cumulants.of(parts)
    low = math.floor(max(look.low / step, first))
    high = math.ceil(min(look.high / step, last))
    size = fast_length(max(high - low + 1, 16))
    high = low + size - 1
    if high < last:
        lost += math.exp(min(exact.total(look.beyond) - look.beyond * step * (high + 1) + 1e-9, 0.0))
    norms = exact.each(look.theta)
    tilted = _tilted_power(parts, look.theta, norms, size)
    tilted = np.roll(tilted, -((low - first) % size))
    losses = multiples(step, low, high + 1)
    total = math.fsum(count * norm for (_, count), norm in zip(parts, norms, strict=True))
    masses = np.minimum(tilted * np.exp(np.minimum(total - look.theta * losses, 700.0)), 1.0)
    slack = 1 + 1e-9 + 1e-12 * sum(count for _, count in parts)
    return Curve.of(losses, masses, look.centre, lost, slack, shift)


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
