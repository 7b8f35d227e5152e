"""Auditing in one training run: what the number of right guesses about members proves, and how members were drawn.

**The game.** ``m`` records; who of them was trained on was drawn at random (`Membership`). The auditor looks at what
was released and guesses for exactly ``c`` of them, "in" or "out"; ``v`` guesses are right. Which records, and on which
side, may depend on the release in any way; ``c`` may not (it is chosen on a tuning part).

**The theorem** (Mahloujifar, Melis and Chaudhuri 2025, here with coins of any bias and guesses of one side). Let each
record be in by an independent coin of chance ``pi``, let ``p_j`` be the chance of exactly ``j`` right guesses, and let
the mechanism allow no test of power ``b`` a size below ``g(b)`` (`sordina.auditing.trade_off`). Then for every set J,
if all guesses say "in",

    (1 - pi) g(r / pi) <= h,    r = sum_(j in J) j p_j / m,    h = sum_(j in J) (c - j + 1) p_(j-1) / m .       (1)

*Proof.* Fix a record i, the coins ``s`` of all others, and let O be the outputs that guess "in" for i and have j - 1
right guesses among the others, j in J. O does not depend on i's coin. With i in, O means: right at i and j right in
all; with i out: wrong at i and j - 1 right. As a test for i, O has some power ``P(O)`` and size ``Q(O) >= g(P(O))``.
Average over ``s`` and i: ``pi`` times the mean power is r (each outcome with j right guesses is counted j times), and
``(1 - pi)`` times the mean size is h; g is convex, so Jensen's inequality gives (1). With "out" for all, exchange pi
and 1 - pi. With guesses of both sides and fair coins, ``r`` and ``h`` are means over both, and ``g(r) <= h``. []

**From (1) to a bound.** Take J = {i, i+1, ...} for all i. Suppose ``v`` or more right guesses have chance ``t``. The
least total chance that (1) then allows is found greedily: put all of ``t`` on v, and going down give each ``p_(i-1)``
the least that (1) asks for. This is the least: mass above v, or beyond what (1) asks for, can be moved one step down,
which lowers every later r, raises every later h and keeps the total. If the total passes 1, the chance is below ``t``.
Right guesses are then a test of the hypothesis at the risk ``t`` (`refutes`).

**(epsilon, delta).** Here Steinke, Nasr and Jagielski (2023, Theorem 5.2) give another valid bound, with ``W ~
Binomial(c, e^eps / (1 + e^eps))`` and fair coins: ``P[right >= v] <= P[W >= v] + 2 m delta max_i P[v > W >= v-i] / i``.
The smaller of the two counts. With delta = 0 theirs is exact. With many records it is not: for 344 of 350 guesses among
7000 records, at epsilon 2.5 and delta 1e-5, it gives 0.0048, (1) gives 0.00013.

**Splits of fixed size.** If ``k`` of ``m`` records are in, uniformly at random, that is the law of coins given that
``k`` of them fell on "in": what has chance p under coins of any bias has at most ``p / P[Binomial(m, pi) = k]``. With
``pi = k/m`` this is about ``p sqrt(2 pi m (k/m) (1 - k/m))``: the risk is divided by it. It is the price of not having
tossed coins: a mechanism that is private under add/remove may tell more about sets of one size than about all.

**Replace-one.** A random split also gives pairs: match members with non-members at random, and which of a pair is in is
a fair coin, independent of the other pairs. Exchanging the two replaces one record, so everything above holds for
guesses on pairs, with the curve of replace-one, and nothing is divided.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, expit, logit
from scipy.stats import binom

from sordina.auditing.bounds import LowerBound, check_confidence
from sordina.auditing.scores import Scores, lower_rate, lower_rates
from sordina.auditing.trade_off import AnyMechanism, ApproximateTradeOff, HypothesisFamily, TradeOff
from sordina.errors import InvalidInput
from sordina.privacy import check_delta

Drawn = Literal["coins", "fixed", "own"]
Side = Literal["in", "out", "both"]


@dataclass(frozen=True)
class Membership:
    """How it was decided who was trained on.

    ``coins``: every record by a coin of its own. ``fixed``: so many of the records, all choices alike. ``own``: not by
    chance, or nobody knows; then whatever tells the two groups apart looks like leakage, and a bound is a measurement
    that refutes nothing.

    Args:
        drawn: One of the three.
        probability: The coin's chance of "in".
    """

    drawn: Drawn = "own"
    probability: float = 0.5

    def __post_init__(self) -> None:
        if self.drawn not in ("coins", "fixed", "own"):
            raise InvalidInput(f"membership is drawn by coins, fixed or own, got {self.drawn!r}.")
        if not 0 < self.probability < 1:
            raise InvalidInput(f"a coin's chance must lie between 0 and 1, got {self.probability}.")

    @staticmethod
    def of(told: Membership | str) -> Membership:
        """From what users write: ``"coins"``, ``"coins:0.2"``, ``"fixed"``, ``"own"``.

        >>> Membership.of("coins:0.2")
        Membership(drawn='coins', probability=0.2)
        """
        if isinstance(told, Membership):
            return told
        drawn, _, chance = str(told).partition(":")
        try:
            return Membership(drawn, float(chance or 0.5))  # type: ignore[arg-type]
        except ValueError:
            raise InvalidInput(
                f"membership is coins, coins:0.2 (a coin's chance of in), fixed or own; got {told!r}."
            ) from None

    @property
    def by_chance(self) -> bool:
        """Whether a bound above the claim refutes it."""
        return self.drawn != "own"

    @property
    def words(self) -> str:
        """For a sentence."""
        if self.drawn == "coins":
            return f"every record was in by a coin of chance {self.probability:g}"
        split = "members are a uniformly random part of fixed size"
        return split if self.by_chance else f"it would hold if {split}, which nobody vouched for"

    def __str__(self) -> str:
        return f"coins:{self.probability:g}" if self.drawn == "coins" else self.drawn


@dataclass(frozen=True)
class Guesses:
    """What a guesser did.

    Args:
        right: How many guesses were right.
        guesses: How many there were.
        records: Among how many records they were chosen.
        luck: The chance that a guess is right if nothing leaks; 1/2 for guesses of both sides.
        one_sided: Whether all guesses say the same, "in" or "out".
    """

    right: int
    guesses: int
    records: int
    luck: float = 0.5
    one_sided: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.guesses <= self.records:
            raise InvalidInput(f"need right <= guesses <= records, got {self.right}, {self.guesses}, {self.records}.")
        if not self.one_sided and self.luck != 0.5:
            raise InvalidInput("guesses of both sides need fair coins.")


def refutes(found: Guesses, trade_off: TradeOff, risk: float) -> bool:
    """Whether so many right guesses have a chance of at most ``risk`` under the hypothesis.

    Args:
        found: The guesses.
        trade_off: The hypothesis.
        risk: The chance.
    """
    if found.right == 0 or risk <= 0:
        return False
    if isinstance(trade_off, ApproximateTradeOff):
        if trade_off.delta == 0:
            return binomial_tail(found, trade_off) <= risk
        if binomial_tail(found, trade_off) <= risk:
            return True
    return least_total(found, trade_off, risk) > 1


def least_total(found: Guesses, trade_off: TradeOff, tail: float) -> float:
    """The least total chance that (1) allows if ``found.right`` or more right guesses have the chance ``tail``.

    Stops as soon as it passes 1.
    """
    count, luck = found.guesses, found.luck
    # In units of records over guesses: r + h is then the total chance so far.
    scale = count / found.records
    r, h = tail * found.right / count, tail * (count - found.right) / count
    for i in range(found.right - 1, -1, -1):
        if found.one_sided:
            needed = (1 - luck) * trade_off.least_size(scale * r / luck) / scale
        else:
            needed = trade_off.least_size(scale * r) / scale
        if needed <= h:
            break
        r += i / (count - i) * (needed - h)
        h = needed
        if r + h > 1:
            break
    return r + h


def binomial_tail(found: Guesses, claim: ApproximateTradeOff) -> float:
    """Steinke, Nasr and Jagielski's bound; 1 where it does not speak: biased coins with a delta."""
    chance = float(expit(claim.epsilon + logit(found.luck)))
    tail = float(bdtrc(found.right - 1, found.guesses, chance))
    if claim.delta == 0:
        return tail
    if found.luck != 0.5:
        return 1.0
    steps = np.arange(1, found.right + 1)
    below = bdtr(found.right - 1, found.guesses, chance) - _cumulative(found.right - 1 - steps, found.guesses, chance)
    return float(min(1.0, tail + 2 * found.records * claim.delta * np.max(below / steps)))


