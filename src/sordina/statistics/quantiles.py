"""Quantiles and the most common values, both chosen by the exponential mechanism.

**One quantile.** A point r of the range has the score ``-|(1 - q) L - q G|``, L rows below it and G at or above it: how
many rows it is off. A row more or less changes that by at most ``max(q, 1 - q)`` (k rows: k times as much). All points
between two neighbouring values have one score, so an interval is chosen, with weight width times
``exp(score / temperature)``, then a point in it. The range is a public grid of 2^20 points (or of the column's known
steps), spaced alike or, for ``scale = "log"``, alike in the logarithm; each row is placed at random within its grid
point (2^20 finer ones), so that many equal values are a steep stretch rather than a jump, and a quantile that falls on
them is found.

**Several.** The middle one is found, the rows are divided at it, and both sides go on with what remains: a row is on
one side only, so a level costs as much as one quantile, and m quantiles cost ``ceil(log2(m + 1))`` levels.

**Intervals.** Points c rows below and c rows above the answer are found likewise, on either side of it. If values lie
about alike densely around the quantile, a point is off by a Laplace-distributed number of rows; c is such that the
errors of all that is involved leave the true quantile outside as rarely as stated. Seven tenths of the budget go to
the answer, the rest to its interval, nothing if no interval is asked for.

**Cost.** Each choice is epsilon-DP, and its privacy loss has a range of epsilon: also ``epsilon^2 / 8``-zCDP (Cesar and
Rogers 2021). Many questions together are cheaper the second way.

The most common values: which ones, by one draw of Gumbel noise; how common, by noise of its own.

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
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sordina.accounting import Composed, Event
from sordina.accounting import events as happened
from sordina.mechanisms import Exponential
from sordina.statistics.noise import Choice, Family, Floats, TotalsNoise
from sordina.statistics.rows import BoundedRows, Label
from sordina.statistics.statistic import Findings, Pair, Subject, Terms
from sordina.statistics.totals import Count, findings
from sordina.tables.schema import ColumnSchema

Integers = NDArray[np.int64]
_BITS = 20
CELLS = 1 << _BITS
"""Points of the grid, where the column's values are not known to be coarser."""
_FINER = 1 << _BITS
ON_VALUES = 0.7
"""Share of the budget that goes to the answers where intervals are asked for."""
_DRAWS = 100_000


