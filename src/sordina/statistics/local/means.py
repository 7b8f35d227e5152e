"""The mean of a bounded number: Duchi's two points, the piecewise mechanism, and both mixed (hybrid).

Every answer is a number in the units of the question and an unbiased estimate of the person's own number, so the mean
of the answers estimates the mean of the numbers. Answers are computed from integers that were drawn exactly.

Variances are stated for a number that lies at x in [-1, 1] of its range, in units of half the range:

=========  ==========================================================================  ============================
protocol   variance of an answer                                                       largest
=========  ==========================================================================  ============================
Duchi      ``((e^eps + 1) / (e^eps - 1))^2 - x^2``                                      at x = 0
piecewise  ``x^2 / (e^(eps/2) - 1) + (e^(eps/2) + 3) / (3 (e^(eps/2) - 1)^2)``           at x = +-1
hybrid     piecewise with chance ``1 - e^(-eps/2)``, else Duchi's (eps > 0.61)          never above either
=========  ==========================================================================  ============================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import check_confidence, open_floats, settle, source, whole, word
from sordina.privacy import Guarantee, Unit
from sordina.statistics.local.coins import (
    WHOLE,
    Floats,
    Integers,
    LocalEstimate,
    PureAnswer,
    lie,
    local_epsilon,
    some,
    toss,
)

_FINE = 53
_CELLS = 1 << 40
"""Places of an answer of the piecewise mechanism."""
_MIXED_FROM = 0.61
"""Below this epsilon Duchi's two points are best everywhere (Wang et al. 2019, lemma 3)."""


class MeanProtocol(Protocol):
    """How a number in [low, high] is randomised on a person's device."""

    low: float
    high: float
    epsilon: float

    @property
    def name(self) -> str:
        """As the command line and a plan call it."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP in the local model."""
        ...

    def event(self) -> events.Event:
        """What one answer is to an accountant."""
        ...

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Floats:
        """One answer per number; numbers beyond the range count as its ends."""
        ...

    def estimate(self, answers: Any, *, confidence: float = 0.95) -> LocalEstimate:
        """The mean. The interval covers noise and sampling; for the mean of just these people it is wider than need be.

        Args:
            answers: What `randomize` returned.
            confidence: Of the interval.
        """
        ...

    def variance(self, value: float) -> float:
        """Of the answer of a person with this number."""
        ...

    def error(self, people: int) -> float:
        """The root of the mean squared error of the mean, for the worst numbers, before anybody answers."""
        ...


def check_range(low: object, high: object) -> tuple[float, float]:
    """Two finite numbers in order."""
    ends = [
        float(end) if isinstance(end, (int, float)) and not isinstance(end, bool) else math.nan for end in (low, high)
    ]
    if not all(map(math.isfinite, ends)) or not ends[0] < ends[1] or math.isinf(ends[1] - ends[0]):
        raise InvalidInput(f"a range goes from a number to a larger one, got {low!r} to {high!r}.")
    return ends[0], ends[1]


def shares_of_range(values: Any, low: float, high: float) -> Floats:
    """Where the numbers lie in their range, from 0 to 1."""
    floats, _ = open_floats(values)
    return np.clip((np.clip(floats.reshape(-1), low, high) - low) / (high - low), 0.0, 1.0)


def mean_estimate(answers: Any, confidence: float) -> LocalEstimate:
    """The mean of unbiased answers."""
    floats, _ = open_floats(answers)
    given = floats.reshape(-1)
    people = some(given)
    spread = float(given.std(ddof=1)) if people > 1 else math.inf
    return LocalEstimate(
        np.array([given.mean()]), np.array([spread / math.sqrt(people)]), people, check_confidence(confidence)
    )


class OneNumber(PureAnswer):
    """What protocols for one bounded number share, for the fields that each of them states."""

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = check_range(self.low, self.high)
        settle(self, low=low, high=high, epsilon=local_epsilon(self.epsilon), unit=word("unit", Unit, self.unit))

    def estimate(self, answers: Any, *, confidence: float = 0.95) -> LocalEstimate:
        """The mean of the answers (see `MeanProtocol.estimate`)."""
        return mean_estimate(answers, confidence)


@checked
@dataclass(frozen=True)
class Duchi(OneNumber):
    """Two points beyond the range (Duchi, Jordan and Wainwright 2018): best for small epsilon.

    *Proof.* A number at u in [0, 1] of its range becomes a bit that is 1 with chance u, by 53 exact coins; the bit is
    kept or flipped, flipped with chance L (`coins.lie`). For every number the answer 1 has a chance between L and
    1 - L, and so has 0; their ratio is at most ``(1 - L) / L <= e^epsilon``.

    Args:
        low: The least number.
        high: The largest number.
        epsilon: Of every answer.
        unit: Who answers.
    """

    low: float
    high: float
    epsilon: float
    unit: Unit = Unit.USER
    name = "duchi"

    @property
    def lie(self) -> int:
        """The chance of the other bit, in 2^-63."""
        return lie(self.epsilon, 1)

    @property
    def _reach(self) -> float:
        """How far the answers are from the middle, in half ranges: ``1 / (1 - 2 L)``."""
        return 1 / (1 - 2 * self.lie / WHOLE)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Floats:
        """One of two numbers per number."""
        rng = source(generator)
        places = np.rint(shares_of_range(values, self.low, self.high) * 2.0**_FINE).astype(np.int64)
        bits = rng.integers(0, 1 << _FINE, size=places.size) < places
        bits ^= toss(self.lie, places.size, rng)
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.where(bits, middle + half * self._reach, middle - half * self._reach)

    def variance(self, value: float) -> float:
        """``(C^2 - x^2) half^2``."""
        half = (self.high - self.low) / 2
        x = (min(max(value, self.low), self.high) - self.low) / half - 1
        return (self._reach**2 - x**2) * half**2

    def error(self, people: int) -> float:
        """At the middle of the range."""
        return math.sqrt(self.variance((self.low + self.high) / 2) / whole("people", people))


