"""How common each of K values is: direct answers (GRR), unary ones (OUE), and memoised ones (RAPPOR).

A protocol gives every value v a *score* in each answer: 1 if the answer supports v, else 0. With p the chance that the
person's own value is supported and q that of any other, ``(mean score - q) / (p - q)`` estimates the share of v without
bias, and for a true share h its variance is, with n answers,

    (h p (1 - p) + (1 - h) q (1 - q)) / (n (p - q)^2).

Summed over all values it does not depend on the shares, so protocols can be compared before anybody answers.

The same question again and again: memoised answers (RAPPOR; Erlingsson, Pihur and Korolova 2014).

A device draws a *permanent* answer once and keeps it. Every report is a fresh randomisation of the permanent answer,
never of the value, so any number of reports reveals no more than the permanent answer does: the lifetime epsilon.

What memoisation does **not** give, though it is often claimed: a device that draws a new permanent answer when its
value changes shows *that* it changed, which no epsilon bounds (a stream of equal answers cannot come from two permanent
answers that differ). Here a permanent answer is drawn once per *epoch*, at public times, from the value at its
beginning, whether or not the value changed. The lifetime epsilon is shared by the epochs, whatever the values do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import open_integers, settle, source, whole, word
from sordina.privacy import Guarantee, Unit
from sordina.statistics.local.coins import (
    WHOLE,
    Floats,
    Integers,
    LocalEstimate,
    PureAnswer,
    Words,
    column_sums,
    frequency_estimate,
    lie,
    local_epsilon,
    local_guarantee,
    some,
    toss,
    toss_words,
)


class FrequencyProtocol(Protocol):
    """How a value of ``range(values)`` is randomised on a person's device, and what a server makes of the answers."""

    values: int
    epsilon: float

    @property
    def name(self) -> str:
        """As the command line and a plan call it."""
        ...

    @property
    def bits(self) -> float:
        """How many bits one answer needs."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP in the local model."""
        ...

    def event(self) -> events.Event:
        """What one answer is to an accountant."""
        ...

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> NDArray[Any]:
        """One answer per value; without ``generator`` from a secure stream of its own."""
        ...

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """The share of every value among the people who answered, or, with ``population``, among those they stand for.

        Args:
            answers: What `randomize` returned.
            confidence: Of every single interval.
            population: The people are a random sample: the intervals cover what was not sampled, too.
        """
        ...

    def variances(self, shares: Floats, people: int) -> Floats:
        """Of every estimate, the data fixed, if the true shares are ``shares``."""
        ...

    def error(self, people: int) -> float:
        """The root of the mean squared error of a share, on average over the values, before anybody answers."""
        ...


def check_categories(values: object) -> int:
    """``values`` if it is a number of categories."""
    return whole("values", values, least=2)


def open_categories(given: Any, categories: int) -> Integers:
    """The given categories as integers; the refusal does not quote them."""
    integers, _ = open_integers(given)
    flat = integers.reshape(-1)
    if flat.size and (flat.min() < 0 or flat.max() >= categories):
        raise InvalidInput(f"values must be whole numbers from 0 to {categories - 1}.")
    return flat


def two_chances(shares: Floats, own: float, other: float, people: int) -> Floats:  # the formula at the top
    """``(h p (1-p) + (1-h) q (1-q)) / (n (p-q)^2)`` for every share h."""
    spread = shares * own * (1 - own) + (1 - shares) * other * (1 - other)
    variances: Floats = spread / (whole("people", people) * (own - other) ** 2)
    return variances


def average_error(own: float, other: float, values: int, people: int) -> float:
    """The root of the mean over all values: one has the variance of share 1, the others that of share 0."""
    first, rest = two_chances(np.array([1.0, 0.0]), own, other, people)
    return math.sqrt((first + (values - 1) * rest) / values)


def estimate_two_chances(
    counts: Integers, own: float, other: float, people: int, confidence: float, population: bool
) -> LocalEstimate:
    """The estimate from the number of answers that support each value."""
    means = counts / people
    if population:
        variances = means * (1 - means)
    else:
        shares = np.clip((means - other) / (own - other), 0.0, 1.0)
        variances = shares * own * (1 - own) + (1 - shares) * other * (1 - other)
    return frequency_estimate(means, variances, own - other, other, people, confidence)


