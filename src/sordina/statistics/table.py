"""A table, its schema and a budget: ask, see what it costs and how good it will be, then release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordina import random
from sordina.accounting import Composed, Event
from sordina.accounting.ledger import Ledger
from sordina.errors import BudgetRefused, InvalidInput
from sordina.mechanisms.mechanism import check_confidence
from sordina.privacy import Adjacency, Budget, Guarantee, Unit, check_epsilon, format_up
from sordina.progress import Progress, silent
from sordina.statistics.filters import parse_condition
from sordina.statistics.noise import Choice
from sordina.statistics.quantiles import MostCommon, Quantiles
from sordina.statistics.rows import BoundedRows, Divider, Grouping, RowReader
from sordina.statistics.statistic import Answer, Statistic, Subject, cost, refuse_spent, share_budget
from sordina.statistics.table_arguments import (
    bin_edges,
    checked_budget,
    checked_probabilities,
    checked_weight,
    grid_points,
    public_terms,
    whole_number,
    with_person,
)
from sordina.statistics.totals import Count, Mean, Sum, Variance
from sordina.tables.readers import Source, header
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema

_ROUNDING = 1 + 1e-9
_THRESHOLD_SHARE = 0.1
"""Share of the budget's delta that each question with unknown groups takes."""
_WIDEST = 1e150
"""No range is wider: its square would not be a number."""
_BEFORE_QUESTIONS = 2
"""Steps of a release before its first question: sharing the budget, reading the table."""


@dataclass(frozen=True)
class TableQuery:
    """A question to a table. Nothing is read or spent before `release`.

    Args:
        table: Whose rows.
        statistic: What is asked.
        epsilon: What the question may cost by itself; without it, all that is left of the table's budget.
    """

    table: Table = field(repr=False)
    statistic: Statistic
    epsilon: float | None = None

    @property
    def text(self) -> str:
        """The question as a person would write it."""
        return self.statistic.subject.text

    @property
    def choice(self) -> Choice:
        """Family and multiplier of the noise, if it is asked alone and now."""
        return self.table.choices([self], epsilon=self.epsilon)[0]

    @property
    def event(self) -> Event:
        """What asking it alone is to an accountant."""
        return self.statistic.event(self.choice, self.table.terms)

    @property
    def cost(self) -> Guarantee:
        """What asking it alone costs."""
        return self.table.guarantee((self.event,))

    def error(self, confidence: float = 0.95, rows: int | None = None) -> float:
        """A bound on the error by noise of each single value, kept with probability ``confidence``; costs nothing.

        Counts: rows. Sums, means, variances: the column's unit (squared), wherever in the range they lie. Quantiles:
        share of the rows by which the answer's rank is off. Most common: by how much a value in the list may be less
        common than one outside, and how far its count is off. Means, variances and quantiles need the number of rows,
        shared alike among the groups.

        Args:
            confidence: Such as 0.95.
            rows: About how many rows there are; the table's public ``rows`` if None.
        """
        return self.table.error(self, self.choice, confidence, rows)

    def release(self, confidence: float = 0.95) -> Answer:
        """Ask it: book the cost, read the table, draw the noise.

        Args:
            confidence: Of each interval.
        """
        return self.table.release(self, confidence=confidence)[0]


