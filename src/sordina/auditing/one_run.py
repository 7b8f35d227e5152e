"""Auditing in one training run (Steinke, Nasr and Jagielski 2023), for canaries drawn by coins and for random splits.

Each of ``m`` records is in the training set with probability 1/2, independently. The auditor looks at what was
released, guesses for ``r`` of them (in or out) and abstains on the others. If training is (eps, delta)-DP under
add/remove, the number of right guesses obeys (Theorem 3.1 there), with ``W ~ Binomial(r, e^eps/(1 + e^eps))``,

    P[right >= v] <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i .

The largest eps whose right-hand side stays below the risk is the bound.

**Replace-one.** A random split also gives pairs: match members with non-members at random, and which of a pair is in is
a fair coin, independent of the other pairs. Exchanging the two replaces one record, so the theorem holds for guesses on
pairs with the epsilon of replace-one.

**A split of fixed size.** The members of an ordinary run are not drawn by coins: ``m/2`` of the ``m`` rows looked at
are members, uniformly. That is the law of the coins given that ``m/2`` fell on "in". An event of probability p under
the coins has probability at most ``p / P[Binomial(m, 1/2) = m/2]`` under that condition, so dividing the p-value by
this number (about ``sqrt(2 / (pi m))``) keeps it valid, at the cost of a few nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binom

from sordina.auditing.bounds import LowerBound, check_confidence
from sordina.auditing.scores import Scores, lower_rate
from sordina.errors import InvalidInput
from sordina.types import check_delta


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