def _cumulative(counts: NDArray[np.int64], trials: int, chance: float) -> NDArray[np.float64]:
    """``P[Binomial(trials, chance) <= counts]``, 0 below 0."""
    values: NDArray[np.float64] = np.where(counts < 0, 0.0, bdtr(np.maximum(counts, 0), trials, chance))
    return values


def p_value(found: Guesses, trade_off: TradeOff) -> float:
    """The largest chance of so many right guesses under the hypothesis, to a thousandth of itself.

    >>> round(p_value(Guesses(75, 100, 100), ApproximateTradeOff(0.0, 0.0)), 9)
    2.82e-07
    """
    if found.right == 0:
        return 1.0
    low, high = -700.0, 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if least_total(found, trade_off, math.exp(middle)) > 1:
            high = middle
        else:
            low = middle
    other = binomial_tail(found, trade_off) if isinstance(trade_off, ApproximateTradeOff) else 1.0
    return min(math.exp(high), other)


_ANY = AnyMechanism()


def epsilon_at(found: Guesses, delta: float, risk: float, family: HypothesisFamily = _ANY) -> float:
    """The largest epsilon that the guesses refute at ``risk``; 0 if none.

    >>> round(epsilon_at(Guesses(100, 100, 1000), delta=0.0, risk=0.05), 2)
    3.49
    """
    return family.epsilon_refuted(lambda hypothesis: refutes(found, hypothesis, risk), delta)


