"""Between local and central: randomised answers through a shuffler, who is trusted to mix them and nothing else.

Whoever reads the answers cannot tell whose is whose, so each hides among the others and the same answers are worth a
much smaller epsilon (`sordina.accounting.shuffled` has the bound and its proof). Or, the other way round: for the same
epsilon everybody may lie less.

>>> from sordina.privacy import Budget
>>> survey = shuffled_frequency(values=4, people=10_000, budget=Budget(1, 1e-6))
>>> survey.protocol.epsilon > 4
True
>>> survey.guarantee(1e-6).epsilon <= 1
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.accounting.accountants import accountant
from sordina.accounting.shuffled import ShufflePair
from sordina.errors import InvalidInput, Unsupported
from sordina.mechanisms.mechanism import settle, source, whole
from sordina.privacy import Adjacency, Budget, Guarantee, Trust, Unit, check_delta
from sordina.statistics.local.coins import LocalEstimate
from sordina.statistics.local.collection import PROTOCOLS, Frequency
from sordina.statistics.local.frequencies import GRR, FrequencyProtocol, check_categories

_LARGEST = 30.0
"""The largest epsilon of a single answer that is looked for."""


@checked
@dataclass(frozen=True)
class ShuffledAnswers:
    """One answer of each of ``people`` people, by a local protocol, shuffled.

    Args:
        protocol: Any local protocol that is purely epsilon-DP and asks everybody alike.
        people: How many answers are shuffled together: public, and all of them honest.
    """

    protocol: Any
    people: int

    def __post_init__(self) -> None:
        settle(self, people=whole("people", self.people))
        if isinstance(self.protocol, Frequency):
            settle(self, protocol=self.protocol.chosen)
        event = getattr(self.protocol, "event", lambda: None)()
        if not isinstance(event, events.PureDP):
            raise Unsupported(
                "only answers that are purely epsilon-DP, one of each person, are known to gain from shuffling: use a "
                "protocol of sordina.statistics.local such as Frequency or Hybrid."
            )

    @property
    def categories(self) -> int:
        """K for randomised response over K values, whose bound is the smallest; 0 for any other protocol."""
        return self.protocol.values if isinstance(self.protocol, GRR) else 0

    def event(self) -> events.Event:
        """What all answers together are to an accountant, under replace-one neighbours."""
        return events.Shuffled(self.protocol.epsilon, self.people, self.categories)

    def guarantee(self, delta: float) -> Guarantee:
        """Of one person's answer among the others, against whoever sees the shuffled answers.

        Args:
            delta: Above 0; at 0 shuffling gains nothing.
        """
        check_delta(delta)
        epsilon = accountant("pld").epsilon(self.event(), delta, Adjacency.REPLACE_ONE)
        unit: Unit = self.protocol.unit
        return Guarantee(epsilon, delta, Adjacency.REPLACE_ONE, unit, Trust.SHUFFLED)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> NDArray[Any]:
        """Answers as the shuffler passes them on: randomised, then in random order.

        Args:
            values: One of each person.
            generator: Where randomness comes from; a secure stream of its own by default.
        """
        rng = source(generator)
        answers: NDArray[Any] = self.protocol.randomize(values, rng)
        if len(answers) != self.people:
            raise InvalidInput(f"the guarantee is for {self.people} people, not for {len(answers)}.")
        return answers[rng.permutation(len(answers))]

    def estimate(self, answers: Any, **options: Any) -> LocalEstimate:
        """As the protocol's own."""
        found: LocalEstimate = self.protocol.estimate(answers, **options)
        return found

    def error(self) -> float:
        """As the protocol's own."""
        return float(self.protocol.error(self.people))


@checked
def answer_epsilon(budget: Budget, people: int, categories: int = 0) -> float:
    """The largest epsilon of a single answer with which ``people`` shuffled answers stay within ``budget``.

    At least the budget's own epsilon: whatever is shuffled is no worse than what was answered.

    Args:
        budget: For everybody, against whoever sees the shuffled answers.
        people: How many answer.
        categories: K for randomised response over K values, 0 for any protocol.
    """
    low, high = min(budget.epsilon, _LARGEST), _LARGEST
    if budget.delta <= 0:
        return low

    def fits(epsilon: float) -> bool:
        pair = ShufflePair.of(events.Shuffled(epsilon, people, categories))
        return float(pair.deltas(np.array([budget.epsilon]))[0]) <= budget.delta * (1 - 1e-3)

    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    judge = accountant("pld")
    while low > budget.epsilon:  # the accountant rounds up a little more
        event = events.Shuffled(low, people, categories)
        if judge.epsilon(event, budget.delta, Adjacency.REPLACE_ONE) <= budget.epsilon:
            break
        low = max(budget.epsilon, 0.997 * low)
    return low


@checked
def shuffled_frequency(values: int, people: int, budget: Budget, unit: Unit = Unit.USER) -> ShuffledAnswers:
    """How common each of ``values`` values is, with the protocol whose shuffled answers have the least error.

    Args:
        values: How many values there are.
        people: How many answer.
        budget: For everybody, against whoever sees the shuffled answers.
        unit: Who answers.
    """
    values, people = check_categories(values), whole("people", people)
    if not math.isfinite(budget.epsilon):
        raise InvalidInput("a budget without a limit needs no shuffling.")
    epsilons = {True: answer_epsilon(budget, people, values), False: answer_epsilon(budget, people)}
    made: list[FrequencyProtocol] = [
        kind(values, epsilons[kind is GRR], unit) for kind in PROTOCOLS.values()
    ]  # fmt: skip
    return ShuffledAnswers(min(made, key=lambda one: one.error(people)), people)
