"""A question to many people as plain public data, and which protocol to ask it with.

A collection is written once and given to everybody. A device needs nothing else to randomise its answer, and a server
nothing else to read the answers. Answers are one text each, so that any file or queue can carry them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import settle, word
from sordina.privacy import Guarantee, Unit
from sordina.statistics.local.coins import Floats, LocalEstimate, local_epsilon
from sordina.statistics.local.frequencies import GRR, OUE, FrequencyProtocol, check_categories
from sordina.statistics.local.hashed import OLH, HadamardResponse
from sordina.statistics.local.means import MeanProtocol, check_range, mean_protocol
from sordina.statistics.local.strings import CommonStrings, HeavyHitters

# Which protocol to ask with: the one with the least error for so many values and this epsilon.

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


# A question to many people as plain public data: what is asked, by which protocol, at which epsilon.

_FORMAT = 1
_MOST_VALUES = 1_000_000


@dataclass(frozen=True)
class AnswerShare:
    """One line of what was found: a value and its share, or the mean."""

    value: str
    estimate: float
    low: float
    high: float


@checked
@dataclass(frozen=True)
class Collection:
    """One question.

    Args:
        epsilon: Of every answer.
        values: The values to choose from; empty for a number or any text.
        low: The least number, for the mean of a number.
        high: The largest.
        length: How many characters count, for common texts that nobody listed.
        protocol: By name; auto for the one of least error.
    """

    epsilon: float
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    length: int | None = None
    protocol: str = "auto"

    def __post_init__(self) -> None:
        given = [bool(self.values), self.low is not None or self.high is not None, self.length is not None]
        if sum(given) != 1:
            raise InvalidInput("a question is about one thing: values to choose from, the range of a number, or texts.")
        if self.values and (len(self.values) < 2 or len(set(self.values)) != len(self.values)):
            raise InvalidInput("the values to choose from must be two or more, and each named once.")
        if len(self.values) > _MOST_VALUES or not all(isinstance(value, str) for value in self.values):
            raise InvalidInput(f"the values to choose from must be texts, at most {_MOST_VALUES:,}.")
        if self.length is not None and self.protocol not in ("auto", "pem"):
            raise InvalidInput(f"common texts are asked for by pem, not by {self.protocol!r}.")
        object.__setattr__(self, "protocol", self.asked.name)

    @cached_property
    def asked(self) -> Frequency | MeanProtocol | CommonStrings:
        """The protocol."""
        if self.values:
            return Frequency(len(self.values), self.epsilon, self.protocol)
        if self.length is not None:
            return CommonStrings(self.length, self.epsilon)
        low, high = check_range(self.low, self.high)
        return mean_protocol(low, high, self.epsilon, self.protocol)

    def event(self) -> events.Event:
        """What one answer is to an accountant."""
        return self.asked.event()

    def to_json(self) -> str:
        """For a file; `from_json` reads it."""
        facts = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
        return json.dumps({"format": _FORMAT, **facts}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Collection:
        """What `to_json` wrote; refuses anything else.

        Args:
            text: The content of a file.
        """
        try:
            facts = json.loads(text)
            if facts.pop("format") != _FORMAT:
                raise InvalidInput("the question was written by another version.")
            facts["values"] = tuple(facts.get("values", ()))
            return cls(**facts)
        except (TypeError, KeyError, AttributeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InvalidInput("this is no question of `sordina collect plan`.") from error

    def read(self, texts: Sequence[str]) -> Any:
        """People's values as the protocol takes them; what does not fit is refused by its row, and not quoted.

        Args:
            texts: One of each person.
        """
        if self.values:
            places = {value: place for place, value in enumerate(self.values)}
            found = np.fromiter((places.get(text.strip(), -1) for text in texts), np.int64, len(texts))
            _refuse_rows(found < 0, "is none of the values to choose from")
            return found
        if self.length is not None:
            return [text.strip() for text in texts]
        numbers = np.fromiter((_number(text) for text in texts), float, len(texts))
        _refuse_rows(~np.isfinite(numbers), "is no number")
        return numbers

    def randomize(self, texts: Sequence[str], generator: np.random.Generator | None = None) -> list[str]:
        """One answer per value, as text.

        Args:
            texts: One value of each person.
            generator: Where randomness comes from; a secure stream of its own by default.
        """
        return self.write(self.asked.randomize(self.read(texts), generator))

    def write(self, answers: Any) -> list[str]:
        """Answers as texts: numbers as they are, rows of words in hexadecimal, pairs with a colon between.

        Args:
            answers: Of the protocol.
        """
        if answers.dtype == np.uint64:
            return [row.astype(">u8").tobytes().hex() for row in answers]
        if answers.ndim == 2:
            return [":".join(map(str, row)) for row in answers.tolist()]
        return [repr(answer) for answer in answers.tolist()]

    def parse(self, texts: Sequence[str]) -> Any:
        """The answers that `write` wrote; what is none is refused by its row.

        Args:
            texts: One answer of each person.
        """
        if not texts:
            raise InvalidInput("there are no answers to estimate from.")
        answers: list[Any] = []
        try:
            answers.extend(self._answer(text.strip()) for text in texts)
            return np.array(answers)
        except (ValueError, OverflowError):
            raise InvalidInput(f"row {len(answers) + 1} is no answer to this question ({self.protocol}).") from None

    def _answer(self, text: str) -> Any:
        if self.protocol in ("oue", "pem"):
            words = np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64)
            if len(words) != (5 if self.protocol == "pem" else -(-len(self.values) // 64)):
                raise ValueError
            return words
        if self.protocol == "olh":
            first, second = text.split(":")
            return int(first), int(second)
        return int(text) if self.values else float(text)

    def estimate(
        self, texts: Sequence[str], *, confidence: float = 0.95, population: bool = False, consistent: bool = False
    ) -> tuple[AnswerShare, ...]:
        """What the answers say.

        Args:
            texts: One answer of each person, as `randomize` returned them.
            confidence: Of every single interval.
            population: The people are a random sample: cover what was not sampled, too.
            consistent: Make shares that are not negative and sum to one, which biases them a little.
        """
        answers = self.parse(texts)
        if consistent and not self.values:
            raise InvalidInput("only the shares of listed values can be made consistent.")
        names: Sequence[str]
        if isinstance(self.asked, Frequency):
            names, found = self.values, self.asked.estimate(answers, confidence=confidence, population=population)
            found = found.consistent() if consistent else found
        elif isinstance(self.asked, CommonStrings):
            hitters: HeavyHitters = self.asked.estimate(answers, confidence=confidence)
            names, found = hitters.strings, hitters.shares
        else:
            names, found = ("mean",), self.asked.estimate(answers, confidence=confidence)
        return _lines(names, found)


def _lines(names: Sequence[str], found: LocalEstimate) -> tuple[AnswerShare, ...]:
    columns = (found.values.tolist(), found.low.tolist(), found.high.tolist())
    return tuple(AnswerShare(*line) for line in zip(names, *columns, strict=True))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _refuse_rows(bad: Any, why: str) -> None:
    rows = np.flatnonzero(bad)
    if rows.size:
        more = f" (and {rows.size - 1} more)" if rows.size > 1 else ""
        raise InvalidInput(f"the value in row {rows[0] + 1}{more} {why}.")
