"""Lower bounds on epsilon from a test that tells "in" from "out", with their confidence (errata 6).

A mechanism is (epsilon, delta)-DP only if every test obeys ``TPR <= e^eps FPR + delta`` and, with the two data sets
exchanged, ``TNR <= e^eps FNR + delta``. The rates are unknown: Clopper-Pearson bounds TPR from below and FPR from
above, each at half the risk, and both directions follow from these two numbers. 000 eq. 4.4 uses point estimates, which
bound nothing. The threshold of the test comes from a tuning part that the bound never sees.

=================  =====================================================  ==========================================
bound              what it says                                           when it holds
=================  =====================================================  ==========================================
`TwoRates`         ``log((TPR - delta)/FPR)``, ``log((TNR - delta)/FNR)``  one independent training run per score
`GaussianFamily`   the epsilon of the most private mechanism of a family  the same, and the mechanism is in the family
                   ``{event(s)}`` of noise multipliers that is not refuted
`OneRun`           Steinke, Nasr and Jagielski 2023                       one run, membership drawn at random
=================  =====================================================  ==========================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri

from sordina.auditing.scores import FloatArray, Scores, lower_rate, upper_rate
from sordina.errors import InvalidInput
from sordina.types import check_delta


@dataclass(frozen=True)
class LowerBound:
    """With probability at least ``confidence`` over the audit, epsilon at ``delta`` is at least ``epsilon``."""

    epsilon: float
    delta: float
    confidence: float
    method: str
    assumes: str
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture; infinity becomes the string "inf"."""
        return {**vars(self), "epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon}


class Bound(Protocol):
    """Turns scores into a lower bound on epsilon: what is chosen is chosen on ``tuning``, never on ``report``."""

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """The bound."""
        ...


@dataclass(frozen=True)
class Rates:
    """TPR bounded from below and FPR from above, together at the stated confidence."""

    tpr: float
    fpr: float

    @property
    def directions(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The two tests: (power, size) of telling in from out, and of telling out from in."""
        return (self.tpr, self.fpr), (1 - self.fpr, 1 - self.tpr)

    @property
    def gap(self) -> float:
        """``Phi^-1(TPR) - Phi^-1(FPR)``: if positive, the least mu of Gaussian DP that allows these rates."""
        gap = float(ndtri(self.tpr)) - float(ndtri(self.fpr))
        return -math.inf if math.isnan(gap) else gap

    def log_ratio(self, delta: float) -> float:
        """The larger of ``log((TPR - delta)/FPR)`` and ``log((TNR - delta)/FNR)``.

        If positive, the least epsilon that allows these rates.

        >>> round(math.exp(Rates(tpr=0.5, fpr=0.05).log_ratio(0.0)), 6)
        10.0
        """
        best = -math.inf
        for power, size in self.directions:
            if power > delta:
                best = max(best, math.log((power - delta) / size) if size > 0 else math.inf)
        return best


def rates_at(scores: Scores, threshold: float, confidence: float) -> Rates:
    """Clopper-Pearson rates of the test ``score >= threshold``, jointly at ``confidence``."""
    risk = (1 - confidence) / 2
    hits, alarms = int((scores.inside >= threshold).sum()), int((scores.outside >= threshold).sum())
    return Rates(lower_rate(hits, len(scores.inside), risk), upper_rate(alarms, len(scores.outside), risk))


def best_threshold(tuning: Scores, gain: Callable[[Rates], float], confidence: float) -> float:
    """The threshold that makes ``gain`` largest on the tuning part; at most 200 candidates, midway between scores."""
    values = np.unique(np.concatenate([tuning.inside, tuning.outside]))
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return float(values[-1])
    middles: FloatArray = finite[:-1] + np.diff(finite) / 2
    if len(middles) > 200:
        middles = middles[np.linspace(0, len(middles) - 1, 200).round().astype(int)]
    gains = [gain(rates_at(tuning, float(threshold), confidence)) for threshold in middles]
    return float(middles[int(np.argmax(gains))])


def check_confidence(confidence: float) -> float:
    """Return ``confidence`` if it lies strictly between 0 and 1, else refuse it."""
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie strictly between 0 and 1, got {confidence}. A usual choice is 0.95.")
    return confidence


@dataclass(frozen=True)
class TwoRates:
    """Clopper-Pearson on both rates, both directions, delta included."""

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """``max(log((TPR - delta)/FPR), log((TNR - delta)/FNR), 0)``."""
        check_delta(delta), check_confidence(confidence)
        threshold = best_threshold(tuning, lambda rates: rates.log_ratio(delta), confidence)
        rates = rates_at(report, threshold, confidence)
        return LowerBound(
            epsilon=max(0.0, rates.log_ratio(delta)),
            delta=delta,
            confidence=confidence,
            method="two rates (Clopper-Pearson)",
            assumes="every score comes from an independent trial",
            detail=f"TPR >= {rates.tpr:.4f}, FPR <= {rates.fpr:.4f}",
        )
