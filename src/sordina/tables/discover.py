"""A first schema for a table, and what it leaves open found privately: ranges, dates, categories."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.accounting import ApproximateDP, Composed, Event, PureDP, accountant
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput
from sordina.mechanisms import DiscreteLaplace
from sordina.mechanisms.mechanism import source as generator
from sordina.privacy import Adjacency, Budget, Guarantee, Unit, delta_limit
from sordina.tables.prepare import person_texts, present_texts, readable_numbers
from sordina.tables.readers import Source, columns_of, header, pieces
from sordina.tables.schema import MISSING, ColumnKind, ColumnSchema, Schema

# A first schema for a table, for a person to complete.
#
# Names and kinds come from the header and from how the first rows are written. That is *public by assumption*: who must
# keep even this secret writes the schema by hand. Ranges and categories are never read off the rows; they are left
# open.

LOOKED_AT = 1000
"""How many rows are looked at for the kinds."""
_LONG_TEXT = 40
_SEEMS = 0.9
"""Part of the values that must be written as a number or a date for a column to seem one."""
_ALSO_MISSING = ("-", "--", ".", "n/a", "na", "none", "unknown", "#N/A", "<NA>")
"""What stands for a missing number or date in some files, and would be a value elsewhere."""
_MARKS = (("", "."), (",", "."), (".", ","), (" ", ","), ("'", "."), ("", ","))
_FORMATS = ("", "%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M")
_NUMBER_AND_UNIT = re.compile(r"([^\w\s.,'+-]*)\s*[+-]?[\d.,' ]*\d\s*([^\d\s.,'+-]*)")
"""How numbers and dates are written, the usual first; a unit before a number is a sign such as that of a currency."""


def draft_schema(
    source: Source,
    *,
    target: str | None = None,
    person: str | None = None,
    groups: Sequence[str] = (),
    rows_per_person: int | None = None,
    encoding: str = "utf-8",
    separator: str = ",",
) -> Schema:
    """Names and kinds of the columns of ``source``, with ranges and categories left open.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        target: The column to predict.
        person: The column that says whose row it is.
        groups: Columns that are protected attributes.
        rows_per_person: How many rows of one person count at most.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
    """
    names = header(source, encoding=encoding, separator=separator)
    for role, name in [("target", target), ("person", person), *(("groups", one) for one in groups)]:
        if name is not None and name not in names:
            raise InvalidInput(f"{role} {name!r} is not a column: {columns_of(names)}.")
    first = next(pieces(source, encoding=encoding, separator=separator, rows_at_once=LOOKED_AT), None)
    if first is None:
        raise InvalidInput("the table has no rows.")
    columns = []
    for name in names:
        seems = replace(guess_column(first.columns[name]), name=name)
        if name == person:
            seems = ColumnSchema(name, ColumnKind.PERSON)
        elif name in groups or (name == target and seems.kind not in (ColumnKind.NUMBER, ColumnKind.CATEGORY)):
            seems = ColumnSchema(name, ColumnKind.CATEGORY)
        columns.append(replace(seems, missing=_missing(first.columns[name], seems.kind)))
    if person is not None and rows_per_person is None:
        rows_per_person = 1
    return Schema(tuple(columns), target, person, rows_per_person, tuple(groups))


def advice(schema: Schema, guarantee: Guarantee | None = None, *, drafted: bool = True) -> list[str]:
    """What a person should know about a schema that was just made, in plain words.

    Args:
        schema: The schema.
        guarantee: What finding its ranges and categories cost, if they were found privately.
        drafted: Whether names and kinds were taken from the file.
    """
    lines = []
    if drafted:
        lines.append("Public by assumption: the names of the columns, and their kinds as the first rows suggest them.")
    if guarantee is not None:
        lines.append(f"Ranges and categories were found privately, {guarantee}; rarer values are clipped or 'other'.")
        if limit := delta_limit(guarantee.delta, str(guarantee.unit)):
            lines.append(limit)
    if guarantee is not None and schema.unfilled:
        lines.append("Of these nothing stood out from the noise at this epsilon: they stay open.")
    for column in schema.columns if drafted else ():
        if column.format:
            lines.append(f"Dates of {column.name} are read as {column.format}: check that it is so.")
        if not column.written_plainly:
            marks = [
                f"{one} {getattr(column, one)!r}" for one in ("thousands", "decimal", "unit") if getattr(column, one)
            ]
            lines.append(f"Numbers of {column.name} are read with {', '.join(marks)}: check that it is so.")
    for name, fields in schema.unfilled.items():
        lines.append(f"To state, from what you know without the data: {name} ({', '.join(fields)}).")
    if schema.unfilled:
        lines.append("Or set their kind to ignored, or let --epsilon find them privately.")
    if schema.person is None:
        lines.append(
            "No person column: every row counts as another person. If somebody has several rows, say --person."
        )
    return lines


def guess_column(raw: NDArray[Any]) -> ColumnSchema:
    """What a column seems to hold, from how its values are written; a few that are written otherwise do not count.

    Args:
        raw: The column as it was read.
    """

    def seems(kind: ColumnKind, **fields: str) -> ColumnSchema:
        return ColumnSchema("column", kind, **fields)  # type: ignore[arg-type]

    schema = Schema((seems(ColumnKind.TEXT),))
    if raw.dtype.kind == "M":
        return seems(ColumnKind.DATE)
    if raw.dtype.kind == "b":
        return seems(ColumnKind.CATEGORY)
    present = present_texts(raw, schema["column"], schema)
    if not present:
        return seems(ColumnKind.IGNORED)
    missing = (*MISSING, *_ALSO_MISSING)
    written = present_texts(raw, replace(schema["column"], missing=missing), schema)
    enough = max(1.0, _SEEMS * len(written))
    guesses = [seems(ColumnKind.NUMBER)]
    if sum(any(map(str.isdigit, text)) for text in written) >= enough:
        unit = _unit(written, enough)
        guesses += [seems(ColumnKind.NUMBER, thousands=one, decimal=two, unit=unit) for one, two in _MARKS]
        if sum(text[:1].isdigit() for text in written) >= enough:
            guesses += [seems(ColumnKind.DATE, format=one) for one in _FORMATS]
    for guess in guesses:
        if len(readable_numbers(raw, replace(guess, missing=missing), schema)) >= enough:
            return guess
    long = float(np.mean([len(text) for text in present])) > _LONG_TEXT
    return seems(ColumnKind.TEXT if long else ColumnKind.CATEGORY)


def _unit(written: list[str], enough: float) -> str:
    """What stands before or behind the number in almost all of ``written``, if it is one text."""
    found = [_NUMBER_AND_UNIT.fullmatch(text) for text in written]
    units = Counter((one[1] + one[2]).strip() for one in found if one is not None)
    unit, count = units.most_common(1)[0] if units else ("", 0)
    return unit if count >= enough else ""


def _missing(raw: NDArray[Any], kind: ColumnKind) -> tuple[str, ...] | None:
    """The table's list, and all of `_ALSO_MISSING` for a number or date among whose first rows one of them stands."""
    if kind not in (ColumnKind.NUMBER, ColumnKind.DATE):
        return None
    strange = any(isinstance(value, str) and value.strip() in _ALSO_MISSING for value in raw.tolist())
    return (*MISSING, *_ALSO_MISSING) if strange else None


