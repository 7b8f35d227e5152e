"""Where to look for the answer: a tilt that centres the sum of losses there, and the range of sums to resolve.

All of this only decides how tight an answer is, never whether it is sound, so it works on grouped grid points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordina.accounting.grid import Pmf
from sordina.accounting.roots import falling_root
from sordina.accounting.special import Array

Parts = Sequence[tuple[Pmf, int]]
"""Losses on one grid, and how often each occurs."""

_TAIL = math.log(1e-7)
"""Logarithm of the part of the tilted mass that may lie on either side of the window, and wrap around into it."""
_COARSE = 600
"""Groups of grid points on either side of 0."""
_MOVES = np.geomspace(0.05, 200.0, 40)
"""Changes of the tilt to try for Chernoff's bound, in units of 1/(standard deviation)."""


@dataclass(frozen=True)
class Cumulants:
    """``K(theta) = sum_j k_j ln sum_x p_j(x) e^(theta x)`` and its derivatives, for all parts together."""

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

    def moments(self, theta: float) -> tuple[float, float, float]:
        """``K(theta)``, and the mean ``K'`` and variance ``K''`` of the tilted sum."""
        value = mean = variance = 0.0
        for losses, logs, count in self.parts:
            tilted = logs + theta * losses
            most = float(tilted.max())
            weights = np.exp(tilted - most)
            total = float(weights.sum())
            centre = float(weights @ losses) / total
            value += count * (most + math.log(total))
            mean += count * centre
            variance += count * float(weights @ (losses - centre) ** 2) / total
        return value, mean, variance


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
    """The tilt, and the range of sums to resolve."""

    theta: float
    low: float
    centre: float
    """About where the answer is."""
    high: float
    beyond: float
    """The tilt of Chernoff's bound for what lies above ``high``."""


def window(parts: Parts, log_delta: float | None, epsilon: float | None, tail: float = _TAIL) -> Window:
    """The window around the answer to "which epsilon at this delta", or "which delta at this epsilon".

    Args:
        parts: The losses to add up.
        log_delta: The logarithm of that delta, or None.
        epsilon: That epsilon, or None.
        tail: Logarithm of the part of the tilted mass that may lie on either side.
    """
    rough = Cumulants.of(parts, rough=True)
    step = parts[0][0].step
    reach = sum(count * float(losses[-1] - losses[0]) for losses, _, count in rough.parts)
    gentlest, steepest = 1e-3 / max(reach, step), 50 / step

    def missed(tilt: float) -> float:
        """How far the saddle point at ``tilt`` is from what is asked, falling with the tilt."""
        value, mean, variance = rough.moments(tilt)
        if epsilon is not None:
            return epsilon - mean
        assert log_delta is not None
        # delta at the tilted mean is about e^(K - theta K') / (theta (1 + theta) sqrt(2 pi K'')).
        spread = math.log1p(tilt * math.sqrt(2 * math.pi * variance)) + math.log1p(tilt)
        return value - tilt * mean - spread - log_delta

    saddle = falling_root(missed, gentlest, steepest, 1e-2)
    _, centre, variance = rough.moments(saddle)
    # A little less tilt keeps the answer in sight and heavy right tails out of it.
    theta = saddle - min(0.2 * saddle, 1.5 / math.sqrt(variance)) if variance > 0 else saddle
    value, _, variance = rough.moments(theta)
    if variance == 0:
        return Window(theta, -math.inf, centre, math.inf, theta)
    moves = _MOVES / math.sqrt(variance)
    rights = [(rough.total(theta + move) - value - tail) / move for move in moves]
    lefts = [(value - rough.total(theta - move) + tail) / move for move in moves]
    best = int(np.argmin(rights))
    return Window(theta, max(lefts), centre, rights[best], theta + float(moves[best]))
