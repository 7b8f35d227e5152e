"""The rows that questions are answered from, a bounded number of each person, and by what answers are divided.

Nothing in a row can stop a release or show itself otherwise: what cannot be read counts as missing, numbers are moved
into the range of the schema (infinity too), categories nobody listed are in no group.

**Persons.** Of each person at most ``rows_per_person`` rows are kept, the same for every question, drawn by a random
order of all rows. Whether, and whose, rows were left out is not told. Given everybody's draws, a person more or less
changes at most ``rows_per_person`` of the kept rows, and draws of the others have the same law with and without them.

By what an answer is divided: known cells that the schema lists, or values that have to be found.

**Known.** Every combination of listed values is a cell, also the empty ones; rows with another or a missing value are
in none. Numbers are divided by public edges.

**Unknown.** Cells are the values that occur; those are a secret. Totals of each get noise, and a cell is shown only if
its noisy count reaches a threshold T. A person alone fills new cells with j_1 + j_2 + ... <= k rows; T is such that
``P(j + noise >= T) <= j delta / k`` for all j <= k, so that one of them shows itself with probability at most delta.
Given that none does, the answer is noise on common cells: the release is post-processing of that noise and of a coin
that differs with chance at most delta, hence the event ``noise + ApproximateDP(0, delta)`` (Korolova et al. 2009).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.statistics.filters import Condition
from sordina.statistics.noise import TotalsNoise
from sordina.tables.prepare import category_codes, number_values, person_texts, text_values
from sordina.tables.readers import Source, pieces
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema


@dataclass(frozen=True)
class BoundedRows:
    """Rows of which each person has a bounded number.

    Args:
        columns: Numbers and dates as floats within their range (NaN: missing), listed categories as codes, texts and
            unlisted categories as objects (None: missing).
        persons: Whose row it is, as a code; None if every row is another person's.
        size: How many rows there are.
    """

    columns: dict[str, NDArray[Any]]
    persons: NDArray[np.int64] | None
    size: int

    def where(self, condition: Condition | None) -> NDArray[np.bool_]:
        """Which rows a question is about.

        Args:
            condition: The filter; None for all rows.
        """
        return np.ones(self.size, np.bool_) if condition is None else condition.holds(self.columns)

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """Whose row it is; every row its own if nobody has several."""
        return np.arange(self.size) if self.persons is None else self.persons


class RowReader:
    """Reads a table when it is asked for columns, and keeps the same rows of each person every time.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        schema: What is public about it.
        rng: Draws the rows that are kept.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
    """

    def __init__(
        self, source: Source, schema: Schema, rng: np.random.Generator, *, encoding: str = "utf-8", separator: str = ","
    ) -> None:
        self._source, self._schema, self._rng = source, schema, rng
        self._reading = (encoding, separator)
        self._columns: dict[str, NDArray[Any]] = {}
        self._size: int | None = None
        self._kept: NDArray[np.int64] | None = None
        self._persons: NDArray[np.int64] | None = None
        self._owners: NDArray[np.int64] | None = None

    def rows(self, names: Iterable[str]) -> BoundedRows:
        """The kept rows with the columns ``names``, and with those asked for before.

        Args:
            names: The columns that questions use.
        """
        missing = [name for name in dict.fromkeys(names) if name not in self._columns]
        if missing or self._size is None:
            self._read(missing)
        return BoundedRows(dict(self._columns), self._persons, self._size_kept)

    @property
    def _size_kept(self) -> int:
        return self._size or 0 if self._persons is None else len(self._persons)

    def _read(self, names: list[str]) -> None:
        person = self._schema.person  # read again every time: were rows of a table that changed still that person's?
        # A bare count reads one column, to see how many rows there are.
        wanted = [*names, *([person] if person else [])] or [self._schema.columns[0].name]
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in wanted}
        codes: dict[str, int] = {}
        size = 0
        encoding, separator = self._reading
        for piece in pieces(self._source, wanted, encoding=encoding, separator=separator):
            size += len(piece)
            for name in wanted:
                if name == person:
                    texts = person_texts(piece.columns[name])
                    parts[name].append(np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64))
                elif name in names:
                    parts[name].append(clean(piece.columns[name], self._schema[name], self._schema))
        for name in names:  # a table without rows has columns of the same kinds
            if not parts[name]:
                parts[name].append(clean(np.empty(0, object), self._schema[name], self._schema))
        if self._size not in (None, size):
            raise InvalidInput("the table has changed since the first release: start a new Table.")
        columns = {name: _joined(found) for name, found in parts.items()}
        if person:
            persons = columns.pop(person).astype(np.int64)
            if self._owners is not None and not np.array_equal(persons, self._owners):
                raise InvalidInput("the table has changed since the first release: start a new Table.")
        if person and self._owners is None:
            self._owners = persons
            self._kept = kept_rows(persons, self._schema.rows_per_person or 1, self._rng)
            self._persons = persons[self._kept]
        self._size = size
        self._columns |= {name: columns[name] if self._kept is None else columns[name][self._kept] for name in names}


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0)


def clean(raw: NDArray[Any], column: ColumnSchema, schema: Schema) -> NDArray[Any]:
    """A column as questions see it; refuses nothing.

    Args:
        raw: As it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
    """
    if column.kind in (ColumnKind.NUMBER, ColumnKind.DATE):
        values = number_values(raw, column, schema)
        return values if column.unfilled else np.clip(values, column.low, column.high)
    if column.kind is ColumnKind.CATEGORY and column.values:
        return category_codes(raw, replace(column, optional=True), schema, 1)
    return text_values(raw, column, schema)


def kept_rows(persons: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which rows are kept: at most ``most`` of each person, drawn at random, in the order of the table.

    Args:
        persons: Whose row it is.
        most: How many rows of one person count.
        rng: Draws the order.
    """
    order = rng.permutation(len(persons))
    shuffled = persons[order]
    by_person = np.argsort(shuffled, kind="stable")
    starts = np.flatnonzero(np.diff(shuffled[by_person], prepend=-1))
    place = np.arange(len(persons)) - np.repeat(starts, np.diff(np.append(starts, len(persons))))
    return np.sort(order[by_person[place < most]])


