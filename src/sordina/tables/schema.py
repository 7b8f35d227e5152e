"""A schema: what is public about a table, said by a person or found privately, never read off the rows in passing.

It is a small TOML file. For each column it names the kind and what sensitivity and preparation need::

    target = "outcome"
    person = "patient_id"        # whose row it is: the unit of privacy is then a person
    rows_per_person = 3
    groups = ["sex"]             # protected attributes, for fairness

    [columns.age]
    kind = "number"
    low = 0
    high = 110

    [columns.ward]
    kind = "category"
    values = ["A", "B", "C"]

=============  ====================================================================================================
kind           fields
=============  ====================================================================================================
``number``     ``low``, ``high`` (required), ``scale`` ("linear" or "log"), ``optional``; where numbers are written
               otherwise than 1234.5, ``thousands`` and ``decimal`` (``1.234,5``) and ``unit`` (``1234.5 kg``)
``category``   ``values`` (required), ``optional``
``date``       ``low``, ``high`` (required, ISO dates), ``format`` (as in ``strptime``; ISO by default), ``optional``
``text``       kept as it is, for language models; no column of a prepared table
``person``     an identifier of the person; never a feature. One column at most; ``person = NAME`` may be left out then
``ignored``    left out
=============  ====================================================================================================

``optional`` says that a value may be missing, which then gets a column of its own; where it is false a missing value is
refused. ``missing`` (of the table or of one column) lists what stands for a missing value in the file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from sordina import private_files
from sordina.errors import InvalidInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
"""What stands for a missing value unless the schema says otherwise."""
_WRITTEN = ("thousands", "decimal", "unit")
_COLUMN_FIELDS = {"kind", "low", "high", "scale", "values", "format", "optional", "missing", *_WRITTEN}
_TABLE_FIELDS = {"target", "person", "rows_per_person", "groups", "missing", "columns", "rows"}


class ColumnKind(str, Enum):
    """What a column holds."""

    NUMBER = "number"
    CATEGORY = "category"
    DATE = "date"
    TEXT = "text"
    PERSON = "person"
    IGNORED = "ignored"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ColumnSchema:
    """What is public about one column.

    Args:
        name: The column's name in the header.
        kind: What it holds.
        low: Smallest value that counts (numbers; days since 1970 for dates); smaller ones are raised to it.
        high: Largest value that counts; larger ones are lowered to it.
        values: The categories, in order; anything else counts as "other".
        scale: "linear", or "log" for values that range over orders of magnitude.
        format: How dates are written; ISO 8601 if empty.
        optional: Whether values may be missing.
        missing: What stands for a missing value in this column; None for the table's own list.
        thousands: What stands between groups of three digits, if anything.
        decimal: What stands before the decimals.
        unit: What stands before or behind every number.
    """

    name: str
    kind: ColumnKind
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    scale: str = "linear"
    format: str = ""
    optional: bool = True
    missing: tuple[str, ...] | None = None
    thousands: str = ""
    decimal: str = "."
    unit: str = ""

    @property
    def written_plainly(self) -> bool:
        """Whether numbers are written as programs write them."""
        return (self.thousands, self.decimal, self.unit) == ("", ".", "")

    @property
    def unfilled(self) -> tuple[str, ...]:
        """Fields that preparation needs and nobody has stated yet."""
        if self.kind in (ColumnKind.NUMBER, ColumnKind.DATE):
            return tuple(name for name in ("low", "high") if getattr(self, name) is None)
        if self.kind is ColumnKind.CATEGORY and not self.values:
            return ("values",)
        return ()

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        if self.scale not in ("linear", "log"):
            raise InvalidInput(f"{where}: scale must be linear or log, got {self.scale!r}.")
        for bound in (self.low, self.high):
            if bound is not None and not math.isfinite(bound):
                raise InvalidInput(f"{where}: low and high must be finite numbers.")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InvalidInput(f"{where}: low must be below high, got {self.low:g} and {self.high:g}.")
        if len(set(self.values)) < len(self.values):
            raise InvalidInput(f"{where}: a category is listed twice.")
        if not self.written_plainly and self.kind is not ColumnKind.NUMBER:
            raise InvalidInput(f"{where}: thousands, decimal and unit are for numbers.")
        marks = [self.decimal, self.thousands]
        if len(self.decimal) != 1 or len(self.thousands) > 1 or len(set(marks)) < 2 or any(map(str.isalnum, marks)):
            raise InvalidInput(f"{where}: decimal and thousands must be two different marks of one character each.")


@dataclass(frozen=True)
class Schema:
    """What is public about a table.

    Args:
        columns: The columns, in the order of the features.
        target: The column to predict, if any.
        person: The column that says whose row it is, which is the one of kind person; None if every row is another
            person (then an id is of kind ignored).
        rows_per_person: How many rows of one person count at most; needed with ``person`` for statistics and trees.
        groups: Columns that are protected attributes.
        missing: What stands for a missing value.
        rows: The public number of rows (or of persons), if it is public.
    """

    columns: tuple[ColumnSchema, ...]
    target: str | None = None
    person: str | None = None
    rows_per_person: int | None = None
    groups: tuple[str, ...] = ()
    missing: tuple[str, ...] = MISSING
    rows: int | None = None
    _by_name: Mapping[str, ColumnSchema] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise InvalidInput("the schema names a column twice.")
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})
        persons = [column.name for column in self.columns if column.kind is ColumnKind.PERSON]
        if len(persons) > 1:
            raise InvalidInput(
                f"{_listed(persons)} are all of kind person: one column says whose row it is. Set the others to "
                '"ignored".'
            )
        if self.person is None and persons:
            object.__setattr__(self, "person", persons[0])
        for role, name in [("target", self.target), ("person", self.person), *(("groups", one) for one in self.groups)]:
            if name is not None and name not in self._by_name:
                raise InvalidInput(f"{role} = {name!r} is not one of the schema's columns: {_listed(names)}.")
        if self.person is not None and self[self.person].kind is not ColumnKind.PERSON:
            raise InvalidInput(f"column {self.person!r} says whose row it is: its kind must be person.")
        if self.target is not None and self[self.target].kind not in (ColumnKind.NUMBER, ColumnKind.CATEGORY):
            raise InvalidInput(f"the target {self.target!r} must be a number or a category.")
        for name in self.groups:
            if self[name].kind is not ColumnKind.CATEGORY:
                raise InvalidInput(f"the protected attribute {name!r} must be a category.")
        for field_name in ("rows_per_person", "rows"):
            value = getattr(self, field_name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"{field_name} must be a whole number of at least 1.")

    def __getitem__(self, name: str) -> ColumnSchema:
        """The column called ``name``."""
        try:
            return self._by_name[name]
        except KeyError:
            raise InvalidInput(f"the schema has no column {name!r}: it has {_listed(self._by_name)}.") from None

    @property
    def features(self) -> tuple[ColumnSchema, ...]:
        """The columns that a model sees: numbers, categories and dates, without the target."""
        kinds = (ColumnKind.NUMBER, ColumnKind.CATEGORY, ColumnKind.DATE)
        return tuple(column for column in self.columns if column.kind in kinds and column.name != self.target)

    @property
    def unfilled(self) -> dict[str, tuple[str, ...]]:
        """What a person still has to state, by column."""
        return {column.name: column.unfilled for column in self.columns if column.unfilled}

    def complete(self) -> Schema:
        """This schema, if nothing is left to state; else an error that names all of it."""
        if self.unfilled:
            parts = [f"{name} ({', '.join(fields)})" for name, fields in self.unfilled.items()]
            raise InvalidInput(
                f"the schema leaves open: {'; '.join(parts)}. State them from what you know without the data, set "
                'kind = "ignored", or let `sordina schema --epsilon` find them privately.'
            )
        return self

    def with_column(self, column: ColumnSchema) -> Schema:
        """A copy in which ``column`` replaces the one of its name."""
        self[column.name]
        return replace(self, columns=tuple(column if one.name == column.name else one for one in self.columns))

    def missing_for(self, column: ColumnSchema) -> tuple[str, ...]:
        """What stands for a missing value in ``column``."""
        return self.missing if column.missing is None else column.missing

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any] | Schema) -> Schema:
        """A schema from a TOML file, from plain data, or itself.

        Args:
            source: Path of a TOML file, a mapping of the same form, or a schema.
        """
        if isinstance(source, Schema):
            return source
        if isinstance(source, Mapping):
            return _from_mapping(source)
        try:
            text = private_files.read(Path(source)).decode("utf-8")
            return _from_mapping(tomllib.loads(text))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidInput(f"cannot read the schema {str(source)!r}: {reason}.") from error
        except tomllib.TOMLDecodeError as error:
            raise InvalidInput(f"the schema {str(source)!r} is not valid TOML: {error}.") from error

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in the TOML file; `load` reads it back."""
        table: dict[str, Any] = {}
        for name in ("target", "person", "rows_per_person", "rows"):
            if getattr(self, name) is not None:
                table[name] = getattr(self, name)
        if self.groups:
            table["groups"] = list(self.groups)
        if self.missing != MISSING:
            table["missing"] = list(self.missing)
        table["columns"] = {column.name: _column_to_dict(column) for column in self.columns}
        return table

    def to_toml(self) -> str:
        """The text of the TOML file, with a comment where something is left to state."""
        table = self.to_dict()
        lines = [f"{name} = {_toml(value)}" for name, value in table.items() if name != "columns"]
        for column in self.columns:
            lines += ["", f"[columns.{_toml(column.name)}]"]
            lines += [f"{name} = {_toml(value)}" for name, value in table["columns"][column.name].items()]
            lines += [f"# {name} = ?  (to state, from what you know without the data)" for name in column.unfilled]
        return "\n".join(lines) + "\n"


