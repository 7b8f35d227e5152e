"""Lower bounds on epsilon from a test that tells "in" from "out": two rates, a noise family, one run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from scipy.special import expit, logit, ndtri
from scipy.stats import binom

from sordina.accounting.accountants import accountant
from sordina.accounting.events import Event, Gaussian
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.auditing.scores import FloatArray, Scores, lower_rate, lower_rates, upper_rates
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
# `OneRun`           Steinke, Nasr and Jagielski 2023                       one run, membership drawn at random
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


# Auditing in one training run (Steinke, Nasr and Jagielski 2023), for canaries drawn by coins and for random splits.
#
# Each of ``m`` records is in the training set with probability 1/2, independently. The auditor looks at what was
# released, guesses for ``r`` of them (in or out) and abstains on the others. If training is (eps, delta)-DP under
# add/remove, the number of right guesses obeys (Theorem 3.1 there), with ``W ~ Binomial(r, e^eps/(1 + e^eps))``,
#
#     P[right >= v] <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i .
#
# The largest eps whose right-hand side stays below the risk is the bound.
#
# **Replace-one.** A random split also gives pairs: match members with non-members at random, and which of a pair is
# in is a fair coin, independent of the other pairs. Exchanging the two replaces one record, so the theorem holds for
# guesses on pairs with the epsilon of replace-one.
#
# **A split of fixed size.** The members of an ordinary run are not drawn by coins: ``m/2`` of the ``m`` rows looked at
# are members, uniformly. That is the law of the coins given that ``m/2`` fell on "in". An event of probability p under
# the coins has probability at most ``p / P[Binomial(m, 1/2) = m/2]`` under that condition, so dividing the p-value by
# this number (about ``sqrt(2 / (pi m))``) keeps it valid, at the cost of a few nats.


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Largest probability of ``right`` or more right guesses if training is (epsilon, delta)-DP.

    >>> round(p_value(canaries=100, guesses=100, right=75, epsilon=0.0, delta=0.0), 9)
    2.82e-07
    """
    if not 0 <= right <= guesses <= canaries:
        raise InvalidInput(f"need right <= guesses <= canaries, got {right}, {guesses}, {canaries}.")
    chance = float(expit(epsilon))
    tail = float(binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - steps, guesses, chance))
    return float(min(1.0, tail + 2 * canaries * delta * np.max(below / steps)))


def epsilon_at(canaries: int, guesses: int, right: int, delta: float, risk: float) -> float:
    """The largest epsilon that ``right`` of ``guesses`` refutes at ``risk``; 0 if none.

    With delta = 0 this is Clopper-Pearson, ``logit(lower rate of right guesses)``; a delta only lowers it.

    >>> round(epsilon_at(canaries=1000, guesses=100, right=100, delta=0.0, risk=0.05), 2)
    3.49
    """
    low, high = 0.0, max(0.0, float(logit(lower_rate(right, guesses, risk)))) if guesses else 0.0
    if delta == 0 or high == 0:
        return high
    if p_value(canaries, guesses, right, 0.0, delta) >= risk:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        refuted = p_value(canaries, guesses, right, middle, delta) < risk
        low, high = (middle, high) if refuted else (low, middle)
    return low


@dataclass(frozen=True)
class Guesses:
    """How a guesser did, and the risk that its bound may take."""

    right: int
    guesses: int
    records: int
    risk: float

    @property
    def certain(self) -> float:
        """Clopper-Pearson lower rate of right guesses: what plans are compared by."""
        return lower_rate(self.right, self.guesses, self.risk) if self.guesses else 0.0

    def epsilon(self, delta: float) -> float:
        """The bound."""
        return epsilon_at(self.records, self.guesses, self.right, delta, self.risk)


@dataclass(frozen=True)
class OneRun:
    """The bound from one run. ``coins``: membership was drawn by coins; else by a random split of fixed size."""

    coins: bool = False
    fractions: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
    """Parts of the records to guess on; the best on the tuning part is used."""

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """Guess "in" for the highest scores and "out" for the lowest; how many, and on which side, is tuned."""
        check_delta(delta), check_confidence(confidence)
        plans = [(part * high, part * (1 - high)) for part in self.fractions for high in (0.0, 0.5, 1.0)]
        best = max(plans, key=lambda plan: self._guess(tuning, plan, 1 - confidence).certain)
        found = self._guess(report, best, 1 - confidence)
        drawn = "by coins" if self.coins else "by a uniformly random split"
        return LowerBound(
            epsilon=found.epsilon(delta),
            delta=delta,
            confidence=confidence,
            method="one run (Steinke, Nasr and Jagielski 2023)",
            assumes=f"membership was drawn {drawn}; add/remove neighbours",
            detail=f"{found.right} of {found.guesses} guesses right, {found.records} records",
        )

    def _guess(self, scores: Scores, plan: tuple[float, float], risk: float) -> Guesses:
        """A guess that a tie makes ambiguous counts as wrong."""
        if not self.coins:
            scores, risk = _balanced(scores, risk)
        every = np.sort(np.concatenate([scores.inside, scores.outside]))
        records = len(every)
        highest, lowest = (int(np.floor(part * records + 1e-9)) for part in plan)
        right = 0
        if highest:
            right += int((scores.inside > (every[-highest - 1] if highest < records else -np.inf)).sum())
        if lowest:
            right += int((scores.outside < (every[lowest] if lowest < records else np.inf)).sum())
        return Guesses(right, highest + lowest, records, risk)


def _balanced(scores: Scores, risk: float) -> tuple[Scores, float]:
    """As many members as non-members (the first of each: rows come shuffled), and the risk left by conditioning."""
    half = min(len(scores.inside), len(scores.outside))
    return Scores(scores.inside[:half], scores.outside[:half]), risk * float(binom.pmf(half, 2 * half, 0.5))


@dataclass(frozen=True)
class PairedRun:
    """The bound from one run on the epsilon of replace-one: in each pair, which one was the member?"""

    fractions: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
    """Parts of the pairs to guess on; the best on the tuning part is used."""

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """Guess that the higher score is the member's, for the pairs that lie furthest apart."""
        check_delta(delta), check_confidence(confidence)
        best = max(self.fractions, key=lambda part: self._guess(tuning, part, 1 - confidence).certain)
        found = self._guess(report, best, 1 - confidence)
        return LowerBound(
            epsilon=found.epsilon(delta),
            delta=delta,
            confidence=confidence,
            method="one run, in pairs (Steinke, Nasr and Jagielski 2023)",
            assumes="membership was drawn by a uniformly random split; replace-one neighbours",
            detail=f"{found.right} of {found.guesses} guesses right, {found.records} pairs",
        )

    def _guess(self, scores: Scores, part: float, risk: float) -> Guesses:
        """A guess that a tie makes ambiguous counts as wrong."""
        pairs = min(len(scores.inside), len(scores.outside))
        gaps = scores.inside[:pairs] - scores.outside[:pairs]
        guesses = max(1, int(np.floor(part * pairs + 1e-9)))
        limit = np.sort(np.abs(gaps))[-guesses - 1] if guesses < pairs else 0.0
        return Guesses(int((gaps > limit).sum()), guesses, pairs, risk)
