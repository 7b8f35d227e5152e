"""Counts, sums, means and variances: noisy totals, and what follows from them.

A number x of the range [low, high] is ``v = (x - low) / (high - low)``. Instead of x and x^2, the *Bernstein
polynomials* of v are summed: ``v, 1 - v`` for a mean, ``(1-v)^2, 2v(1-v), v^2`` for a variance. They are not negative
and add up to 1, so a row changes the totals by 1 in L1 whatever its value, the count is their sum (and as secret as
the rest), and the moments are linear in them. With Laplace noise of scale b on each, a mean is off by
``b sqrt(2 (t^2 + (1-t)^2)) (high - low) / n`` for t its place in the range: less than if n were told and the sum alone
got the noise of a changed row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordina.accounting import Event
from sordina.statistics.noise import (
    UNIT,
    Choice,
    Floats,
    TotalsNoise,
    above_threshold_interval,
    linear_bounds,
    ratio_interval,
)
from sordina.statistics.rows import BoundedRows, Label
from sordina.statistics.statistic import Findings, Pair, Subject, Terms
from sordina.tables.schema import ColumnSchema

Integers = NDArray[np.int64]
_NOT_NEGATIVE = "A count is raised to 0 where noise made it negative (biased there)."
_CLIPPED = "Values outside the schema's range count as its nearest end (biased if there are any); missing ones do not."
_MIDDLE = "Where the noisy count is not positive, the middle of the range stands."


@dataclass(frozen=True)
class Count:
    """How many rows, or how many persons.

    Args:
        subject: Which rows, divided by what.
        of_persons: Whether a person counts once in each cell.
    """

    subject: Subject
    of_persons: bool = False

    def names(self) -> set[str]:
        """The columns it reads."""
        return self.subject.names

    def noise(self, choice: Choice, terms: Terms) -> TotalsNoise:
        """A person has k rows: all in one cell (L1 = L2 = k), or, counted once per cell, one each in k cells."""
        k = terms.rows_per_person
        if not self.of_persons:
            return TotalsNoise(choice, k, k, counts=True)
        cells = min(k, self.subject.grouping.expected_cells) if self.subject.grouping.known else k
        return TotalsNoise(choice, cells, math.sqrt(cells), counts=True)

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        return self.subject.with_threshold(self.noise(choice, terms).event())

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """A bound on the error of one cell, in rows."""
        return max(self.noise(choice, terms).bounds(confidence))

    def scale(self, terms: Terms) -> float:
        """What an error of one row means in the answer's own unit."""
        return 1.0

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        noise = self.noise(choice, terms)
        codes, labels = self.subject.grouping.cells(rows, rows.where(self.subject.where))
        cells = len(labels) if self.subject.grouping.dividers else 1
        inside = codes >= 0
        if self.of_persons:
            pairs = np.unique(np.stack([rows.owners[inside], codes[inside]]), axis=1)
            totals = np.bincount(pairs[1], minlength=cells)
        else:
            totals = np.bincount(codes[inside], minlength=cells)
        noisy = np.rint(noise.release(totals.astype(np.int64), rng))
        notes = (_NOT_NEGATIVE, *terms.notes())
        if self.subject.grouping.known:
            below, above = noise.bounds(confidence)
            pairs_ = [(max(0.0, value - above), max(0.0, value + below)) for value in noisy.tolist()]
            return findings(np.maximum(noisy, 0), pairs_, labels, (*notes, *self.subject.notes()))
        threshold = self.subject.grouping.threshold(noise, terms.rows_per_person, 1)
        shown = _shown(noisy, threshold, labels)
        intervals = [above_threshold_interval(float(noisy[cell]), threshold, noise, confidence) for cell in shown]
        return findings(
            noisy[shown], intervals, tuple(labels[cell] for cell in shown), (*notes, *self.subject.notes(threshold))
        )