def _from_mapping(table: Mapping[str, Any]) -> Schema:
    _refuse_unknown("the schema", table, _TABLE_FIELDS)
    columns = table.get("columns")
    if not isinstance(columns, Mapping) or not columns:
        raise InvalidInput("the schema has no [columns.NAME] parts.")
    return Schema(
        columns=tuple(_column(name, facts) for name, facts in columns.items()),
        target=_text("target", table.get("target")),
        person=_text("person", table.get("person")),
        rows_per_person=table.get("rows_per_person"),
        groups=_texts("groups", table.get("groups", ())),
        missing=_texts("missing", table.get("missing", MISSING)),
        rows=table.get("rows"),
    )


def _column(name: str, facts: Any) -> ColumnSchema:
    where = f"column {name!r}"
    if not isinstance(facts, Mapping):
        raise InvalidInput(f"{where} must be a [columns.{name}] part with a kind.")
    _refuse_unknown(where, facts, _COLUMN_FIELDS)
    try:
        kind = ColumnKind(facts.get("kind"))
    except ValueError:
        raise InvalidInput(f"{where}: kind must be one of {', '.join(kind.value for kind in ColumnKind)}.") from None
    optional = facts.get("optional", True)
    if not isinstance(optional, bool):
        raise InvalidInput(f"{where}: optional must be true or false.")
    return ColumnSchema(
        name, kind,
        low=_bound(where, kind, facts.get("low")),
        high=_bound(where, kind, facts.get("high")),
        values=_texts(f"{where}: values", [_category(one) for one in facts.get("values", ())]),
        scale=facts.get("scale", "linear"),
        format=_text(f"{where}: format", facts.get("format")) or "",
        optional=optional,
        missing=None if "missing" not in facts else _texts(f"{where}: missing", facts["missing"]),
        thousands=_text(f"{where}: thousands", facts.get("thousands")) or "",
        decimal=_text(f"{where}: decimal", facts.get("decimal")) or ".",
        unit=(_text(f"{where}: unit", facts.get("unit")) or "").strip(),
    )  # fmt: skip


