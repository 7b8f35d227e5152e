"""Which rows a question is about: a small language of conditions, read against the schema, never evaluated as code.

    age >= 65 and ward in ('A', 'B')
    not (diagnosis == 'A') or 18 <= age < 30
    admitted < '2021-01-01' and charge is not missing

====================  =============================================================================================
part                  form
====================  =============================================================================================
condition             ``A or B``, ``A and B``, ``not A``, ``(A)``, a comparison
comparison            ``column op value``, ``value op column op value``, ``column in (value, ...)``, ``not in``
                      ``column is missing``, ``column is not missing``
op                    ``== != < <= > >=``; texts and categories know ``==`` and ``!=`` only
column                a name of letters, digits, ``_``, ``.`` and ``-``, or any name between backticks
value                 a number, or a text in single or double quotes; dates are texts such as '2020-01-31'
====================  =============================================================================================

Numbers are compared after they were moved into the schema's range. A comparison with a missing value is false.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema, days

Flags = NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Numbers and dates as floats (NaN: missing), listed categories as codes, texts as objects (None: missing)."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))|(?P<name>[^\W\d][\w.-]*)|`(?P<quoted>[^`]+)`"
    r"|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<sign>==|!=|<=|>=|<|>|=|\(|\)|\[|\]|,))"
)
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WORDS = ("and", "or", "not", "in", "is", "missing", "by", "where")
_DEEPEST = 50
LONGEST = 2000
"""Characters of a condition or a question."""


@dataclass(frozen=True)
class Token:
    """A piece of a condition: its kind (number, name, text, sign, end), what it says and where it stands."""

    kind: str
    text: str
    place: int

    def is_word(self, word: str) -> bool:
        """Whether it is the word ``word`` of the language."""
        return self.kind == "name" and self.text.lower() == word


def tokens(text: str) -> list[Token]:
    """The pieces of a condition or a question, with an end.

    Args:
        text: What was written.
    """
    if len(text) > LONGEST:
        raise InvalidInput(f"a condition or question has at most {LONGEST} characters, got {len(text)}.")
    found, place = [], 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise InvalidInput(f"cannot read {text[place : place + 20]!r} (character {place + 1} of {text!r}).")
        kind = match.lastgroup or ""
        shown = {"quoted": "column", "single": "text", "double": "text"}.get(kind, kind)
        found.append(Token(shown, match[kind], match.start(kind)))
        place = match.end()
    return [*found, Token("end", "", len(text))]


@dataclass(frozen=True)
class Comparison:
    """``column operator values``; several values mean that any of them will do."""

    column: ColumnSchema
    operator: str
    values: tuple[Any, ...]

    def holds(self, columns: Columns) -> Flags:
        """Row by row; false where the value is missing."""
        data = columns[self.column.name]
        if self.operator == "missing":
            return _gaps(data, self.column)
        with np.errstate(invalid="ignore"):
            flags = np.zeros(len(data), np.bool_)
            for value in self.values:
                flags |= _compared(data, "==" if self.operator == "!=" else self.operator, value)
        return ~flags & ~_gaps(data, self.column) if self.operator == "!=" else flags & ~_gaps(data, self.column)

    def names(self) -> set[str]:
        """The columns it reads."""
        return {self.column.name}


@dataclass(frozen=True)
class Junction:
    """All (``and``), any (``or``) or none (``not``) of ``parts``."""

    word: str
    parts: tuple[Condition, ...]

    def holds(self, columns: Columns) -> Flags:
        """Row by row."""
        flags = [part.holds(columns) for part in self.parts]
        if self.word == "not":
            return ~flags[0]
        joined: Flags = np.logical_and.reduce(flags) if self.word == "and" else np.logical_or.reduce(flags)
        return joined

    def names(self) -> set[str]:
        """The columns it reads."""
        return set().union(*(part.names() for part in self.parts))


Condition: TypeAlias = Comparison | Junction


def _compared(data: NDArray[Any], operator: str, value: Any) -> Flags:
    compare = {
        "==": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    }[operator]  # fmt: skip
    flags: Flags = compare(data, value).astype(np.bool_)
    return flags


def _gaps(data: NDArray[Any], column: ColumnSchema) -> Flags:
    if column.kind is ColumnKind.CATEGORY and column.values:
        gaps: Flags = data > len(column.values)
    elif column.kind in (ColumnKind.NUMBER, ColumnKind.DATE):
        gaps = np.isnan(data)
    else:
        gaps = np.fromiter((value is None for value in data), np.bool_, len(data))
    return gaps


def parse_condition(text: str, schema: Schema) -> Condition:
    """The condition that ``text`` states, with every column and value checked against ``schema``.

    Args:
        text: Such as ``"age >= 65 and ward in ('A', 'B')"``.
        schema: What is public about the table.
    """
    if not isinstance(text, str):
        raise InvalidInput(f'where must be a text such as "age >= 65", got a {type(text).__name__}.')
    reader = ConditionReader(tokens(text), schema, text)
    condition = reader.condition()
    if reader.now.kind != "end":
        raise reader.unexpected("and, or, or the end")
    return condition


class ConditionReader:
    """Recursive descent over the pieces of one text."""

    def __init__(self, pieces: list[Token], schema: Schema, text: str) -> None:
        self._pieces, self._schema, self._text = pieces, schema, text
        self._at, self._depth = 0, 0

    @property
    def now(self) -> Token:
        """The piece that comes next."""
        return self._pieces[self._at]

    def take(self) -> Token:
        """The next piece, which is then behind us."""
        token = self.now
        self._at = min(self._at + 1, len(self._pieces) - 1)
        return token

    def took(self, text: str) -> bool:
        """Whether the next piece is the sign or word ``text``; if so it is taken."""
        found = self.now.is_word(text) or (self.now.kind == "sign" and self.now.text == text)
        if found:
            self.take()
        return found

    def unexpected(self, wanted: str) -> InvalidInput:
        """The error that says what should have stood here."""
        where = "at its end" if self.now.kind == "end" else f"at {self.now.text[:40]!r}, character {self.now.place + 1}"
        return InvalidInput(f"cannot read {self._text[:200]!r}: expected {wanted} {where}.")

    def condition(self) -> Condition:
        """``A or B or ...``."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidInput(f"a condition nests at most {_DEEPEST} parentheses.")
        parts = [self._all()]
        while self.took("or"):
            parts.append(self._all())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Junction("or", tuple(parts))

    def _all(self) -> Condition:
        parts = [self._one()]
        while self.took("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))

    def _one(self) -> Condition:
        turned = 0
        while self.took("not"):
            turned += 1
        if self.took("("):
            inner = self.condition()
            if not self.took(")"):
                raise self.unexpected("a closing parenthesis")
        else:
            inner = self._comparison()
        return Junction("not", (inner,)) if turned % 2 else inner

    def _comparison(self) -> Condition:
        if self.now.kind in ("number", "text"):
            return self._between()
        column = self.column()
        if self.took("is"):
            negative = self.took("not")
            if not self.took("missing"):
                raise self.unexpected("missing")
            found = Comparison(column, "missing", ())
            return Junction("not", (found,)) if negative else found
        negative = self.took("not")
        if self.took("in"):
            return Comparison(column, "!=" if negative else "==", self._list(column))
        if negative:
            raise self.unexpected("in")
        return Comparison(column, self._operator(column), (self._value(column),))

    def _between(self) -> Condition:
        """``value op column`` and maybe ``op value``."""
        literal = self.take()
        sign = self.take()
        if sign.text not in _OPERATORS:
            raise self.unexpected("one of " + ", ".join(_OPERATORS))
        column = self.column()
        _check_operator(column, sign.text)
        first = Comparison(column, _TURNED[sign.text], (_literal(column, literal),))
        if self.now.kind == "sign" and self.now.text in _OPERATORS:
            second = Comparison(column, self._operator(column), (self._value(column),))
            return Junction("and", (first, second))
        return first

    def column(self) -> ColumnSchema:
        """A column of the schema."""
        if self.now.kind not in ("name", "column") or (self.now.kind == "name" and self.now.text.lower() in _WORDS):
            raise self.unexpected("the name of a column")
        column = self._schema[self.take().text]
        if column.kind in (ColumnKind.PERSON, ColumnKind.IGNORED):
            raise InvalidInput(f"column {column.name!r} is {column.kind} in the schema: no question can use it.")
        return column

    def _operator(self, column: ColumnSchema) -> str:
        if self.now.kind == "sign" and self.now.text == "=":
            raise self.unexpected("== (two signs)")
        if self.now.kind != "sign" or self.now.text not in _OPERATORS:
            raise self.unexpected("one of " + ", ".join(_OPERATORS) + ", in, is missing")
        return _check_operator(column, self.take().text)

    def _value(self, column: ColumnSchema) -> Any:
        if self.now.kind not in ("number", "text"):
            raise self.unexpected("a number or a text in quotes")
        return _literal(column, self.take())

    def _list(self, column: ColumnSchema) -> tuple[Any, ...]:
        closing = ")" if self.took("(") else "]" if self.took("[") else ""
        if not closing:
            raise self.unexpected("a list such as ('A', 'B')")
        values = [self._value(column)]
        while self.took(","):
            values.append(self._value(column))
        if not self.took(closing):
            raise self.unexpected(f"a comma or {closing}")
        return tuple(values)


def _check_operator(column: ColumnSchema, operator: str) -> str:
    if operator not in ("==", "!=") and column.kind not in (ColumnKind.NUMBER, ColumnKind.DATE):
        raise InvalidInput(f"column {column.name!r} is a {column.kind}: compare it with ==, != or in.")
    return operator


def _literal(column: ColumnSchema, token: Token) -> Any:
    if column.unfilled and column.kind is not ColumnKind.CATEGORY:
        raise InvalidInput(f"column {column.name!r} has no range: state {' and '.join(column.unfilled)} in the schema.")
    if column.kind is ColumnKind.NUMBER:
        if token.kind != "number":
            raise InvalidInput(f"column {column.name!r} is a number: compare it with one, not with {token.text!r}.")
        return float(token.text)
    if column.kind is ColumnKind.DATE:
        if token.kind != "text":
            raise InvalidInput(f"column {column.name!r} is a date: write it as '2020-01-31'.")
        return days(f"column {column.name!r}", token.text)
    if column.kind is ColumnKind.CATEGORY and column.values:
        if token.text not in column.values:
            raise InvalidInput(f"{token.text!r} is not one of the values that the schema lists for {column.name!r}.")
        return column.values.index(token.text)
    return token.text