@dataclass(frozen=True)
class Sum:
    """How much in all: a row adds at most ``max(|low|, |high|)``.

    Args:
        subject: Which rows, divided by what.
        column: A number with a range.
    """

    subject: Subject
    column: ColumnSchema

    def names(self) -> set[str]:
        """The columns it reads."""
        return self.subject.names | {self.column.name}

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        return self.subject.with_threshold(_noise(choice, terms).event())

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """A bound on the error of one cell, in rows."""
        noise = _noise(choice, terms)
        return noise.bounds(confidence)[0] * (1 if self.subject.grouping.known else math.sqrt(2))

    def scale(self, terms: Terms) -> float:
        """What an error of one row means in the answer's own unit: half the range if the number of rows is public."""
        low, high = _range(self.column)
        return (high - low) / 2 if _all_counted(self.subject, self.column, terms) else max(abs(low), abs(high))

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        notes = (_CLIPPED, *terms.notes())
        low, high = _range(self.column)
        noise = _noise(choice, terms)
        if not self.subject.grouping.known:
            found = _Moments.of(self.subject, self.column, 1, rows, noise, terms, rng)
            below = np.array([low, high])
            far = linear_bounds(np.tile(below, (len(found.labels), 1)), noise, confidence)
            return _centred(found.totals @ below, far, found.labels, (*notes, *found.notes))
        most = self.scale(terms)
        if _all_counted(self.subject, self.column, terms) and terms.rows:
            middle = terms.rows * (low + high) / 2
            values = middle + noise.release(_total_from_middle(rows, self.column), rng) * most
            return _centred(values, np.full(1, noise.bounds(confidence)[0] * most), (), notes)
        codes, labels = self.subject.grouping.cells(rows, rows.where(self.subject.where))
        values = rows.columns[self.column.name]
        inside = (codes >= 0) & ~np.isnan(values)
        steps = np.rint(values[inside] / most * UNIT).astype(np.int64)
        totals = np.zeros(len(labels) if self.subject.grouping.dividers else 1, np.int64)
        np.add.at(totals, codes[inside], np.clip(steps, -UNIT, UNIT))
        noisy = noise.release(totals, rng) * most
        far = np.full(len(noisy), noise.bounds(confidence)[0] * most)
        return _centred(noisy, far, labels, (*notes, *self.subject.notes()))


@dataclass(frozen=True)
class Mean:
    """The mean of a column's values.

    Args:
        subject: Which rows, divided by what.
        column: A number or date with a range.
        sampling: Whether the interval is about the population that the rows are a sample of.
    """

    subject: Subject
    column: ColumnSchema
    sampling: bool = False

    def names(self) -> set[str]:
        """The columns it reads."""
        return self.subject.names | {self.column.name}

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        return self.subject.with_threshold(_noise(choice, terms).event())

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """A bound on the error of one cell, in rows."""
        far = _noise(choice, terms).bounds(confidence)[0]
        return far / 2 if self._counted(terms) else far

    def scale(self, terms: Terms) -> float:
        """What an error of one row means in the answer's own unit."""
        low, high = _range(self.column)
        return (high - low) / self.subject.rows_per_cell(terms.rows)

    def _counted(self, terms: Terms) -> bool:
        return _all_counted(self.subject, self.column, terms) and not self.sampling

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        low, high = _range(self.column)
        noise = _noise(choice, terms)
        if self._counted(terms) and terms.rows:
            width = (high - low) / 2 / terms.rows
            off = noise.release(_total_from_middle(rows, self.column), rng) * width
            values = (low + high) / 2 + off
            return _centred(values, np.full(1, noise.bounds(confidence)[0] * width), (), (_CLIPPED,), low, high)
        found = _Moments.of(self.subject, self.column, 2 if self.sampling else 1, rows, noise, terms, rng)
        ratio, count = found.mean, found.count
        notes = (_CLIPPED, _MIDDLE, *terms.notes(), *found.notes)
        if self.sampling:
            weights = found.mean_gradient()
            spread = np.sqrt(np.maximum(found.variance, 0) / np.maximum(count, 1))
            far = linear_bounds(weights, noise, confidence, spread)
            lows, highs = np.clip(ratio - far, 0, 1), np.clip(ratio + far, 0, 1)
        else:
            lows, highs = ratio_interval(found.totals[:, 1], count, noise, confidence)
        pairs = [(low + a * (high - low), low + b * (high - low)) for a, b in zip(lows, highs, strict=True)]
        return findings(low + ratio * (high - low), pairs, found.labels, notes)


