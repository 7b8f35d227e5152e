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

from sordina.auditing.scores import FloatArray, Scores, lower_rates, upper_rates
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
    """TPR bounded from below and FPR from above, together at the stated confidence; one pair, or arrays of them."""

    tpr: FloatArray
    fpr: FloatArray

    @property
    def directions(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """The two tests: (power, size) of telling in from out, and of telling out from in."""
        return (self.tpr, self.fpr), (1 - self.fpr, 1 - self.tpr)

    @property
    def gap(self) -> FloatArray:
        """``Phi^-1(TPR) - Phi^-1(FPR)``: where positive, the least mu of Gaussian DP that allows these rates."""
        with np.errstate(invalid="ignore"):
            gap = ndtri(self.tpr) - ndtri(self.fpr)
        return np.where(np.isnan(gap), -np.inf, gap)

    def log_ratio(self, delta: float) -> FloatArray:
        """The larger of ``log((TPR - delta)/FPR)`` and ``log((TNR - delta)/FNR)``.

        Where positive, the least epsilon that allows these rates.

        >>> round(math.exp(Rates(np.array(0.5), np.array(0.05)).log_ratio(0.0)), 6)
        10.0
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = [np.log(np.maximum(power - delta, 0.0)) - np.log(size) for power, size in self.directions]
        return np.maximum(*(np.where(np.isnan(one), -np.inf, one) for one in logs))


def rates_at(scores: Scores, thresholds: FloatArray, confidence: float) -> Rates:
    """Clopper-Pearson rates of the tests ``score >= threshold``, each pair jointly at ``confidence``."""
    risk = (1 - confidence) / 2
    hits, alarms = (
        len(values) - np.searchsorted(np.sort(values), thresholds, side="left")
        for values in (scores.inside, scores.outside)
    )
    return Rates(lower_rates(hits, len(scores.inside), risk), upper_rates(alarms, len(scores.outside), risk))


def best_threshold(tuning: Scores, gain: Callable[[Rates], FloatArray], confidence: float) -> FloatArray:
    """The threshold that makes ``gain`` largest on the tuning part; at most 200 candidates, midway between scores."""
    values = np.unique(np.concatenate([tuning.inside, tuning.outside]))
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return values[-1:]
    middles: FloatArray = finite[:-1] + np.diff(finite) / 2
    if len(middles) > 200:
        middles = middles[np.linspace(0, len(middles) - 1, 200).round().astype(int)]
    best = int(np.argmax(gain(rates_at(tuning, middles, confidence))))
    return middles[best : best + 1]


def check_confidence(confidence: float) -> float:
    """Return ``confidence`` if it lies strictly between 0 and 1, else refuse it."""
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie strictly between 0 and 1, got {confidence}. A usual choice is 0.95.")
    return confidence


def shared_confidence(confidence: float, attacks: int) -> float:
    """The confidence of each of ``attacks`` bounds at which all of them hold together at ``confidence`` (Bonferroni).

    >>> round(shared_confidence(0.95, 5), 9)
    0.99
    """
    return 1 - (1 - check_confidence(confidence)) / max(1, attacks)


@dataclass(frozen=True)
class TwoRates:
    """Clopper-Pearson on both rates, both directions, delta included."""

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """``max(log((TPR - delta)/FPR), log((TNR - delta)/FNR), 0)``."""
        check_delta(delta), check_confidence(confidence)
        threshold = best_threshold(tuning, lambda rates: rates.log_ratio(delta), confidence)
        rates = rates_at(report, threshold, confidence)
        return LowerBound(
            epsilon=max(0.0, float(rates.log_ratio(delta)[0])),
            delta=delta,
            confidence=confidence,
            method="two rates (Clopper-Pearson)",
            assumes="every score comes from an independent trial",
            detail=f"TPR >= {rates.tpr[0]:.4f}, FPR <= {rates.fpr[0]:.4f}",
        )