# What a schema leaves open, found privately: ranges of numbers and dates, lists of categories.
#
# One row of every person counts (drawn at random where a person has several), so each count changes by at most one
# when a person is added or removed.
#
# **Ranges.** The values are counted in fixed public bins (edges 0 and ±1, 2, 5 times the powers of ten; years for
# dates). Discrete Laplace noise on every count costs epsilon once, for a person is in one bin. Bins whose noisy
# count passes
# ``ln(bins / 0.0001) / epsilon`` hold data, with confidence 99.99 % for all bins together: one bin of noise alone, far
# away, would make the range useless. The range spans them. Rarer values lie outside and are clipped by preparation.
#
# **Categories.** Discrete Laplace noise on the count of every value that occurs; those that reach the threshold T are
# listed. A value only one person has is listed with probability at most ``delta`` if ``P(1 + Z >= T) <= delta``; with
# ``P(Z >= m) = a^m / (1 + a)``, ``a = e^-epsilon``: ``T = 1 + ceil(ln(1 / (delta (1 + a))) / epsilon)``. So the list is
# (epsilon, delta)-DP (stability, Korolova et al. 2009).

_MAGNITUDES = [mantissa * 10.0**power for power in range(-6, 13) for mantissa in (1, 2, 5)]
NUMBER_EDGES = np.array([*(-edge for edge in reversed(_MAGNITUDES)), 0.0, *_MAGNITUDES])
DATE_EDGES = np.array(
    [(np.datetime64(f"{year}-01-01") - np.datetime64("1970-01-01")).astype(int) for year in range(1850, 2151)], float
)
CONFIDENCE = 0.9999