class Table:
    """Rows about persons, what is public about them, and a budget for all questions together.

    Args:
        source: Path of a CSV or Parquet file, or a pandas or polars frame; only its header is read before a release.
        schema: What is public: a `Schema`, plain data of that form, or the path of a TOML file.
        budget: What all releases of this object may cost together.
        ledger: Where releases are booked besides; a `Ledger` or its path.
        dataset_budget: The ledger's name of the data set.
        person: The column that says whose row it is; the schema's if None.
        rows_per_person: How many rows of one person count at most; the schema's if None, else 1.
        rows: About how many rows there are, if that is public, to state errors with. The schema's ``rows`` is exact and
            may be divided by.
        seed: Makes the noise repeatable, for tests; answers are then not releasable. A generator will do, too.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.

    >>> import pandas, sordina as sd
    >>> frame = pandas.DataFrame({"age": [30, 40, 50, 60] * 250, "ward": ["A", "B"] * 500})
    >>> schema = {"columns": {"age": {"kind": "number", "low": 0, "high": 100},
    ...                       "ward": {"kind": "category", "values": ["A", "B"]}}}
    >>> table = sd.statistics.Table(frame, schema=schema, budget=sd.Budget(1, 1e-6), rows=1000, seed=1)
    >>> question = table.mean("age", by="ward")
    >>> round(question.error(0.95), 2)
    0.6
    >>> answer = question.release()
    >>> [abs(answer.value[ward] - true) < 2 for ward, true in (("A", 40), ("B", 50))]
    [True, True]
    """

    def __init__(
        self,
        source: Source,
        *,
        schema: Schema | str | Path | dict[str, Any],
        budget: Budget | tuple[float, float],
        ledger: Ledger | str | Path | None = None,
        dataset_budget: str | None = None,
        person: str | None = None,
        rows_per_person: int | None = None,
        rows: int | None = None,
        seed: int | np.random.Generator | None = None,
        encoding: str = "utf-8",
        separator: str = ",",
    ) -> None:
        if (ledger is None) != (dataset_budget is None):
            raise InvalidInput("a ledger and the name of its data set (dataset_budget) go together.")
        self.budget = checked_budget(budget)
        self.schema = with_person(Schema.load(schema), person, rows_per_person)
        self.terms = public_terms(self.schema, rows)
        self._header = header(source, encoding=encoding, separator=separator)
        self._ledger = ledger if ledger is None or isinstance(ledger, Ledger) else Ledger(ledger)
        self._dataset = dataset_budget
        if self._ledger is not None and dataset_budget is not None:
            self._ledger.dataset(dataset_budget)
        self._rng = seed if isinstance(seed, np.random.Generator) else random.generator(seed)
        self._reader = RowReader(source, self.schema, self._rng, encoding=encoding, separator=separator)
        self._events: tuple[Event, ...] = ()
        if self.schema.person is not None:
            self._present(self.schema.person)

    def __copy__(self) -> Table:
        raise InvalidInput("a table cannot be copied: its budget would count twice. Make a new Table, with a ledger.")

    # ---- questions

    def count(
        self,
        *,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        persons: bool = False,
        epsilon: float | None = None,
    ) -> TableQuery:
        """How many rows.

        Args:
            where: A condition such as ``"age >= 65 and ward == 'A'"``; see `sordina.statistics.filters`.
            by: One or several columns to divide by. Values that the schema does not list are found at a delta.
            persons: Count persons, each once in every group, instead of rows.
            epsilon: What it may cost by itself.
        """
        if persons and not self.terms.persons:
            raise InvalidInput("to count persons, say which column tells them apart: person=.")
        text = "count(persons)" if persons else "count"
        return self._query(Count(self._subject(text, where, by), persons), epsilon)

    def sum(
        self,
        column: str,
        *,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        epsilon: float | None = None,
    ) -> TableQuery:
        """How much in all.

        Args:
            column: A number with a range.
            where: See `count`.
            by: See `count`.
            epsilon: See `count`.
        """
        found = self._measured(column, dates=False)
        return self._query(Sum(self._subject(f"sum({column})", where, by), found), epsilon)

    def mean(
        self,
        column: str,
        *,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        sampling: bool = False,
        epsilon: float | None = None,
    ) -> TableQuery:
        """The mean of the values that are not missing.

        Args:
            column: A number or a date (days since 1970) with a range.
            where: See `count`.
            by: See `count`.
            sampling: Whether the interval shall also hold the error of drawing the rows from a population.
            epsilon: See `count`.
        """
        found = self._measured(column)
        return self._query(Mean(self._subject(f"mean({column})", where, by), found, bool(sampling)), epsilon)

    def variance(
        self,
        column: str,
        *,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        epsilon: float | None = None,
    ) -> TableQuery:
        """The variance of the values that are not missing.

        Args:
            column: A number or a date with a range.
            where: See `count`.
            by: See `count`.
            epsilon: See `count`.
        """
        found = self._measured(column)
        return self._query(Variance(self._subject(f"variance({column})", where, by), found), epsilon)

    def quantiles(
        self,
        column: str,
        probabilities: Sequence[float] = (0.25, 0.5, 0.75),
        *,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        interval: bool = True,
        step: float | None = None,
        epsilon: float | None = None,
    ) -> TableQuery:
        """The values below which given shares of the rows lie.

        Args:
            column: A number or a date with a range.
            probabilities: Strictly between 0 and 1.
            where: See `count`.
            by: See `count`; groups must be listed in the schema.
            interval: Whether three tenths of the budget go to intervals.
            step: All values are ``low`` plus whole multiples of this, if that is public (1 for whole numbers): answers
                then are, too, and better. Days, for dates.
            epsilon: See `count`.
        """
        shares = checked_probabilities(probabilities)
        text = f"quantiles({column}, {', '.join(f'{one:g}' for one in shares)})"
        return self._query(self._quantiles(text, column, shares, where, by, interval, step), epsilon)

    def median(
        self,
        column: str,
        *,
        where: str | None = None,
        by: str | Sequence[str] | None = None,
        interval: bool = True,
        step: float | None = None,
        epsilon: float | None = None,
    ) -> TableQuery:
        """The median.

        Args:
            column: A number or a date with a range.
            where: See `count`.
            by: See `quantiles`.
            interval: See `quantiles`.
            step: See `quantiles`.
            epsilon: See `count`.
        """
        statistic = self._quantiles(f"median({column})", column, (0.5,), where, by, interval, step)
        return self._query(replace(statistic, single=True), epsilon)

    def histogram(
        self,
        column: str,
        bins: int | Sequence[float] = 10,
        *,
        where: str | None = None,
        epsilon: float | None = None,
    ) -> TableQuery:
        """How many rows have each listed value, or lie in each bin of a number or date.

        Args:
            column: A category, number or date.
            bins: For numbers and dates: how many bins of equal width, or their edges.
            where: See `count`.
            epsilon: See `count`.
        """
        found = self._column(column)
        divider = Divider(found)
        if found.kind in (ColumnKind.NUMBER, ColumnKind.DATE):
            divider = Divider(found, bin_edges(self._measured(column), bins))
        subject = replace(self._subject(f"histogram({column})", where, None), grouping=self._grouping((divider,)))
        return self._query(Count(subject), epsilon)

    def crosstab(self, *columns: str, where: str | None = None, epsilon: float | None = None) -> TableQuery:
        """How many rows have each combination of values of two or more categories.

        Args:
            columns: Categories.
            where: See `count`.
            epsilon: See `count`.
        """
        if len(columns) < 2:
            raise InvalidInput("a cross table needs two columns or more: crosstab('sex', 'ward').")
        subject = self._subject("count", where, columns)
        text = f"crosstab({', '.join(columns)})" + ("" if where is None else f" where {where}")
        return self._query(Count(replace(subject, text=text)), epsilon)

    def most_common(
        self, column: str, k: int = 10, *, where: str | None = None, epsilon: float | None = None
    ) -> TableQuery:
        """The ``k`` most common values of a column, with their counts (of persons, if the table has persons).

        Args:
            column: A category or a text. Values that the schema does not list are found at a delta.
            k: How many.
            where: See `count`.
            epsilon: See `count`.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise InvalidInput("most_common needs k, a whole number of at least 1.")
        subject = self._subject("count", where, column)
        listed = len(subject.grouping.labels) if subject.grouping.known else math.inf
        if k > listed:
            raise InvalidInput(f"most_common({column}, {k}): the schema lists only {listed} values.")
        text = f"most_common({column}, {k})" + ("" if where is None else f" where {where}")
        return self._query(MostCommon(replace(subject, text=text), int(k)), epsilon)

    # ---- costs

    @property
    def unit(self) -> Unit:
        """Whose presence is hidden: a person's where a column tells persons apart, else a row's."""
        return Unit.USER if self.terms.persons else Unit.RECORD

    @property
    def spent(self) -> Guarantee:
        """What all releases of this object have cost together."""
        return self.guarantee(self._events)

    def guarantee(self, events: tuple[Event, ...]) -> Guarantee:
        """What ``events`` cost together at the budget's delta.

        Args:
            events: Of releases.
        """
        return Guarantee(cost(events, self.budget.delta), self.budget.delta, Adjacency.ADD_REMOVE, self.unit)

    def choices(
        self,
        queries: Sequence[TableQuery],
        *,
        weights: Sequence[float] | None = None,
        equal_error: bool = False,
        epsilon: float | None = None,
    ) -> tuple[Choice, ...]:
        """How ``queries`` would share what is left of the budget, or ``epsilon`` of it.

        Args:
            queries: Asked together.
            weights: How much the squared error of each counts.
            equal_error: Whether all shall have the same error, counted in rows.
            epsilon: What they may cost together.
        """
        statistics = tuple(query.statistic for query in queries)
        budget, spent = self.budget, self._events
        if epsilon is not None:
            refuse_spent(budget, spent)
            budget, spent = Budget(check_epsilon(epsilon), budget.delta), ()
        stated = None if weights is None else tuple(map(checked_weight, weights))
        return share_budget(statistics, self.terms, budget, spent=spent, weights=stated, equal_error=equal_error)

    def error(self, query: TableQuery, choice: Choice, confidence: float = 0.95, rows: int | None = None) -> float:
        """The error of ``query`` if it is answered with ``choice``; see `TableQuery.error`.

        Args:
            query: The question.
            choice: Family and multiplier of its noise.
            confidence: Such as 0.95.
            rows: About how many rows there are.
        """
        terms = self.terms if rows is None else replace(self.terms, rows=whole_number("rows", rows))
        return query.statistic.rows_error(check_confidence(confidence), choice, terms) * query.statistic.scale(terms)

    def release(
        self,
        *queries: TableQuery,
        weights: Sequence[float] | None = None,
        equal_error: bool = False,
        epsilon: float | None = None,
        confidence: float = 0.95,
        progress: Progress = silent,
    ) -> tuple[Answer, ...]:
        """Ask several questions together: they share what is left of the budget, or ``epsilon`` of it.

        Refused (`BudgetRefused`) before anything is read where the table's budget or the ledger's does not suffice. The
        cost is booked before noise is drawn and stays booked if the process dies.

        Args:
            queries: Questions of this table.
            weights: How much the squared error of each counts; all alike if None.
            equal_error: Whether all shall have the same error, counted in rows.
            epsilon: What they may cost together; all that is left if None.
            confidence: Of each interval.
            progress: Told how many steps are done, of how many: the budget shared, the table read, each question
                answered. How many depends on the questions alone.
        """
        if not queries or not all(isinstance(one, TableQuery) and one.table is self for one in queries):
            raise InvalidInput("release takes one or more questions of this table, such as table.count().")
        check_confidence(confidence)
        if epsilon is None and len(queries) == 1:
            epsilon = queries[0].epsilon
        elif epsilon is None and any(one.epsilon is not None for one in queries):
            raise InvalidInput("questions asked together share one epsilon: state it in release(..., epsilon=).")
        progress(0, _BEFORE_QUESTIONS + len(queries))
        choices = self.choices(queries, weights=weights, equal_error=equal_error, epsilon=epsilon)
        events = tuple(one.statistic.event(choice, self.terms) for one, choice in zip(queries, choices, strict=True))
        progress(1, _BEFORE_QUESTIONS + len(queries))
        self._refuse_over_budget(events)  # after it nothing is called that might ask the table, until all is booked
        names = set().union(*(one.statistic.names() for one in queries))
        if self._ledger is None or self._dataset is None:
            return self._answers(queries, choices, events, self._reader.rows(names), confidence, progress)
        what = "release: " + "; ".join(one.text for one in queries)
        reservation = self._ledger.reserve(self._dataset, Composed(events), what=what[:200], unit=self.unit)
        try:
            rows = self._reader.rows(names)
        except InvalidInput:
            self._ledger.release(reservation.id, why="the table could not be read: no noise was drawn, nothing told")
            raise
        with reservation:
            return self._answers(queries, choices, events, rows, confidence, progress)

    def _answers(
        self,
        queries: Sequence[TableQuery],
        choices: Sequence[Choice],
        events: tuple[Event, ...],
        rows: BoundedRows,
        confidence: float,
        progress: Progress,
    ) -> tuple[Answer, ...]:
        self._events += events
        answers: list[Answer] = []
        for query, choice, event in zip(queries, choices, events, strict=True):
            progress(_BEFORE_QUESTIONS + len(answers), _BEFORE_QUESTIONS + len(queries))
            found = query.statistic.answer(rows, choice, self.terms, confidence, self._rng)
            try:
                error = self.error(query, choice, confidence)
            except InvalidInput:
                error = None
            answers.append(
                Answer(
                    query.text, found, confidence, event, self.guarantee((event,)), error, random.releasable(self._rng)
                )
            )
        progress(_BEFORE_QUESTIONS + len(answers), _BEFORE_QUESTIONS + len(queries))
        return tuple(answers)

    def _refuse_over_budget(self, events: tuple[Event, ...]) -> None:
        together = cost((*self._events, *events), self.budget.delta)
        if together > self.budget.epsilon * _ROUNDING:
            raise BudgetRefused(
                f"this release would bring the table to epsilon {format_up(together)} at delta "
                f"{format_up(self.budget.delta)}, past its budget of {format_up(self.budget.epsilon)}; nothing was "
                "read."
            )

    # ---- checks

    def _query(self, statistic: Statistic, epsilon: float | None) -> TableQuery:
        if epsilon is not None:
            if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)):
                raise InvalidInput("epsilon must be a positive number.")
            epsilon = check_epsilon(float(epsilon))
        for name in sorted(statistic.names()):
            self._present(name)
        return TableQuery(self, statistic, epsilon)

    def _present(self, name: str) -> None:
        if name not in self._header:
            raise InvalidInput(f"the table has no column {name!r}; it has {', '.join(map(repr, self._header[:20]))}.")

    def _subject(self, text: str, where: str | None, by: str | Sequence[str] | None) -> Subject:
        condition = None if where is None else parse_condition(where, self.schema)
        names = () if by is None else (by,) if isinstance(by, str) or not isinstance(by, Sequence) else tuple(by)
        if len(set(names)) < len(names):
            raise InvalidInput("by names a column twice.")
        dividers = []
        for name in names:
            column = self._column(name)
            if column.kind not in (ColumnKind.CATEGORY, ColumnKind.TEXT):
                raise InvalidInput(
                    f"column {name!r} is a {column.kind}: divide by categories, or ask for its histogram."
                )
            dividers.append(Divider(column))
        text += f" by {', '.join(names)}" if names else ""
        text += "" if where is None else f" where {where}"
        return Subject(text, condition, self._grouping(tuple(dividers)))

    def _grouping(self, dividers: tuple[Divider, ...]) -> Grouping:
        grouping = Grouping(dividers)
        if grouping.known:
            return grouping
        unlisted = ", ".join(repr(one.column.name) for one in dividers if not one.known)
        if self.budget.delta == 0:
            raise InvalidInput(
                f"the values of {unlisted} are not listed in the schema: finding them needs a delta above 0."
            )
        return replace(grouping, delta=self.budget.delta * _THRESHOLD_SHARE)

    def _column(self, name: str) -> ColumnSchema:
        if not isinstance(name, str):
            raise InvalidInput(f"a column is named by a text, got a {type(name).__name__}.")
        column = self.schema[name]
        if column.kind in (ColumnKind.PERSON, ColumnKind.IGNORED):
            raise InvalidInput(f"column {name!r} is {column.kind} in the schema: no question can use it.")
        return column

    def _measured(self, name: str, *, dates: bool = True) -> ColumnSchema:
        column = self._column(name)
        if column.kind is not ColumnKind.NUMBER and not (dates and column.kind is ColumnKind.DATE):
            raise InvalidInput(f"column {name!r} is a {column.kind}: this question is about numbers.")
        if column.low is None or column.high is None:
            raise InvalidInput(f"column {name!r} has no range: state low and high in the schema, without the data.")
        if not column.high / 2 - column.low / 2 < _WIDEST or max(abs(column.low), abs(column.high)) >= _WIDEST:
            raise InvalidInput(f"column {name!r}: its range is too wide to compute with; state a narrower one.")
        return column

    def _quantiles(
        self,
        text: str,
        column: str,
        shares: tuple[float, ...],
        where: str | None,
        by: str | Sequence[str] | None,
        interval: bool,
        step: float | None,
    ) -> Quantiles:
        subject = self._subject(text, where, by)
        if not subject.grouping.known:
            raise InvalidInput("quantiles by group need groups that the schema lists: state their values.")
        found = self._measured(column)
        return Quantiles(subject, found, shares, bool(interval), cells=grid_points(found, step))