# By what an answer is divided: known cells that the schema lists, or values that have to be found.

Label: TypeAlias = Any
"""A text, or a tuple of texts where an answer is divided by several columns."""
MOST_CELLS = 1_000_000


@dataclass(frozen=True)
class Divider:
    """One column by which an answer is divided.

    Args:
        column: What is public about it.
        edges: Of the bins, for numbers and dates; a bin holds its lower edge, the last one both.
    """

    column: ColumnSchema
    edges: tuple[float, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the cells are public."""
        return bool(self.edges or self.column.values)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The names of the cells."""
        if not self.edges:
            return self.column.values
        shown = _shown(self.edges, self.column)
        last = len(shown) - 2
        return tuple(
            f"[{low}, {high}{']' if place == last else ')'}"
            for place, (low, high) in enumerate(itertools.pairwise(shown))
        )

    def codes(self, data: NDArray[Any]) -> NDArray[np.int64]:
        """The cell of each row; -1 for none.

        Args:
            data: The column.
        """
        if not self.edges:
            return np.where(data < len(self.column.values), data, -1).astype(np.int64)
        places = np.searchsorted(self.edges, data, side="right") - 1
        places = np.where(data == self.edges[-1], len(self.edges) - 2, places)
        return np.where(np.isnan(data) | (places > len(self.edges) - 2), -1, places).astype(np.int64)


@dataclass(frozen=True)
class Grouping:
    """The columns by which an answer is divided; none means one cell.

    Args:
        dividers: In order.
        delta: The chance at which a cell that one person alone fills may be shown, where cells are unknown.
    """

    dividers: tuple[Divider, ...] = ()
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.known and math.prod(len(one.labels) for one in self.dividers) > MOST_CELLS:
            raise InvalidInput(f"an answer has at most {MOST_CELLS:,} cells: divide by fewer columns.")

    @property
    def known(self) -> bool:
        """Whether all cells are public."""
        return all(one.known for one in self.dividers)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(one.column.name for one in self.dividers)

    @property
    def expected_cells(self) -> int:
        """How many cells there are; 1 where nobody knows."""
        return math.prod(len(one.labels) for one in self.dividers) if self.known else 1

    def cells(self, rows: BoundedRows, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], tuple[Label, ...]]:
        """The cell of each row (-1: none), and the cells' labels: public if known, else a secret.

        Args:
            rows: The table.
            kept: Which rows the question is about.
        """
        if not self.known:
            return self._found(rows, kept)
        codes = np.zeros(rows.size, np.int64)
        outside = ~kept
        for one in self.dividers:
            own = one.codes(rows.columns[one.column.name])
            outside |= own < 0
            codes = codes * len(one.labels) + own
        return np.where(outside, -1, codes), self.labels

    @property
    def labels(self) -> tuple[Label, ...]:
        """The names of known cells, in order; empty where there is one cell for all."""
        if not self.dividers:
            return ()
        if len(self.dividers) == 1:
            return self.dividers[0].labels
        return tuple(itertools.product(*(one.labels for one in self.dividers)))

    def _found(self, rows: BoundedRows, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], tuple[Label, ...]]:
        columns = [_texts(one, rows.columns[one.column.name]) for one in self.dividers]
        labels = [key if None not in key else None for key in zip(*columns, strict=True)]
        places: dict[Any, int] = {}
        codes = np.full(rows.size, -1, np.int64)
        for row in np.flatnonzero(kept).tolist():
            key = labels[row]
            if key is not None:
                codes[row] = places.setdefault(key, len(places))
        names: Sequence[Any] = list(places)
        return codes, tuple(key[0] if len(key) == 1 else key for key in names)

    def threshold(self, noise: TotalsNoise, rows_per_person: int, terms: int) -> float:
        """The least noisy count with which an unknown cell is shown.

        Args:
            noise: On each total.
            rows_per_person: How many rows a person has at most.
            terms: How many totals add up to the count.
        """
        allowed = self.delta * (1 - 1e-6)
        slack = 0.0 if noise.counts and noise.pure else (terms + 1) / noise.steps
        if noise.counts and not noise.pure:
            slack += 0.5  # counts are rounded to whole numbers before they are compared: up by a half at most
        return slack + max(
            rows + noise.tail_point(allowed * rows / rows_per_person, terms) for rows in range(1, rows_per_person + 1)
        )


def _texts(divider: Divider, data: NDArray[Any]) -> list[str | None]:
    if not divider.known:
        return list(data)
    labels = divider.labels
    return [labels[code] if code >= 0 else None for code in divider.codes(data).tolist()]


def _shown(edges: tuple[float, ...], column: ColumnSchema) -> list[str]:
    """The edges as texts, with as many digits as tell them apart: cells of one name would hide each other."""
    if column.kind is ColumnKind.DATE and all(edge.is_integer() for edge in edges):
        return [str(np.datetime64("1970-01-01") + np.timedelta64(int(edge), "D")) for edge in edges]
    if column.kind is ColumnKind.DATE:
        begin = np.datetime64("1970-01-01T00:00:00.000000")
        return [str(begin + np.timedelta64(round(edge * 86_400_000_000), "us")) for edge in edges]
    for digits in range(6, 18):
        shown = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(shown)) == len(shown):
            break
    return shown