@dataclass(frozen=True)
class Discovery:
    """What finding a schema's open fields will cost, decided from public facts before anything is read.

    Args:
        schema: The schema with its open fields.
        epsilon: What each range or list costs.
        delta: What each list of categories costs besides.
        budget: The whole.
    """

    schema: Schema
    epsilon: float
    delta: float
    budget: Budget

    @property
    def event(self) -> Event:
        """All of it, for an accountant or a ledger."""
        return _event(self.schema, self.epsilon, self.delta)

    @property
    def unit(self) -> Unit:
        """Whose presence is hidden: a person where the schema names the column, else a row."""
        return Unit.RECORD if self.schema.person is None else Unit.USER

    @property
    def guarantee(self) -> Guarantee:
        """What the whole costs at the budget's delta."""
        epsilon = accountant("pld").epsilon(self.event, self.budget.delta, Adjacency.ADD_REMOVE)
        return Guarantee(epsilon, self.budget.delta, Adjacency.ADD_REMOVE, self.unit)

    def release(self, table: Source, rng: np.random.Generator | None = None, **reading: Any) -> Schema:
        """Read ``table`` and return the schema with its open fields filled in; spends `event`.

        Args:
            table: Path of a CSV or Parquet file, or a frame.
            rng: Source of noise; a secure one if None.
            reading: ``encoding`` and ``separator`` of a CSV file.
        """
        rng = generator(rng)
        columns = _one_row_each(table, self.schema, rng, reading)
        self._enough(columns)
        return self._filled(columns, rng)

    def _filled(self, columns: Iterable[tuple[ColumnSchema, NDArray[Any]]], rng: np.random.Generator) -> Schema:
        """The schema, with what the open ``columns`` hold filled in."""
        schema = self.schema
        for column, raw in columns:
            if column.kind is ColumnKind.CATEGORY:
                found = replace(column, values=self._values(raw, column, rng))
            else:
                low, high = self._range(raw, column, rng)
                found = replace(column, low=low, high=high)
            schema = schema.with_column(found)
        return schema

    def needed(self, column: ColumnSchema) -> float:
        """How many people (rows, without a person column) must hold a value of ``column`` for it to be found.

        Args:
            column: One that the schema leaves open.
        """
        if column.kind is ColumnKind.CATEGORY:
            return float(stability_threshold(self.epsilon, self.delta))
        bins = len(DATE_EDGES if column.kind is ColumnKind.DATE else NUMBER_EDGES) - 1
        return math.log(bins / (1 - CONFIDENCE)) / self.epsilon

    def _enough(self, columns: Sequence[tuple[ColumnSchema, NDArray[Any]]]) -> None:
        """Refuse, before anything is spent, where all people of the table together are too few."""
        for column, raw in columns:
            if len(raw) < self.needed(column):
                raise InvalidInput(
                    f"nothing can be found of {column.name!r} at this epsilon: a value must be held by about "
                    f"{self.needed(column):.0f}, and the table has {len(raw)} {self.unit}s. Nothing was spent. State "
                    "what you know in the schema (every field less leaves more for the others), or take more epsilon."
                )

    def _range(
        self, raw: NDArray[Any], column: ColumnSchema, rng: np.random.Generator
    ) -> tuple[float, float] | tuple[None, None]:
        edges = DATE_EDGES if column.kind is ColumnKind.DATE else NUMBER_EDGES
        values = readable_numbers(raw, column, self.schema)
        bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        counts = np.bincount(bins, minlength=len(edges) - 1).astype(np.int64)
        noisy = np.asarray(DiscreteLaplace(1, self.epsilon).release(counts, rng))
        held = np.flatnonzero(noisy > self.needed(column))
        if not len(held):
            return None, None
        return float(edges[held[0]]), float(edges[held[-1] + 1])

    def _values(self, raw: NDArray[Any], column: ColumnSchema, rng: np.random.Generator) -> tuple[str, ...]:
        counts = Counter(present_texts(raw, column, self.schema))
        names = sorted(counts)
        if not names:
            return ()
        noisy = np.asarray(DiscreteLaplace(1, self.epsilon).release(np.array([counts[one] for one in names]), rng))
        least = stability_threshold(self.epsilon, self.delta)
        return tuple(name for name, count in zip(names, noisy.tolist(), strict=True) if count >= least)