@dataclass(frozen=True)
class Quantiles:
    """The values below which a given share of the rows lies.

    Args:
        subject: Which rows, divided by what.
        column: A number or date with a range.
        probabilities: Increasing, strictly between 0 and 1.
        interval: Whether part of the budget goes to intervals.
        single: Whether the answer is one number (a median) rather than one for each probability.
        cells: Points of the public grid over the range.
    """

    subject: Subject
    column: ColumnSchema
    probabilities: tuple[float, ...]
    interval: bool = True
    single: bool = False
    cells: int = CELLS

    def names(self) -> set[str]:
        """The columns it reads."""
        return self.subject.names | {self.column.name}

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        if choice.family is Family.PURE:
            return happened.PureDP(1 / choice.multiplier)
        return happened.ZeroConcentrated(1 / (2 * choice.multiplier**2))

    def costs(self, choice: Choice) -> tuple[float, float]:
        """The epsilon of a level, and of one end of an interval.

        Args:
            choice: With the multiplier m: all together are ``1/m``-DP, or ``1 / (2 m^2)``-zCDP.
        """
        levels = math.ceil(math.log2(len(self.probabilities) + 1))
        ends = 1 if len(self.probabilities) == 1 else 2
        share = ON_VALUES if self.interval else 1.0
        if choice.family is Family.PURE:
            return share / levels / choice.multiplier, (1 - share) / ends / choice.multiplier
        return math.sqrt(4 * share / levels) / choice.multiplier, math.sqrt(4 * (1 - share) / ends) / choice.multiplier

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """A bound on the error of one cell, in rows."""
        level, _ = self.costs(Choice(choice.family, 1.0))
        errors = _rank_errors(self.probabilities, 2 / level)
        far = max(float(np.quantile(np.abs(one), confidence)) for one in errors)
        return far * terms.rows_per_person * choice.multiplier

    def scale(self, terms: Terms) -> float:
        """The error is a share of the rows: 0.01 for a median that is really the quantile 0.49 or 0.51."""
        return 1 / self.subject.rows_per_cell(terms.rows)

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        codes, labels = self.subject.grouping.cells(rows, rows.where(self.subject.where))
        values = rows.columns[self.column.name]
        inside = (codes >= 0) & ~np.isnan(values)
        points = _grid_points(values[inside], self.column, self.cells) << _BITS
        points += rng.integers(0, _FINER, size=len(points))
        codes = codes[inside]
        order = np.lexsort((points, codes))
        points, codes = points[order], codes[order]
        found: list[float] = []
        pairs: list[Pair | None] = []
        for cell in range(len(labels) if self.subject.grouping.dividers else 1):
            own = points[np.searchsorted(codes, cell) : np.searchsorted(codes, cell + 1)]
            values_, ends = self._choose(own, choice, terms.rows_per_person, confidence, rng)
            found += [_value(point, self.column, self.cells) for point in values_]
            pairs += [
                None
                if end is None
                else (_value(end[0], self.column, self.cells), _value(end[1], self.column, self.cells))
                for end in ends
            ]
        notes = (
            "Values outside the schema's range count as its nearest end; missing ones do not.",
            "Intervals hold where values lie about alike densely around the quantile.",
            *terms.notes(),
            *self.subject.notes(),
        )
        return Findings(tuple(found), tuple(pairs), self._labels(labels), notes)

    def _labels(self, labels: tuple[Label, ...]) -> tuple[Label, ...]:
        if not self.subject.grouping.dividers:
            return () if self.single else self.probabilities
        if self.single:
            return labels
        several = [label if isinstance(label, tuple) else (label,) for label in labels]
        return tuple((*label, one) for label in several for one in self.probabilities)

    def _choose(
        self, points: Integers, choice: Choice, most: int, confidence: float, rng: np.random.Generator
    ) -> tuple[list[int], list[tuple[int, int] | None]]:
        """The chosen points of one cell, and the ends of their intervals."""
        level, end = self.costs(choice)
        chosen = [0] * len(self.probabilities)

        def divide(first: int, last: int, low: int, high: int, below: float, above: float, own: Integers) -> None:
            if first > last:
                return
            middle = (first + last) // 2
            share = (self.probabilities[middle] - below) / (above - below)
            counts = np.arange(len(own) + 1)
            scores = -np.abs((1 - share) * counts - share * (len(own) - counts))
            mechanism = Exponential(max(share, 1 - share) * most, level)
            chosen[middle] = point = _chosen(own, low, high, scores, mechanism, rng)
            at = int(np.searchsorted(own, point))
            divide(first, middle - 1, low, point, below, self.probabilities[middle], own[:at])
            divide(middle + 1, last, point, high, self.probabilities[middle], above, own[at:])

        points_in_all = self.cells << _BITS
        divide(0, len(chosen) - 1, 0, points_in_all, 0.0, 1.0, points)
        if not self.interval:
            return chosen, [None] * len(chosen)
        far = _ends(self.probabilities, 2 * most / level, 2 * most / end, confidence)
        mechanism = Exponential(float(most), end)
        edges = [0, *chosen, points_in_all]
        cuts = [0, *np.searchsorted(points, chosen).tolist(), len(points)]
        pairs: list[tuple[int, int] | None] = []
        for place, rows_off in enumerate(far, 1):
            left, right = points[cuts[place - 1] : cuts[place]], points[cuts[place] : cuts[place + 1]]
            down = -np.abs(len(left) - np.arange(len(left) + 1) - rows_off)
            up = -np.abs(np.arange(len(right) + 1) - rows_off)
            low = _chosen(left, edges[place - 1], edges[place], down, mechanism, rng)
            high = _chosen(right, edges[place], edges[place + 1], up, mechanism, rng)
            pairs.append((low, high))
        return chosen, pairs