@dataclass(frozen=True)
class Variance:
    """The variance of a column's values (divided by n).

    Args:
        subject: Which rows, divided by what.
        column: A number or date with a range.
    """

    subject: Subject
    column: ColumnSchema

    def names(self) -> set[str]:
        """The columns it reads."""
        return self.subject.names | {self.column.name}

    def event(self, choice: Choice, terms: Terms) -> Event:
        """What a release with ``choice`` is to an accountant."""
        return self.subject.with_threshold(_noise(choice, terms).event())

    def rows_error(self, confidence: float, choice: Choice, terms: Terms) -> float:
        """A bound on the error of one cell, in rows."""
        return _noise(choice, terms).bounds(confidence)[0]

    def scale(self, terms: Terms) -> float:
        """What an error of one row means in the answer's own unit."""
        low, high = _range(self.column)
        return (high - low) ** 2 / self.subject.rows_per_cell(terms.rows)

    def answer(
        self, rows: BoundedRows, choice: Choice, terms: Terms, confidence: float, rng: np.random.Generator
    ) -> Findings:
        """The private answer."""
        low, high = _range(self.column)
        noise = _noise(choice, terms)
        found = _Moments.of(self.subject, self.column, 2, rows, noise, terms, rng)
        far = linear_bounds(found.variance_gradient(), noise, confidence)
        vague = found.count < 4 * noise.bounds(confidence)[0]
        far = np.where(vague, np.inf, far)
        square = (high - low) ** 2
        notes = (_CLIPPED, "A variance is moved into [0, (high - low)^2 / 4] (biased at the ends).")
        return _centred(
            found.variance * square, far * square, found.labels, (*notes, *terms.notes(), *found.notes), 0.0, square / 4
        )


@dataclass(frozen=True)
class _Moments:
    """Noisy Bernstein totals: one row for each cell that is shown, degree + 1 columns."""

    totals: Floats
    labels: tuple[Label, ...]
    notes: tuple[str, ...]

    @staticmethod
    def of(
        subject: Subject,
        column: ColumnSchema,
        degree: int,
        rows: BoundedRows,
        noise: TotalsNoise,
        terms: Terms,
        rng: np.random.Generator,
    ) -> _Moments:
        codes, labels = subject.grouping.cells(rows, rows.where(subject.where))
        values = rows.columns[column.name]
        inside = (codes >= 0) & ~np.isnan(values)
        steps = bernstein(_steps(values[inside], column), degree)
        totals = np.zeros((len(labels) if subject.grouping.dividers else 1, degree + 1), np.int64)
        np.add.at(totals, codes[inside], steps)
        noisy = noise.release(totals, rng)
        if subject.grouping.known:
            return _Moments(noisy, labels, subject.notes())
        threshold = subject.grouping.threshold(noise, terms.rows_per_person, degree + 1)
        shown = _shown(noisy.sum(axis=1), threshold, labels)
        return _Moments(noisy[shown], tuple(labels[cell] for cell in shown), subject.notes(threshold))

    @property
    def count(self) -> Floats:
        return np.asarray(self.totals.sum(axis=1))

    @property
    def _safe_count(self) -> Floats:
        return np.where(self.count > 0, self.count, np.inf)

    @property
    def first(self) -> Floats:
        """The noisy sum of v."""
        degree = self.totals.shape[1] - 1
        return np.asarray(self.totals @ (np.arange(degree + 1) / degree))

    @property
    def mean(self) -> Floats:
        """In [0, 1]; 1/2 where the count is not positive."""
        return np.where(self.count > 0, np.clip(self.first / self._safe_count, 0, 1), 0.5)

    @property
    def variance(self) -> Floats:
        return np.asarray(self.totals[:, 2] / self._safe_count - self.mean**2)

    def mean_gradient(self) -> Floats:
        """Of the mean, by each total."""
        degree = self.totals.shape[1] - 1
        return np.asarray((np.arange(degree + 1) / degree - self.mean[:, None]) / self._safe_count[:, None])

    def variance_gradient(self) -> Floats:
        """Of the variance, by each total: ``(s_j - e2 - 2 t (j/2 - t)) / n`` with s = (0, 0, 1)."""
        square = np.clip(self.totals[:, 2] / self._safe_count, 0, 1)[:, None]
        place = self.mean[:, None]
        weights = np.array([0.0, 0.0, 1.0]) - square - 2 * place * (np.array([0.0, 0.5, 1.0]) - place)
        return np.asarray(weights / self._safe_count[:, None])


