"""A tighter bound for mechanisms known up to their noise: which noise multipliers do the rates refute?

Gaussian noise of multiplier s gives ``mu = 1/s`` Gaussian DP (Dong, Roth and Su 2022): a test of size a has power at
most ``Phi(Phi^-1(a) + mu)``. So rates with ``Phi^-1(TPR) - Phi^-1(FPR) > mu`` refute it, and the epsilon of the least
mu not refuted bounds epsilon from below. One pair of rates tests the whole trade-off curve, where ``log(TPR/FPR)``
sees one point of it: with n trials the latter cannot exceed about ``log n``, this one can.

For any other family of one noise multiplier (say k steps on Poisson samples) the curve is the envelope of
``a -> e^e a + delta_s(e)`` over e, with ``delta_s`` from the accountant. Its deltas are upper bounds, so a multiplier
is refuted only if it deserves to be. The claim is refuted exactly when the bound passes the claimed epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sordina.accounting.accountants import accountant
from sordina.accounting.events import Event, Gaussian
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.auditing.bounds import LowerBound, Rates, best_threshold, check_confidence, rates_at
from sordina.auditing.scores import FloatArray, Scores
from sordina.types import Adjacency, check_delta

_MULTIPLIERS = tuple(float(value) for value in 0.05 * 1.02 ** np.arange(0, 350))
"""Where a family is tried: 0.05 to about 50 in steps of 2 %, rounded to the side that lowers the bound."""
_EPSILONS = tuple(float(value) for value in np.concatenate([np.arange(0, 2, 0.2), np.arange(2, 12.1, 0.5)]))


@lru_cache(maxsize=100_000)
def _delta(event: Event, epsilon: float, adjacency: Adjacency) -> float:
    return accountant("pld").delta(event, epsilon, adjacency)


def refuted(rates: Rates, event: Event, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> bool:
    """Whether these rates are impossible for ``event``.

    >>> refuted(Rates(np.array([0.9]), np.array([0.01])), Gaussian(1.0))
    True
    >>> refuted(Rates(np.array([0.1]), np.array([0.05])), Gaussian(1.0))
    False
    """
    tests = [(float(power[0]), float(size[0])) for power, size in rates.directions]
    return any(
        power > math.exp(epsilon) * size + _delta(event, epsilon, adjacency)
        for power, size in tests
        for epsilon in _EPSILONS
        if power > math.exp(epsilon) * size
    )


def _smooth(gaps: FloatArray) -> FloatArray:
    """A moving mean over a fifth of the thresholds: the gap is flat in theory, so that its highest point is chance."""
    width = max(1, len(gaps) // 5)
    padded = np.pad(np.maximum(gaps, -5.0), (width // 2, width - 1 - width // 2), mode="edge")
    return np.convolve(padded, np.full(width, 1 / width), mode="valid")


@dataclass(frozen=True)
class GaussianFamily:
    """The bound if the mechanism is ``event(s)`` for some noise multiplier s; plain Gaussian noise by default."""

    event: Callable[[float], Event] = Gaussian
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """The epsilon of the largest noise multiplier that the report's rates allow."""
        check_delta(delta), check_confidence(confidence)
        threshold = best_threshold(tuning, lambda rates: _smooth(rates.gap), confidence)
        rates = rates_at(report, threshold, confidence)
        epsilon, multiplier = self._invert(rates, delta)
        seen = f"TPR >= {rates.tpr[0]:.4f}, FPR <= {rates.fpr[0]:.4f}"
        return LowerBound(
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            method="Gaussian family",
            assumes="independent trials of a mechanism known up to its noise multiplier",
            detail=f"noise multiplier at most {multiplier:.3g} ({seen})",
        )

    def _invert(self, rates: Rates, delta: float) -> tuple[float, float]:
        """(epsilon, largest multiplier that is not refuted)."""
        if self.event is Gaussian:
            mu = float(rates.gap[0])
            return (gaussian_epsilon(1 / mu, delta), 1 / mu) if mu > 0 else (0.0, math.inf)
        low, high = -1, len(_MULTIPLIERS)
        while high - low > 1:
            middle = (low + high) // 2
            hit = refuted(rates, self.event(_MULTIPLIERS[middle]), self.adjacency)
            low, high = (low, middle) if hit else (middle, high)
        if high == len(_MULTIPLIERS):
            return 0.0, math.inf
        return accountant("pld").epsilon(self.event(_MULTIPLIERS[high]), delta, self.adjacency), _MULTIPLIERS[high]
