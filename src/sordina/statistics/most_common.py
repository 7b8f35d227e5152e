"""The most common values: which ones, by one draw of Gumbel noise; how common, by noise of its own.

Every value's count is its score; where a person has several rows, a person counts once for a value. Adding a person
raises scores by at most 1 and lowers none, so choosing the k best of ``score + Gumbel`` is k times the exponential
mechanism without its factor 2 (Durfee and Rogers 2019). The counts of the chosen are released afterwards with fresh
noise: they are not biased by having been chosen. Half of the budget goes to each.

Values nobody listed cannot be candidates; then the counts of all that occur get noise, those above a threshold are
shown (`sordina.statistics.rows`), and the largest of them are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordina.accounting import Composed, Event
from sordina.accounting import events as happened
from sordina.mechanisms import Exponential
from sordina.statistics.noise import Choice, Family, TotalsNoise
from sordina.statistics.rows import BoundedRows
from sordina.statistics.statistic import Findings, Subject, Terms
from sordina.statistics.totals import Count, findings


@dataclass(frozen=True)
class MostCommon:
    """The ``count`` most common values of a column, with how many rows (or persons) have them.

    Args:
        subject: Which rows; its grouping is the column itself.
        count: How many values.
    """

    subject: Subject
    count: int

    def names(self) -> set[str]:
        """The columns it reads."""
        return self.subject.names

    def _counting(self) -> Count:
        return Count(self.subject, of_persons=True)

    def _parts(self, choice: Choice, terms: Terms) -> tuple[float, TotalsNoise]:
        """The epsilon of each choice, and the noise on the counts of the chosen."""
        m = choice.multiplier
        cells = min(terms.rows_per_person, self.count)
        if choice.family is Family.PURE:
            noise = TotalsNoise(Choice(choice.family, 2 * m), cells, math.sqrt(cells), counts=True)
            return 1 / (2 * m * self.count), noise
        noise = TotalsNoise(Choice(choice.family, math.sqrt(2) * m), cells, math.sqrt(cells), counts=True)
        return math.sqrt(2 / self.count) / m, noise

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        if not self.subject.grouping.known:
            return self._counting().event(choice, terms)
        epsilon, noise = self._parts(choice, terms)
        if choice.family is Family.PURE:
            return Composed((happened.PureDP(epsilon * self.count), noise.event()))
        return Composed((happened.ZeroConcentrated(self.count * epsilon**2 / 8), noise.event()))

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """How much less common than the rightful one a value in the list may be, or its count be off."""
        if not self.subject.grouping.known:
            return self._counting().rows_error(confidence, choice, terms)
        at_one = Choice(choice.family, 1.0)
        epsilon, noise = self._parts(at_one, terms)
        chosen = Exponential(1.0, epsilon, monotonic=True).error_bound(confidence, self.subject.grouping.expected_cells)
        return max(chosen, max(noise.bounds(confidence))) * choice.multiplier

    def scale(self, terms: Terms) -> float:
        """What an error of one row means in the answer's own unit."""
        return 1.0

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        if not self.subject.grouping.known:
            return self._of_unlisted(rows, choice, terms, confidence, rng)
        codes, labels = self.subject.grouping.cells(rows, rows.where(self.subject.where))
        inside = codes >= 0
        pairs = np.unique(np.stack([rows.owners[inside], codes[inside]]), axis=1)
        totals = np.bincount(pairs[1], minlength=len(labels)).astype(np.int64)
        epsilon, noise = self._parts(choice, terms)
        chosen = Exponential(1.0, epsilon, monotonic=True).release_top(totals, self.count, rng)
        noisy = np.rint(noise.release(totals[chosen], rng))
        below, above = noise.bounds(confidence)
        intervals = [(max(0.0, value - above), max(0.0, value + below)) for value in noisy.tolist()]
        notes = ("A count is raised to 0 where noise made it negative (biased there).", *terms.notes())
        return findings(np.maximum(noisy, 0), intervals, tuple(labels[place] for place in chosen), notes)

    def _of_unlisted(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        found = self._counting().answer(rows, choice, terms, confidence, rng)
        best = np.argsort(-np.array(found.values), kind="stable")[: self.count].tolist()
        note = "Counts of values near the end of the list are biased upwards: they are there for their noisy counts."
        return Findings(
            tuple(found.values[place] for place in best),
            tuple(found.intervals[place] for place in best),
            tuple(found.groups[place] for place in best),
            (*found.notes, note),
        )