def _category(value: Any) -> Any:
    """Numbers and booleans may stand in a list of categories; they are compared as the file writes them."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _bound(where: str, kind: ColumnKind, value: Any) -> float | None:
    if value is None:
        return None
    if kind is ColumnKind.DATE:
        return days(where, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{where}: low and high must be numbers.")
    return float(value)


def days(where: str, value: Any) -> float:
    """A date of a schema as days since 1970."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(f"{where}: low and high must be dates such as 2020-01-31.") from None
    if isinstance(value, datetime):
        value = value.date()
    if not isinstance(value, date):
        raise InvalidInput(f"{where}: low and high must be dates such as 2020-01-31.")
    return float((value - date(1970, 1, 1)).days)


def _column_to_dict(column: ColumnSchema) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": str(column.kind)}
    for name in ("low", "high"):
        value = getattr(column, name)
        if value is not None:
            facts[name] = (
                value if column.kind is not ColumnKind.DATE else date.fromordinal(719163 + int(value)).isoformat()
            )
    if column.values:
        facts["values"] = list(column.values)
    if column.scale != "linear":
        facts["scale"] = column.scale
    if column.format:
        facts["format"] = column.format
    for name, usual in zip(_WRITTEN, ("", ".", ""), strict=True):
        if getattr(column, name) != usual:
            facts[name] = getattr(column, name)
    if not column.optional:
        facts["optional"] = False
    if column.missing is not None:
        facts["missing"] = list(column.missing)
    return facts


def _refuse_unknown(where: str, facts: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(facts) - known)
    if unknown:
        raise InvalidInput(
            f"{where} has fields nobody knows: {_listed(unknown)}. Known are {', '.join(sorted(known))}."
        )


def _text(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} must be a text.")
    return value


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise InvalidInput(f"{name} must be a list of texts.")
    return tuple(values)


def _listed(names: Any) -> str:
    names = [repr(name) for name in names]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _toml(value: Any) -> str:
    """A value as TOML; JSON's texts, numbers, booleans and lists are TOML too."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value)