@checked
@dataclass(frozen=True)
class Piecewise(OneNumber):
    """A window around the number, rarely a place outside (Wang et al. 2019): best for large epsilon.

    *Proof.* The answer is one of 2^40 places. A number picks a window of w places; a place of the window has chance
    ``(1 - L) / w``, any other ``L / (2^40 - w)``; their ratio is at most ``e^epsilon`` (`coins.lie`). The mean place
    is a linear function of where the window begins, which is inverted; where a window begins is rounded, which moves an
    estimate by less than 2^-40 of the range.

    Args:
        low: The least number.
        high: The largest number.
        epsilon: Of every answer.
        unit: Who answers.
    """

    low: float
    high: float
    epsilon: float
    unit: Unit = Unit.USER
    name = "piecewise"

    @cached_property
    def window(self) -> int:
        """w: ``1 / (e^(eps/2) + 1)`` of all places."""
        return max(1, round(_CELLS / (math.exp(min(self.epsilon, 100.0) / 2) + 1)))

    @property
    def lie(self) -> int:
        """The chance of a place outside the window, in 2^-63."""
        return lie(self.epsilon, _CELLS - self.window, self.window)

    @property
    def _line(self) -> tuple[float, float]:
        """The mean place is ``base + slope s`` if the window begins at s."""
        w, miss = self.window, self.lie / WHOLE
        outside = (_CELLS * (_CELLS - 1) / 2 - w * (w - 1) / 2) / (_CELLS - w)
        return (1 - miss) * (w - 1) / 2 + miss * outside, 1 - miss - miss * w / (_CELLS - w)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Floats:
        """One of 2^40 numbers per number."""
        rng = source(generator)
        free = _CELLS - self.window
        start: Integers = np.rint(shares_of_range(values, self.low, self.high) * free).astype(np.int64)
        inside = start + rng.integers(0, self.window, size=start.size)
        outside = rng.integers(0, free, size=start.size)
        outside += np.where(outside >= start, self.window, 0)
        places = np.where(toss(self.lie, start.size, rng), outside, inside)
        base, slope = self._line
        return self.low + (self.high - self.low) * ((places - base) / (slope * free))

    def variance(self, value: float) -> float:
        """From the first two moments of a place."""
        width, miss = self.window / _CELLS, self.lie / WHOLE
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        start = share * (1 - width)

        def moment(power: int) -> float:
            inside = ((start + width) ** power - start**power) / power
            return (1 - miss) * inside / width + miss * (1 / power - inside) / (1 - width)

        slope = self._line[1] * (1 - width)
        return (moment(3) - moment(2) ** 2) / slope**2 * (self.high - self.low) ** 2

    def error(self, people: int) -> float:
        """At an end of the range."""
        return math.sqrt(self.variance(self.high) / whole("people", people))


@checked
@dataclass(frozen=True)
class Hybrid(OneNumber):
    """The piecewise mechanism or Duchi's, by a coin that does not look at the number (Wang et al. 2019).

    *Proof.* Whatever the coin shows, the answer is epsilon-DP.

    Args:
        low: The least number.
        high: The largest number.
        epsilon: Of every answer.
        unit: Who answers.
    """

    low: float
    high: float
    epsilon: float
    unit: Unit = Unit.USER
    name = "hybrid"

    @property
    def share(self) -> float:
        """The chance of the piecewise mechanism."""
        return -math.expm1(-self.epsilon / 2) if self.epsilon > _MIXED_FROM else 0.0

    @property
    def _parts(self) -> tuple[Piecewise, Duchi]:
        return Piecewise(self.low, self.high, self.epsilon), Duchi(self.low, self.high, self.epsilon)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Floats:
        """One number per number."""
        rng = source(generator)
        floats, _ = open_floats(values)
        flat = floats.reshape(-1)
        pieces = toss(int(self.share * 2.0**63), flat.size, rng)
        answers = np.empty(flat.size)
        piecewise, duchi = self._parts
        answers[pieces] = piecewise.randomize(flat[pieces], rng)
        answers[~pieces] = duchi.randomize(flat[~pieces], rng)
        return answers

    def variance(self, value: float) -> float:
        """The mean of both variances, as both are unbiased."""
        first, second = self._parts
        return self.share * first.variance(value) + (1 - self.share) * second.variance(value)

    def error(self, people: int) -> float:
        """At the worst of middle and end: the variance is linear in x^2."""
        worst = max(self.variance(self.high), self.variance((self.low + self.high) / 2))
        return math.sqrt(worst / whole("people", people))


MEANS: dict[str, type[Any]] = {one.name: one for one in (Duchi, Piecewise, Hybrid)}


def mean_protocol(low: float, high: float, epsilon: float, protocol: str = "auto") -> MeanProtocol:
    """The protocol of least worst error, which is hybrid's, or the named one.

    Args:
        low: The least number.
        high: The largest number.
        epsilon: Of every answer.
        protocol: duchi, piecewise, hybrid, or auto.
    """
    if protocol not in ("auto", *MEANS):
        raise InvalidInput(f"no protocol for means is called {protocol!r}: choose auto, {', '.join(MEANS)}.")
    made: MeanProtocol = MEANS["hybrid" if protocol == "auto" else protocol](low, high, epsilon)
    return made
