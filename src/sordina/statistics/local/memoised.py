"""The same question again and again: memoised answers (RAPPOR; Erlingsson, Pihur and Korolova 2014).

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
from typing import Any

import numpy as np

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import settle, source, whole, word
from sordina.privacy import Guarantee, Unit
from sordina.statistics.local.coins import WHOLE, Words, column_sums, local_epsilon, toss_words
from sordina.statistics.local.estimates import Floats, LocalEstimate, some
from sordina.statistics.local.frequencies import (
    OUE,
    average_error,
    check_categories,
    estimate_two_chances,
    local_guarantee,
    open_words,
    two_chances,
)


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
    def _chances(self) -> tuple[float, float]:
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
        return estimate_two_chances(counts, *self._chances, some(given), confidence, population)

    def variances(self, shares: Floats, people: int) -> Floats:
        """Of every estimate from one round of reports."""
        return two_chances(shares, *self._chances, people)

    def error(self, people: int) -> float:
        """On average over the values, from one round; many rounds go down to ``permanent.error(people)``, not below."""
        return average_error(*self._chances, self.values, people)
