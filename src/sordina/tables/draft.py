"""A first schema for a table, for a person to complete.

Names and kinds come from the header and from how the first rows are written. That is *public by assumption*: who must
keep even this secret writes the schema by hand. Ranges and categories are never read off the rows; they are left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.tables.files import Source, header, pieces
from sordina.tables.prepare import present_texts, readable_numbers
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema
from sordina.types import Guarantee

LOOKED_AT = 1000
"""How many rows are looked at for the kinds."""
_LONG_TEXT = 40


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
            raise InvalidInput(f"{role} {name!r} is not a column; the columns are {', '.join(map(repr, names[:20]))}.")
    first = next(pieces(source, encoding=encoding, separator=separator, rows_at_once=LOOKED_AT), None)
    if first is None:
        raise InvalidInput("the table has no rows.")
    columns = []
    for name in names:
        kind = ColumnKind.PERSON if name == person else guess_kind(first.columns[name])
        if name in groups or (name == target and kind not in (ColumnKind.NUMBER, ColumnKind.CATEGORY)):
            kind = ColumnKind.CATEGORY
        columns.append(ColumnSchema(name, kind))
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
    for name, fields in schema.unfilled.items():
        lines.append(f"To state, from what you know without the data: {name} ({', '.join(fields)}).")
    if schema.unfilled:
        lines.append("Or set their kind to ignored, or let --epsilon find them privately.")
    if schema.person is None:
        lines.append(
            "No person column: every row counts as another person. If somebody has several rows, say --person."
        )
    return lines


def guess_kind(raw: NDArray[Any]) -> ColumnKind:
    """What a column seems to hold, from how its values are written.

    Args:
        raw: The column as it was read.
    """
    schema = Schema((ColumnSchema("column", ColumnKind.TEXT),))
    column = schema["column"]
    if raw.dtype.kind == "M":
        return ColumnKind.DATE
    if raw.dtype.kind == "b":
        return ColumnKind.CATEGORY
    present = present_texts(raw, column, schema)
    if not present:
        return ColumnKind.IGNORED
    if len(readable_numbers(raw, column, schema)) == len(present):
        return ColumnKind.NUMBER
    dates = ColumnSchema("column", ColumnKind.DATE)
    if all(text[:1].isdigit() for text in present) and len(readable_numbers(raw, dates, schema)) == len(present):
        return ColumnKind.DATE
    return ColumnKind.TEXT if float(np.mean([len(text) for text in present])) > _LONG_TEXT else ColumnKind.CATEGORY