class OneOfManyValues(PureAnswer):
    """What protocols with two chances share: the formulas at the top, for the fields that each of them states.

    A protocol in which other values are not told by one chance only states ``variances`` and ``error`` itself.
    """

    values: int

    def __post_init__(self) -> None:
        settle(self, values=check_categories(self.values), epsilon=local_epsilon(self.epsilon))
        settle(self, unit=word("unit", Unit, self.unit))

    @property
    def chances(self) -> tuple[float, float]:
        """That an answer supports the person's own value, p, and any other one, q."""
        raise NotImplementedError

    def variances(self, shares: Floats, people: int) -> Floats:
        """Of every estimate, the data fixed, by the formula at the top."""
        return two_chances(shares, *self.chances, people)

    def error(self, people: int) -> float:
        """On average over the values, whatever the shares."""
        return average_error(*self.chances, self.values, people)


@checked
@dataclass(frozen=True)
class GRR(OneOfManyValues):
    """Generalised randomised response: the value itself, or with a chance rounded up any other one.

    *Proof.* An answer y has chance ``1 - L`` for the value y and ``L / (K - 1)`` for any other; their ratio is at most
    ``e^epsilon`` (`coins.lie`). Best for few values: the variance of an empty value is
    ``(e^epsilon + K - 2) / (n (e^epsilon - 1)^2)`` (errata 14 has the others').

    Args:
        values: How many values there are, K.
        epsilon: Of every answer.
        unit: Who answers.
    """

    values: int
    epsilon: float
    unit: Unit = Unit.USER
    name = "grr"

    @property
    def bits(self) -> float:
        """``log2 K``."""
        return math.log2(self.values)

    @property
    def lie(self) -> int:
        """The chance of another value, in 2^-63."""
        return lie(self.epsilon, self.values - 1)

    @property
    def chances(self) -> tuple[float, float]:
        """``p = 1 - L`` and ``q = L / (K - 1)``."""
        return 1 - self.lie / WHOLE, self.lie / WHOLE / (self.values - 1)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Integers:
        """One value per value."""
        own, rng = open_categories(values, self.values), source(generator)
        places = toss(self.lie, own.size, rng).nonzero()[0]
        answers = own.copy()
        answers[places] = (own[places] + rng.integers(1, self.values, size=places.size)) % self.values
        return answers

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """``(c_v / n - q) / (p - q)``."""
        given = open_categories(answers, self.values)
        counts = np.bincount(given, minlength=self.values)
        return estimate_two_chances(counts, *self.chances, some(given), confidence, population)