def _chosen(
    own: Integers, low: int, high: int, scores: Floats, mechanism: Exponential, rng: np.random.Generator
) -> int:
    """A point of (low, high]: ``scores[i]`` is that of the points with i values below them, of which all are >= low."""
    if low >= high:
        return high
    edges = np.concatenate([[low], own, [high]])
    widths = np.diff(edges)
    open_ = np.flatnonzero(widths > 0)
    weights = scores[open_] + mechanism.temperature * np.log(widths[open_])
    place = int(open_[mechanism.release(weights, rng)])
    return int(rng.integers(edges[place] + 1, edges[place + 1] + 1))


@lru_cache(maxsize=64)
def _rank_errors(probabilities: tuple[float, ...], temperature: float) -> tuple[Floats, ...]:
    """By how many rows each quantile is off, simulated; ``temperature`` is that of a score of sensitivity 1."""
    rng = np.random.default_rng(20260103)
    nothing = np.zeros(_DRAWS)
    errors = [nothing] * len(probabilities)

    def divide(first: int, last: int, below: float, above: float, left: Floats, right: Floats) -> None:
        if first > last:
            return
        middle = (first + last) // 2
        share = (probabilities[middle] - below) / (above - below)
        own = rng.laplace(0, temperature * max(share, 1 - share), _DRAWS)
        errors[middle] = own + (1 - share) * left + share * right
        divide(first, middle - 1, below, probabilities[middle], left, errors[middle])
        divide(middle + 1, last, probabilities[middle], above, errors[middle], right)

    divide(0, len(probabilities) - 1, 0.0, 1.0, nothing, nothing)
    return tuple(errors)


@lru_cache(maxsize=64)
def _ends(probabilities: tuple[float, ...], on_value: float, on_end: float, confidence: float) -> tuple[float, ...]:
    """How many rows c from each answer the ends of its interval are sought.

    An end is found d >= 0 rows from the answer, d with a density ``~ exp(-|d - c| / on_end)``; the true quantile is
    outside if the answer is off by more than d towards it. c is the least for which that has half the chance of a miss,
    and one row more, because rows are whole.
    """
    found = []
    for error in _rank_errors(probabilities, on_value):
        off = np.abs(error) / on_end  # the errors are as likely on either side: half of these lie on one
        low, high = 0.0, 1.0
        while _missed(off, high) > 1 - confidence:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _missed(off, middle) > 1 - confidence else (low, middle)
        found.append(high * on_end + 1)
    return tuple(found)


def _missed(off: Floats, sought: float) -> float:
    """The mean chance that d, of scale 1 around ``sought`` and not negative, is less than ``off``."""
    none = math.exp(-sought)
    below = np.exp(np.minimum(off - sought, 0.0)) - none
    beyond = 1 - np.exp(-np.maximum(off - sought, 0.0))
    return float(np.mean(below + beyond) / (2 - none))


def _grid_points(values: Floats, column: ColumnSchema, cells: int) -> Integers:
    """The grid point of each value."""
    assert column.low is not None
    assert column.high is not None
    if column.scale == "log":
        place = np.log1p(values - column.low) / np.log1p(column.high - column.low)
    else:
        place = (values / 2 - column.low / 2) / (column.high / 2 - column.low / 2)
    points: Integers = np.clip(np.rint(place * (cells - 1)), 0, cells - 1).astype(np.int64)
    return points


def _value(point: int, column: ColumnSchema, cells: int) -> float:
    """What a chosen point stands for: all values below it are at most this."""
    assert column.low is not None
    assert column.high is not None
    place = (max(point - 1, 0) >> _BITS) / (cells - 1)
    if column.scale == "log":
        return float(min(column.low + math.expm1(place * math.log1p(column.high - column.low)), column.high))
    return column.low * (1 - place) + column.high * place


# The most common values: which ones, by one draw of Gumbel noise; how common, by noise of its own.


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
