"""Lower bounds on epsilon from a test that tells "in" from "out": two rates, a noise family, one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri

from sordina.accounting.events import Event, Gaussian
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.auditing.scores import FloatArray, Scores, auc, lower_rate, lower_rates, upper_rates
from sordina.auditing.trade_off import NoiseFamily, accounted, total_variation
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_delta

# Lower bounds on epsilon from a test that tells "in" from "out", with their confidence (errata 6).
#
# A mechanism is (epsilon, delta)-DP only if every test obeys ``TPR <= e^eps FPR + delta`` and, with the two data sets
# exchanged, ``TNR <= e^eps FNR + delta``. The rates are unknown: Clopper-Pearson bounds TPR from below and FPR from
# above, each at half the risk, and both directions follow from these two numbers. 000 eq. 4.4 uses point estimates,
# which bound nothing. The threshold of the test comes from a tuning part that the bound never sees.
#
# =================  =====================================================  ==========================================
# bound              what it says                                           when it holds
# =================  =====================================================  ==========================================
# `TwoRates`         ``log((TPR - delta)/FPR)``, ``log((TNR - delta)/FNR)``  one independent training run per score
# `GaussianFamily`   the epsilon of the most private mechanism of a family  the same, and the mechanism is in the family
#                    ``{event(s)}`` of noise multipliers that is not refuted
# `IndependentCanaries`  the same from the rate of right guesses            one run, canaries that do not meet
# `one_run.OneRun`   right guesses in one run                               membership drawn at random, nothing else
# =================  =====================================================  ==========================================


@dataclass(frozen=True)
class LowerBound:
    """With probability at least ``confidence`` over the audit, epsilon at ``delta`` is at least ``epsilon``.

    Args:
        method: How it was found.
        assumes: What must be true for it to hold.
        detail: The numbers behind it.
    """

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


def shared_confidences(confidence: float, attacks: int, favourite: int = 0) -> tuple[float, ...]:
    """The confidence of each of ``attacks`` bounds at which all of them hold together at ``confidence`` (Bonferroni).

    Half of the error is the favourite's: with equal shares among many, none could prove much. The favourite must be
    chosen without the rows that are reported on, as thresholds are; then the shares do not depend on what they judge.

    Args:
        confidence: That of all together.
        attacks: How many there are.
        favourite: The index of the one that promises most.

    >>> [round(one, 9) for one in shared_confidences(0.95, 6, favourite=2)]
    [0.995, 0.995, 0.975, 0.995, 0.995, 0.995]
    """
    risk = 1 - check_confidence(confidence)
    if attacks == 1:
        return (confidence,)
    return tuple(1 - risk / 2 if one == favourite else 1 - risk / 2 / (attacks - 1) for one in range(attacks))


def most_promising(bound: Bound, attacks: Sequence[tuple[Scores, Scores]], delta: float, confidence: float) -> int:
    """The index of the attack that would prove most if its reported scores were like its tuning scores.

    Of the reported scores only their number is looked at, members and others together: how many of them are members
    may be what coins decided, and is part of what is judged.

    Args:
        bound: What is to be proven by.
        attacks: The tuning scores and the reported scores of each.
        delta: Where the bound is to be taken.
        confidence: That of all attacks together.
    """

    def promise(one: tuple[Scores, Scores]) -> tuple[float, float]:
        tuning, report = one
        rows, known = (len(each.inside) + len(each.outside) for each in (report, tuning))
        inside = min(max(1, round(rows * len(tuning.inside) / known)), rows - 1)
        again = Scores(np.resize(tuning.inside, inside), np.resize(tuning.outside, rows - inside))
        return bound.epsilon_lower(tuning, again, delta, (1 + confidence) / 2).epsilon, auc(tuning).value

    return max(range(len(attacks)), key=lambda index: promise(attacks[index])) if len(attacks) > 1 else 0


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


# A tighter bound for mechanisms known up to their noise: which noise multipliers do the rates refute?
#
# Gaussian noise of multiplier s gives ``mu = 1/s`` Gaussian DP (Dong, Roth and Su 2022): a test of size a has power at
# most ``Phi(Phi^-1(a) + mu)``. So rates with ``Phi^-1(TPR) - Phi^-1(FPR) > mu`` refute it, and the epsilon of the least
# mu not refuted bounds epsilon from below. One pair of rates tests the whole trade-off curve, where ``log(TPR/FPR)``
# sees one point of it: with n trials the latter cannot exceed about ``log n``, this one can.
#
# For any other family of one noise multiplier (say k steps on Poisson samples) the curve is the envelope of
# ``a -> e^e a + delta_s(e)`` over e, with ``delta_s`` from the accountant. Its deltas are upper bounds, so a multiplier
# is refuted only if it deserves to be. The claim is refuted exactly when the bound passes the claimed epsilon.


def refuted(rates: Rates, event: Event, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> bool:
    """Whether these rates are impossible for ``event``.

    >>> refuted(Rates(np.array([0.9]), np.array([0.01])), Gaussian(1.0))
    True
    >>> refuted(Rates(np.array([0.1]), np.array([0.05])), Gaussian(1.0))
    False
    """
    return float(rates.fpr[0]) < accounted(event, adjacency).least_size(float(rates.tpr[0]))


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
        seen = f"TPR >= {rates.tpr[0]:.4f}, FPR <= {rates.fpr[0]:.4f}"
        return LowerBound(
            epsilon=self._invert(rates, delta),
            delta=delta,
            confidence=confidence,
            method="Gaussian family",
            assumes="independent trials of a mechanism known up to its noise multiplier",
            detail=seen,
        )

    def _invert(self, rates: Rates, delta: float) -> float:
        """The epsilon of the most private mechanism that the rates allow."""
        if self.event is Gaussian:
            mu = float(rates.gap[0])
            return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0
        size, power = float(rates.fpr[0]), float(rates.tpr[0])
        family = NoiseFamily(self.event, self.adjacency)
        return family.epsilon_refuted(lambda trade_off: size < trade_off.least_size(power), delta)


@dataclass(frozen=True)
class IndependentCanaries:
    """The bound from one run whose mechanism is known up to its noise and treats canaries independently.

    Under the hypothesis ``event(s)`` the released sum is a mean plus spherical Gaussian noise. Canaries along different
    coordinates, each in by its own fair coin and sampled by its own, then show independent values. A guess about one of
    them is right with chance ``(power + 1 - size) / 2``, which is at most ``(1 + delta_s(0)) / 2``. So the right
    guesses are dominated by a binomial, and Clopper-Pearson says which s they refute. Where nothing is known of how
    records meet in the mechanism, this does not hold: use `sordina.auditing.one_run.OneRun`.

    Args:
        event: What the mechanism does at a noise multiplier.
        adjacency: Between which data sets.
        threshold: Scores above it are guessed "in". It is fixed beforehand, so that nothing is spent on tuning: a
            likelihood ratio decides at 0.
    """

    event: Callable[[float], Event] = Gaussian
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    threshold: float = 0.0

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """From all scores, those of the tuning part included: nothing is tuned."""
        check_delta(delta), check_confidence(confidence)
        inside = np.concatenate([tuning.inside, report.inside])
        outside = np.concatenate([tuning.outside, report.outside])
        right = int((inside > self.threshold).sum()) + int((outside < self.threshold).sum())
        count = len(inside) + len(outside)
        sure = lower_rate(right, count, 1 - confidence)
        family = NoiseFamily(self.event, self.adjacency)
        return LowerBound(
            epsilon=family.epsilon_where(
                lambda event: sure > 0.5 * (1 + total_variation(event, self.adjacency)), delta
            ),
            delta=delta,
            confidence=confidence,
            method="one run, canaries that do not meet (Clopper-Pearson)",
            assumes="independent canaries in by fair coins; a mechanism known up to its noise multiplier",
            detail=f"{right} of {count} guesses right",
        )