@checked
@dataclass(frozen=True)
class OUE(OneOfManyValues):
    """Optimised unary encoding (Wang et al. 2017): one bit per value; the own bit is a fair coin, any other is rarer.

    *Proof.* Between values x and x' only their two bits differ in law. The likeliest answer for x against x' has bit x
    set and bit x' not: ``(1/2) (1 - q) / (q (1/2)) = (1 - q) / q <= e^epsilon`` as q is ``1 / (e^epsilon + 1)``,
    rounded up. For an empty value the variance is ``4 e^epsilon / (n (e^epsilon - 1)^2)``, whatever K is.

    Answers are rows of 64-bit words: bit ``64 w + i`` is bit i of word w.

    Args:
        values: How many values there are, K.
        epsilon: Of every answer.
        unit: Who answers.
    """

    values: int
    epsilon: float
    unit: Unit = Unit.USER
    name = "oue"

    @property
    def bits(self) -> float:
        """K."""
        return float(self.values)

    @property
    def lie(self) -> int:
        """The chance of a bit that is not the person's, in 2^-63."""
        return lie(self.epsilon, 1)

    @property
    def chances(self) -> tuple[float, float]:
        """``p = 1/2`` and ``q = L``."""
        return 0.5, self.lie / WHOLE

    @property
    def words(self) -> int:
        """Of an answer."""
        return -(-self.values // 64)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Words:
        """One row of words per value."""
        own, rng = open_categories(values, self.values), source(generator)
        answers = toss_words(self.lie, own.size * self.words, rng).reshape(own.size, self.words)
        if self.values % 64:
            answers[:, -1] &= np.uint64((1 << self.values % 64) - 1)
        rows, bit = np.arange(own.size), np.uint64(1) << (own % 64).astype(np.uint64)
        fair = np.where(rng.integers(0, 2, size=own.size, dtype=np.bool_), bit, np.uint64(0))
        answers[rows, own // 64] = answers[rows, own // 64] & ~bit | fair
        return answers

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """``(c_v / n - q) / (1/2 - q)``."""
        given = open_words(answers, self.words)
        counts = column_sums(given, self.values)
        return estimate_two_chances(counts, *self.chances, some(given), confidence, population)


def open_words(answers: Any, words: int) -> Words:
    """``answers`` as rows of ``words`` words."""
    given = np.asarray(answers)
    if given.dtype != np.uint64 or given.ndim != 2 or given.shape[1] != words:
        raise InvalidInput(f"answers must be rows of {words} words of 64 bits, as `randomize` returns them.")
    return np.ascontiguousarray(given)


# The same question again and again: memoised answers (RAPPOR; Erlingsson, Pihur and Korolova 2014).


@checked
@dataclass(frozen=True)
class Memoised:
    """Repeated reports of one of K values with a lifetime epsilon.

    *Proof.* The permanent answer is `OUE` at ``epsilon / epochs``, and a report flips each of its bits with a chance
    that does not depend on the value: post-processing. One permanent answer per epoch, at public times: they add up to
    ``epsilon``.

    Args:
        values: How many values there are, K.
        epsilon: Of all reports of a person's life.
        report_epsilon: Of one report by itself, below the epsilon of an epoch.
        epochs: How many permanent answers a life has.
        unit: Who answers.
    """

    values: int
    epsilon: float
    report_epsilon: float
    epochs: int = 1
    unit: Unit = Unit.USER
    name = "memoised"

    def __post_init__(self) -> None:
        settle(
            self,
            values=check_categories(self.values),
            epsilon=local_epsilon(self.epsilon),
            report_epsilon=local_epsilon(self.report_epsilon),
            epochs=whole("epochs", self.epochs),
            unit=word("unit", Unit, self.unit),
        )
        if self.report_epsilon >= self.epsilon / self.epochs:
            raise InvalidInput(
                f"one report, epsilon {self.report_epsilon:g}, must reveal less than its epoch's permanent answer, "
                f"epsilon {self.epsilon / self.epochs:g}."
            )

    @property
    def permanent(self) -> OUE:
        """The protocol of a permanent answer."""
        return OUE(self.values, self.epsilon / self.epochs, self.unit)

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP in the local model, for all reports of a life."""
        return local_guarantee(self.epsilon, self.unit)

    def event(self) -> events.Event:
        """All permanent answers, hence all reports."""
        return events.Repeated(self.permanent.event(), self.epochs)

    @property
    def flip(self) -> int:
        """The chance that a bit of the permanent answer is flipped in a report, in 2^-63, rounded up.

        With ``p = 1/2`` and q of the permanent answer a report has ``P = 1/2`` and ``Q = q + f (1 - 2 q)``: its odds
        ``(1 - Q) / Q`` are ``e^report_epsilon`` for ``f = (1/(e^report_epsilon + 1) - q) / (1 - 2 q)``.
        """
        q = self.permanent.lie / WHOLE
        wanted = 1 / (math.exp(self.report_epsilon) + 1)
        return min(WHOLE >> 1, math.ceil((wanted - q) / (1 - 2 * q) * (1 + 2.0**-40) * 2.0**63))

    def memoise(self, values: Any, generator: np.random.Generator | None = None) -> Words:
        """The permanent answers for an epoch: keep them on the device, and show them to nobody.

        Args:
            values: One value per person.
            generator: Where randomness comes from; a secure stream of its own by default.
        """
        return self.permanent.randomize(values, generator)

    def randomize(self, permanent: Any, generator: np.random.Generator | None = None) -> Words:
        """One report per permanent answer."""
        kept = open_words(permanent, self.permanent.words)
        flips = toss_words(self.flip, kept.size, source(generator)).reshape(kept.shape)
        if self.values % 64:
            flips[:, -1] &= np.uint64((1 << self.values % 64) - 1)
        return kept ^ flips

    @property
    def chances(self) -> tuple[float, float]:
        """``p = 1/2`` and Q of a report (see `flip`)."""
        q, f = self.permanent.lie / WHOLE, self.flip / WHOLE
        return 0.5, q + f * (1 - 2 * q)

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """The share of every value, from one report of each person.

        Args:
            answers: What `randomize` returned for one round of reports.
            confidence: Of every single interval.
            population: The people are a random sample.
        """
        given = open_words(answers, self.permanent.words)
        counts = column_sums(given, self.values)
        return estimate_two_chances(counts, *self.chances, some(given), confidence, population)

    def variances(self, shares: Floats, people: int) -> Floats:
        """Of every estimate from one round of reports."""
        return two_chances(shares, *self.chances, people)

    def error(self, people: int) -> float:
        """On average over the values, from one round; many rounds go down to ``permanent.error(people)``, not below."""
        return average_error(*self.chances, self.values, people)