def stability_threshold(epsilon: float, delta: float) -> int:
    """The least count T with ``P(1 + Z >= T) <= delta`` for discrete Laplace noise Z of scale ``1 / epsilon``.

    Args:
        epsilon: Of the noise on each count.
        delta: The chance that a value only one person has is listed.
    """
    return 1 + max(0, math.ceil((-math.log(delta) - math.log1p(math.exp(-epsilon))) / epsilon))


def plan_discovery(schema: Schema, budget: Budget) -> Discovery:
    """Share ``budget`` among what ``schema`` leaves open, all alike, by the privacy loss they compose to.

    Args:
        schema: With ranges or categories left to fill in.
        budget: What finding them may cost in all.
    """
    if not schema.unfilled:
        raise InvalidInput("the schema leaves nothing open: there is nothing to find.")
    lists = sum(column.kind is ColumnKind.CATEGORY and bool(column.unfilled) for column in schema.columns)
    if lists and budget.delta == 0:
        raise InvalidInput(
            "categories nobody listed can only be found at a delta above 0: state --delta, or list them."
        )
    if math.isinf(budget.epsilon):
        raise InvalidInput("finding a schema needs a finite epsilon.")
    delta = budget.delta / (2 * lists) if lists else 0.0
    low, high = budget.epsilon / len(schema.unfilled), budget.epsilon
    for _ in range(40):
        middle = (low + high) / 2
        spent = accountant("pld").epsilon(_event(schema, middle, delta), budget.delta, Adjacency.ADD_REMOVE)
        low, high = (middle, high) if spent <= budget.epsilon else (low, middle)
        if high - low < 1e-4 * low:
            break
    plan = Discovery(schema, low, delta, budget)
    if plan.guarantee.epsilon > budget.epsilon:
        plan = Discovery(schema, budget.epsilon / len(schema.unfilled) * (1 - 1e-9), delta, budget)
    return plan


def complete_privately(
    schema: Schema,
    table: Source,
    *,
    budget: Budget,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    rng: np.random.Generator | None = None,
    encoding: str = "utf-8",
    separator: str = ",",
) -> tuple[Schema, Guarantee]:
    """Fill in what ``schema`` leaves open, within ``budget``, booked in ``ledger`` before anything is released.

    Args:
        schema: With ranges or categories left open.
        table: Path of a CSV or Parquet file, or a frame.
        budget: What it may cost in all.
        ledger: Where the cost is booked, if anywhere.
        dataset_budget: The ledger's name of the data set.
        rng: Source of noise; a secure one if None.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
    """
    plan = plan_discovery(schema, budget)
    if (ledger is None) != (dataset_budget is None):
        raise InvalidInput("a ledger and the name of its data set go together: state both, or neither.")
    if ledger is None or dataset_budget is None:
        return plan.release(table, rng, encoding=encoding, separator=separator), plan.guarantee
    ledger.check(dataset_budget, plan.event, unit=plan.unit)
    rng = generator(rng)
    columns = _one_row_each(table, schema, rng, {"encoding": encoding, "separator": separator})
    plan._enough(columns)
    what = f"schema: {len(schema.unfilled)} ranges or lists of categories"
    with ledger.reserve(dataset_budget, plan.event, what=what, unit=plan.unit) as reservation:
        found = plan._filled(columns, rng)
        reservation.settle()
    return found, plan.guarantee


def _event(schema: Schema, epsilon: float, delta: float) -> Event:
    open_columns = [schema[name] for name in schema.unfilled]
    return Composed(
        tuple(
            ApproximateDP(epsilon, delta) if column.kind is ColumnKind.CATEGORY else PureDP(epsilon)
            for column in open_columns
        )
    )


def _one_row_each(
    table: Source, schema: Schema, rng: np.random.Generator, reading: dict[str, Any]
) -> list[tuple[ColumnSchema, NDArray[Any]]]:
    """The open columns, with one row of each person."""
    names = list(schema.unfilled)
    wanted = names if schema.person is None else [*names, schema.person]
    parts = list(pieces(table, wanted, **reading))
    rows = {name: np.concatenate([part.columns[name] for part in parts] or [np.empty(0, object)]) for name in names}
    kept: Any = slice(None)
    if schema.person is not None:
        owners = np.array([text for part in parts for text in person_texts(part.columns[schema.person])], object)
        order = rng.permutation(len(owners))
        _, first = np.unique(owners[order], return_index=True)
        kept = order[first]
    return [(schema[name], rows[name][kept]) for name in names]