def bernstein(steps: Integers, degree: int) -> Integers:
    """Whole numbers of steps that are not negative and add up to `UNIT` in every row, whatever ``steps``.

    Args:
        steps: ``v`` in steps of the grid, from 0 to `UNIT`.
        degree: 1 or 2.
    """
    if degree == 1:
        return np.stack([UNIT - steps, steps], axis=1)
    last = steps * steps // UNIT
    first = (UNIT - steps) * (UNIT - steps) // UNIT
    return np.stack([first, UNIT - first - last, last], axis=1)


def findings(values: Floats, pairs: list[Pair], labels: tuple[Label, ...], notes: tuple[str, ...]) -> Findings:
    """What was found, as plain numbers."""
    plain = tuple((float(low), float(high)) for low, high in pairs)
    return Findings(tuple(float(value) for value in values), plain, labels, notes)


def _centred(
    values: Floats,
    far: Floats,
    labels: tuple[Label, ...],
    notes: tuple[str, ...],
    low: float = -math.inf,
    high: float = math.inf,
) -> Findings:
    """Values with as much on either side, all moved into [low, high] afterwards."""
    ends = np.clip([values - far, values + far], low, high)
    return findings(np.clip(values, low, high), list(zip(*ends.tolist(), strict=True)), labels, notes)


def _all_counted(subject: Subject, column: ColumnSchema, terms: Terms) -> bool:
    """Whether the number of values is public: that of all rows is, and none may be missing."""
    whole = subject.where is None and not subject.grouping.dividers
    return terms.exact_rows and whole and not column.optional and not terms.persons


def _total_from_middle(rows: BoundedRows, column: ColumnSchema) -> Integers:
    """The sum of how far values lie from the middle of the range, in units of half of it: at most 1 for a row."""
    return np.array([(2 * _steps(rows.columns[column.name], column) - UNIT).sum()], np.int64)


def _noise(choice: Choice, terms: Terms) -> TotalsNoise:
    return TotalsNoise(choice, terms.rows_per_person, terms.rows_per_person)


def _shown(noisy: Floats, threshold: float, labels: tuple[Label, ...]) -> list[int]:
    """Unknown cells that are shown, in the order of their labels: any other order might tell of the rows'."""
    return sorted(np.flatnonzero(noisy >= threshold).tolist(), key=lambda cell: str(labels[cell]))


def _range(column: ColumnSchema) -> tuple[float, float]:
    assert column.low is not None
    assert column.high is not None
    return column.low, column.high


def _steps(values: Floats, column: ColumnSchema) -> Integers:
    """The place of each value in its range, in steps; NaN (missing) in the middle."""
    low, high = _range(column)
    half = high / 2 - low / 2
    place = (np.where(np.isnan(values), low / 2 + high / 2, values) / 2 - low / 2) / half
    return np.clip(np.rint(place * UNIT), 0, UNIT).astype(np.int64)