@dataclass(frozen=True)
class GuessPlan:
    """How the auditor guesses: on which side, for which part of the records, among which part of all records.

    Args:
        side: The highest scores are guessed "in", the lowest "out", or half of the guesses each.
        part: Guesses over records.
        share: The records that are looked at, over all: a delta costs less with fewer.
        balanced: Whether the larger group is cut down to the size of the smaller.
    """

    side: Side
    part: float
    share: float = 1.0
    balanced: bool = False


@dataclass(frozen=True)
class OneRun:
    """The bound from one run, for add/remove neighbours.

    Args:
        membership: How members were drawn; the scores of a fixed split come in random order on each side.
        family: What is known of the mechanism; nothing by default.
    """

    membership: Membership = field(default_factory=lambda: Membership("fixed"))
    family: HypothesisFamily = field(default_factory=AnyMechanism)
    parts: tuple[float, ...] = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
    """Parts of the records to guess on; the best on the tuning part is used."""
    shares: tuple[float, ...] = (1.0, 0.4, 0.15, 0.05)
    """Parts of the records of a fixed split to look at, likewise."""
    coins: InitVar[bool | None] = None
    """The old way to say ``Membership("coins")``."""

    def __post_init__(self, coins: bool | None) -> None:
        if coins is not None:
            told = 'OneRun(coins=...) is now OneRun(Membership("coins")) or OneRun(Membership("fixed")).'
            warnings.warn(told, DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "membership", Membership("coins" if coins else "fixed"))

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """Guess "in" for the highest scores or "out" for the lowest; how many, and on which side, is tuned.

        Fewer guesses than tuned are tried beside (`HEDGE`).
        """
        check_delta(delta), check_confidence(confidence)
        chosen = self.choose(tuning, (len(report.inside), len(report.outside)), delta, 1 - confidence)
        proven = []
        for smaller, weight in HEDGE:
            plan = replace(chosen, part=chosen.part * smaller)
            found, risk = self.guess(report, plan, weight * (1 - confidence))
            proven.append((epsilon_at(found, delta, risk, self.family), plan, found))
        epsilon, plan, found = max(proven, key=lambda one: one[0])
        return LowerBound(
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            method=_method(self.family),
            assumes=f"{self.membership.words}; add/remove neighbours",
            detail=f"{found.right} of {found.guesses} guesses right ({_SIDES[plan.side]}), {found.records} records",
        )

    def guess(self, scores: Scores, plan: GuessPlan, risk: float) -> tuple[Guesses, float]:
        """The guesses of a plan, and the risk that is left for their bound."""
        return self._guesses(plan, Ranking.of(self._looked_at(scores, plan)), risk)

    def choose(self, tuning: Scores, report: tuple[int, int], delta: float, risk: float) -> GuessPlan:
        """The plan that promises most for a report on ``report`` members and others, if it is right as often there."""
        rankings = {balanced: Ranking.of(self._looked_at(tuning, balanced)) for balanced in (False, True)}
        plans, seen, expected, left = [], [], [], []
        for plan in self._plans(*report):
            plans.append(plan)
            seen.append(self._guesses(plan, rankings[plan.balanced], risk)[0])
            sizes = (min(report), min(report)) if plan.balanced else report
            members, others = (max(1, math.floor(size * plan.share)) for size in sizes)
            blank, remaining = self._guesses(plan, Ranking.blank(members, others), risk)
            expected.append(blank)
            left.append(remaining)
        # As often right as the tuning part was, taken at its lower quartile, so that luck with few guesses counts less.
        rates = lower_rates(_array(seen, "right"), _array(seen, "guesses"), 0.25)
        counts = _array(expected, "guesses")
        right = np.floor(counts * rates).astype(np.int64)
        certain = lower_rates(right, counts, np.array(left))
        with np.errstate(divide="ignore"):
            promise = logit(certain) - logit(_array(expected, "luck"))
        shares = np.array([plan.share for plan in plans])
        order = np.argsort(-promise)
        shortlist = [index for share in self.shares for index in order[shares[order] == share][:_SHORTLIST]]

        def bound(index: int) -> float:
            return epsilon_at(replace(expected[index], right=int(right[index])), delta, left[index], self.family)

        return plans[max(map(int, shortlist), key=bound)]

    def _plans(self, members: int, others: int) -> Iterator[GuessPlan]:
        coins = self.membership.drawn == "coins"
        fair = self.membership.probability == 0.5 if coins else members == others
        for balanced in (False,) if fair or coins else (False, True):
            sides: tuple[Side, ...] = ("in", "out", "both") if fair or balanced else ("in", "out")
            for side in sides:
                for part in self.parts:
                    yield from (GuessPlan(side, part, share, balanced) for share in ((1.0,) if coins else self.shares))

    def _guesses(self, plan: GuessPlan, ranking: Ranking, risk: float) -> tuple[Guesses, float]:
        """The guesses on a ranking, and the risk that is left: a split of fixed size is coins under a condition."""
        records, chance = ranking.records, ranking.members / ranking.records
        if self.membership.drawn == "coins":
            chance = self.membership.probability
        else:
            risk *= _point_mass(ranking.members, records)
        count = max(1, math.floor(plan.part * records + 1e-9))
        highest = {"in": count, "out": 0, "both": count // 2}[plan.side]
        right = int(ranking.right_in[highest] + ranking.right_out[count - highest])
        luck = {"in": chance, "out": 1 - chance, "both": 0.5}[plan.side]
        return Guesses(right, count, records, luck, plan.side != "both"), risk

    def _looked_at(self, scores: Scores, plan: GuessPlan | bool) -> Scores:
        """The scores that a plan looks at: the first of each side, which come in random order."""
        balanced, share = (plan.balanced, plan.share) if isinstance(plan, GuessPlan) else (plan, 1.0)
        inside, outside = scores.inside, scores.outside
        if balanced:
            least = min(len(inside), len(outside))
            inside, outside = inside[:least], outside[:least]
        return Scores(*(one[: max(1, math.floor(len(one) * share))] for one in (inside, outside)))


HEDGE = ((1.0, 0.5), (2 / 3, 0.25), (1 / 2, 0.25))
"""The part of the chosen guesses, and its share of the risk: where the right guesses end is known only roughly from a
tuning part, so fewer are tried too. Each bound holds at its share, all together at the whole, so the best may count."""
_SHORTLIST = 3
"""Plans of each share that are compared by their bound; the others were behind by Clopper-Pearson, without delta."""
_SIDES = {"in": 'all "in"', "out": 'all "out"', "both": "both sides"}


@lru_cache(maxsize=10_000)
def _point_mass(members: int, records: int) -> float:
    return float(binom.pmf(members, records, members / records))


def _array(guesses: Sequence[Guesses], name: str) -> NDArray[Any]:
    return np.array([getattr(one, name) for one in guesses])


@dataclass(frozen=True)
class Ranking:
    """Right guesses on the highest and on the lowest scores, for every number of guesses from 0.

    Of equal scores at the edge as few count as right as there could be: whoever breaks ties without a look at
    membership has at least as many, so the bound stays valid.

    Args:
        members: How many members there are.
        records: How many records.
        right_in: At c, how many of the c highest scores are members'.
        right_out: At c, how many of the c lowest are not.
    """

    members: int
    records: int
    right_in: NDArray[np.int64]
    right_out: NDArray[np.int64]

    @staticmethod
    def of(scores: Scores) -> Ranking:
        """The ranking of ``scores``.

        >>> Ranking.of(Scores(np.array([2.0, 1.0]), np.array([1.0, 0.0]))).right_in.tolist()
        [0, 1, 1, 2, 2]
        """
        values = np.concatenate([scores.inside, scores.outside])
        member = np.arange(len(values)) < len(scores.inside)
        highest = member[np.lexsort((member, -values))]
        lowest = ~member[np.lexsort((~member, values))]
        right_in, right_out = (np.concatenate([[0], np.cumsum(right)]) for right in (highest, lowest))
        return Ranking(len(scores.inside), len(values), right_in, right_out)

    @staticmethod
    def blank(members: int, others: int) -> Ranking:
        """Of so many records, with no guess right."""
        nothing = np.zeros(members + others + 1, dtype=np.int64)
        return Ranking(members, members + others, nothing, nothing)


def _method(family: HypothesisFamily) -> str:
    if isinstance(family, AnyMechanism):
        return "one run (Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025)"
    return "one run, mechanism known up to its noise (Mahloujifar, Melis and Chaudhuri 2025)"


@dataclass(frozen=True)
class PairedRun:
    """The bound from one run on the epsilon of replace-one: in each pair, which one was the member?

    Args:
        membership: How members were drawn.
        family: What is known of the mechanism; nothing by default.
    """

    membership: Membership = field(default_factory=lambda: Membership("fixed"))
    family: HypothesisFamily = field(default_factory=AnyMechanism)
    parts: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
    """Parts of the pairs to guess on; the best on the tuning part is used."""

    def epsilon_lower(self, tuning: Scores, report: Scores, delta: float, confidence: float) -> LowerBound:
        """Guess that the higher score is the member's, for the pairs that lie furthest apart."""
        check_delta(delta), check_confidence(confidence)
        pairs = min(len(report.inside), len(report.outside))
        part = max(self.parts, key=lambda one: self._promise(tuning, one, pairs, 1 - confidence))
        found = self._guess(report, part)
        return LowerBound(
            epsilon=epsilon_at(found, delta, 1 - confidence, self.family),
            delta=delta,
            confidence=confidence,
            method=_method(self.family).replace("one run", "one run, in pairs", 1),
            assumes=f"{self.membership.words}; replace-one neighbours",
            detail=f"{found.right} of {found.guesses} guesses right, {found.records} pairs",
        )

    def _promise(self, tuning: Scores, part: float, pairs: int, risk: float) -> float:
        """The rate of right guesses that a report on ``pairs`` pairs would be sure of."""
        seen, count = self._guess(tuning, part), max(1, math.floor(part * pairs + 1e-9))
        return lower_rate(math.floor(count * lower_rate(seen.right, seen.guesses, 0.25)), count, risk)

    def _guess(self, scores: Scores, part: float) -> Guesses:
        """A guess that a tie makes ambiguous counts as wrong."""
        pairs = min(len(scores.inside), len(scores.outside))
        with np.errstate(invalid="ignore"):
            gaps = np.nan_to_num(scores.inside[:pairs] - scores.outside[:pairs], posinf=np.inf, neginf=-np.inf)
        guesses = max(1, math.floor(part * pairs + 1e-9))
        limit = np.sort(np.abs(gaps))[-guesses - 1] if guesses < pairs else 0.0
        return Guesses(int((gaps > limit).sum()), guesses, pairs)
