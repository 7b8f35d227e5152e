"""Which protocol to ask with: the one with the least error for so many values and this epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import settle, word
from sordina.privacy import Guarantee, Unit
from sordina.statistics.local.coins import local_epsilon
from sordina.statistics.local.estimates import Floats, LocalEstimate
from sordina.statistics.local.frequencies import GRR, OUE, FrequencyProtocol, check_categories
from sordina.statistics.local.hashed import OLH, HadamardResponse

PROTOCOLS: dict[str, type[Any]] = {one.name: one for one in (GRR, OUE, OLH, HadamardResponse)}


@checked
@dataclass(frozen=True)
class Frequency:
    """How common each of ``values`` values is, asked with the protocol of least error, or with a named one.

    All errors fall with the square root of the number of people, so one protocol is best for any number. Of protocols
    within 0.1 % of the least error the one with the shortest answers is taken.

    >>> survey = Frequency(values=4, epsilon=2.0)
    >>> survey.name, round(survey.error(people=10_000), 4)
    ('grr', 0.0056)
    >>> answers = survey.randomize([0, 1, 1, 3])
    >>> survey.estimate(answers).values.shape
    (4,)

    Args:
        values: How many values there are; a value is a whole number from 0 on.
        epsilon: Of every answer.
        protocol: grr, oue, olh, hadamard, or auto.
        unit: Who answers.
    """

    values: int
    epsilon: float
    protocol: str = "auto"
    unit: Unit = Unit.USER

    def __post_init__(self) -> None:
        settle(self, values=check_categories(self.values), epsilon=local_epsilon(self.epsilon))
        settle(self, unit=word("unit", Unit, self.unit))
        if self.protocol not in ("auto", *PROTOCOLS):
            raise InvalidInput(f"no protocol is called {self.protocol!r}: choose auto, {', '.join(PROTOCOLS)}.")

    @cached_property
    def chosen(self) -> FrequencyProtocol:
        """The protocol that asks."""
        if self.protocol != "auto":
            return self._made(self.protocol)
        return self.candidates[0]

    @cached_property
    def candidates(self) -> tuple[FrequencyProtocol, ...]:
        """Every protocol, the one to choose first."""
        made = sorted((self._made(name) for name in PROTOCOLS), key=lambda one: one.error(1))
        near = [one for one in made if one.error(1) <= 1.001 * made[0].error(1)]
        first = min(near, key=lambda one: one.bits)
        return (first, *(one for one in made if one is not first))

    def _made(self, name: str) -> FrequencyProtocol:
        made: FrequencyProtocol = PROTOCOLS[name](self.values, self.epsilon, self.unit)
        return made

    @property
    def name(self) -> str:
        """Of the protocol that asks."""
        return self.chosen.name

    @property
    def bits(self) -> float:
        """How many bits one answer needs."""
        return self.chosen.bits

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP in the local model."""
        return self.chosen.guarantee

    def event(self) -> events.Event:
        """What one answer is to an accountant."""
        return self.chosen.event()

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> NDArray[Any]:
        """One answer per value; without ``generator`` from a secure stream of its own."""
        return self.chosen.randomize(values, generator)

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """The share of every value (see `FrequencyProtocol.estimate`)."""
        return self.chosen.estimate(answers, confidence=confidence, population=population)

    def variances(self, shares: Floats, people: int) -> Floats:
        """Of every estimate, if the true shares are ``shares``."""
        return self.chosen.variances(shares, people)

    def error(self, people: int) -> float:
        """The root of the mean squared error of a share, before anybody answers."""
        return self.chosen.error(people)
