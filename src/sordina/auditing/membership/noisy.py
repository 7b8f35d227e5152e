"""Noisy neighbours (000 chapter 4): calibrate the loss with neighbours made by noise in the embedding space.

    score(x) = mean_j ppx(f, e(x) + rho_j) - ppx(f, x),   rho_j ~ N(0, sigma^2 I_n)        (eq. 4.5, 4.6)

sigma is the standard deviation: the expected distance ``sigma sqrt(n)`` of eq. 4.7 needs it (errata 7; the thesis
writes ``N(0, sigma I)``). The AUC as a function of sigma has one peak (figure 4.2), so a one-dimensional search finds
it, on a tuning split, never on the samples that the attack is judged on. Cost: ``neighbours`` forward passes, no
training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sordina.auditing.membership.samples import Samples
from sordina.auditing.membership.target import Target
from sordina.auditing.scores import FloatArray, Scores, auc
from sordina.errors import InvalidInput

_GOLDEN = (math.sqrt(5) - 1) / 2
_TO_COMPARE = 3


@dataclass(frozen=True)
class Peak:
    """What the search for sigma saw: every sigma it tried with its AUC on the tuning split, and the best."""

    sigma: float
    tried: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class NoisyNeighbours:
    """The attack; ``sigma = None`` asks for `tuned` first."""

    rng: np.random.Generator
    sigma: float | None = None
    neighbours: int = 10
    name: str = "noisy"
    peak: Peak | None = None

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """How much better the sample fits than its noisy neighbours."""
        if self.sigma is None:
            raise InvalidInput("noisy neighbours need sigma: call tuned(target, members, non_members) first.")
        own = target.losses(samples)
        total: FloatArray = np.zeros_like(own)
        for _ in range(self.neighbours):
            total += target.noisy_losses(samples, self.sigma, self.rng)
        scores: FloatArray = total / self.neighbours - own
        return scores

    def tuned(
        self,
        target: Target,
        members: Samples,
        non_members: Samples,
        low: float = 1e-3,
        high: float = 10.0,
        evaluations: int = 10,
    ) -> NoisyNeighbours:
        """The attack at the sigma whose AUC on these tuning samples is highest. They must not be reported on.

        To compare sigmas, a few neighbours are enough.
        """

        def value(sigma: float) -> float:
            attempt = replace(self, sigma=sigma, neighbours=min(self.neighbours, _TO_COMPARE))
            return auc(Scores(attempt.scores(target, members), attempt.scores(target, non_members))).value

        peak = search_peak(value, low, high, evaluations)
        return replace(self, sigma=peak.sigma, peak=peak)


def search_peak(value: Callable[[float], float], low: float, high: float, evaluations: int = 10) -> Peak:
    """The maximum of a unimodal function of ``log sigma``: a coarse sweep to bracket it, then golden sections.

    The sweep (half of the evaluations) keeps noise on the flat parts, where the AUC is 1/2, from leading astray.

    >>> round(search_peak(lambda sigma: -math.log(sigma) ** 2, 1e-2, 1e3, evaluations=30).sigma, 2)
    1.0
    """
    if not 0 < low < high or evaluations < 4:
        raise InvalidInput(
            f"the search for sigma needs 0 < low < high and 4 evaluations, got {low}, {high}, {evaluations}."
        )
    tried: dict[float, float] = {}

    def at(point: float) -> float:
        point = round(point, 9)
        if point not in tried:
            tried[point] = value(math.exp(point))
        return tried[point]

    grid = [float(point) for point in np.linspace(math.log(low), math.log(high), (evaluations + 1) // 2)]
    best = max(range(len(grid)), key=lambda index: at(grid[index]))
    left, right = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while len(tried) < evaluations and right - left > 1e-3:
        inner, outer = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        left, right = (left, outer) if at(inner) >= at(outer) else (inner, right)
    summit = max(tried, key=lambda point: tried[point])
    return Peak(math.exp(summit), tuple((math.exp(point), tried[point]) for point in sorted(tried)))
