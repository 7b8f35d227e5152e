"""The rows that questions are answered from: clean, with a bounded number of rows of each person.

Nothing in a row can stop a release or show itself otherwise: what cannot be read counts as missing, numbers are moved
into the range of the schema (infinity too), categories nobody listed are in no group.

**Persons.** Of each person at most ``rows_per_person`` rows are kept, the same for every question, drawn by a random
order of all rows. Whether, and whose, rows were left out is not told. Given everybody's draws, a person more or less
changes at most ``rows_per_person`` of the kept rows, and draws of the others have the same law with and without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.statistics.filters import Condition
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
