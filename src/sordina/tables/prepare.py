"""Preparation: a fixed public map from a row to numbers, decided by the schema alone.

=========  ==========================================================================================================
kind       columns
=========  ==========================================================================================================
number     clipped to [low, high] and scaled to [0, 1] (``log``: ``log(1 + v - low) / log(1 + high - low)``); a missing
           value becomes 1/2, and ``name=missing`` 1 where the column is optional
category   one column per value, ``name=other``, and ``name=missing`` where the column is optional
date       days, then as a number
=========  ==========================================================================================================

No statistic of the rows is used, so preparation costs no budget.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from sordina.errors import InvalidInput
from sordina.tables.readers import CodedTexts, Piece, pieces
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema

Matrix = NDArray[np.float32]
_DAY = np.timedelta64(1, "D")


class PreparedRows(np.ndarray[Any, np.dtype[np.float32]]):
    """Rows that `Prepare` made: a matrix that knows the names of its columns, with values in [0, 1].

    A private estimator takes names and bounds from it. No guarantee rests on that: it clips to the bounds all the same.
    """

    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Matrix, names: tuple[str, ...]) -> PreparedRows:
        """A view of ``rows`` that knows ``names``.

        Args:
            rows: The rows.
            names: One for each column.
        """
        view = rows.view(cls)
        view.names = names
        return view

    def __array_finalize__(self, source: Any) -> None:
        """Names go with rows that are cut out."""
        self.names = getattr(source, "names", ())

    def frame(self) -> Any:
        """The rows as a frame with names, where there still is one for each column; else a plain matrix."""
        import pandas

        plain = np.asarray(self)
        if plain.ndim != 2 or plain.shape[1] != len(self.names):
            return plain
        return pandas.DataFrame(plain, columns=list(self.names), copy=False)


class Prepare(TransformerMixin, BaseEstimator):
    """A schema's preparation as a transformer of scikit-learn; fitting learns nothing.

    Args:
        schema: A `Schema`, plain data of the same form, or the path of a TOML file.

    >>> import pandas
    >>> schema = {"columns": {"age": {"kind": "number", "low": 0, "high": 100, "optional": False}}}
    >>> Prepare(schema).fit_transform(pandas.DataFrame({"age": [50, 120]})).tolist()
    [[0.5], [1.0]]
    """

    def __init__(self, schema: Schema | dict[str, Any] | str | Path) -> None:
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> Prepare:
        """Check the schema; nothing is learned from ``X``.

        Args:
            X: A frame or path with the schema's feature columns.
            y: Ignored.
        """
        self.schema_ = Schema.load(self.schema).complete()
        self.n_features_in_ = len(self.schema_.features)
        return self

    def transform(self, X: Any) -> Matrix:
        """The prepared rows, one float32 row each.

        Args:
            X: A frame, or the path of a file, with the schema's feature columns.
        """
        schema = self._fitted()
        wanted = [column.name for column in schema.features]
        parts = [features(piece, schema) for piece in pieces(X, wanted, schema=schema)]
        rows = np.concatenate(parts) if parts else np.empty((0, len(feature_names(schema))), np.float32)
        return PreparedRows.of(rows, tuple(feature_names(schema)))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The names of the prepared columns.

        Args:
            input_features: Ignored; the schema knows.
        """
        return np.asarray(feature_names(self._fitted()), dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _fitted(self) -> Schema:
        found = getattr(self, "schema_", None)
        return found if isinstance(found, Schema) else Schema.load(self.schema).complete()


def feature_names(schema: Schema) -> list[str]:
    """The names of the prepared columns, in order.

    Args:
        schema: What is public about the table.
    """
    names: list[str] = []
    for column in schema.features:
        if column.kind is ColumnKind.CATEGORY:
            names += [f"{column.name}={value}" for value in column.values] + [f"{column.name}=other"]
        else:
            names.append(column.name)
        if column.optional:
            names.append(f"{column.name}=missing")
    return names


def features(piece: Piece, schema: Schema) -> Matrix:
    """The prepared rows of one piece.

    Args:
        piece: Rows with the schema's feature columns.
        schema: What is public about the table.
    """
    matrix = np.zeros((len(piece), len(feature_names(schema))), np.float32)
    at = 0
    for column in schema.features:
        raw = piece.columns[column.name]
        if column.kind is ColumnKind.CATEGORY:
            codes = category_codes(raw, column, schema, piece.first)
            width = len(column.values) + 1 + column.optional
            matrix[np.arange(len(piece)), at + codes] = 1
        else:
            values, gaps = numbers(raw, column, schema, piece.first)
            matrix[:, at] = unit_interval(values, column)
            width = 1 + column.optional
            if column.optional:
                matrix[:, at + 1] = gaps
        at += width
    return matrix


def unit_interval(values: NDArray[np.float64], column: ColumnSchema) -> NDArray[np.float64]:
    """Clip ``values`` to the column's range and scale them to [0, 1]; missing ones become 1/2.

    Args:
        values: Numbers, NaN where missing.
        column: Its range and scale.
    """
    if column.low is None or column.high is None:
        raise InvalidInput(f"column {column.name!r} has no range: state low and high.")
    above = np.clip(values, column.low, column.high) - column.low
    span = column.high - column.low
    scaled = np.log1p(above) / np.log1p(span) if column.scale == "log" else above / span
    return np.where(np.isnan(values), 0.5, scaled)


def numbers(
    raw: NDArray[Any] | CodedTexts, column: ColumnSchema, schema: Schema, first: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A column as numbers (dates as days since 1970), and where it is missing.

    Args:
        raw: The column as it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
        first: The number of the first row, for messages.
    """
    values, gaps = _read_numbers(raw, column, schema)
    wrong = ~gaps & ~np.isfinite(values)
    what = "a date" if column.kind is ColumnKind.DATE else "a number"
    _refuse(wrong, column, first, f"does not hold {what}", "Correct it, or list what stands there under missing.")
    _refuse_gaps(gaps, column, first)
    return np.where(gaps, np.nan, values), gaps


def readable_numbers(raw: NDArray[Any], column: ColumnSchema, schema: Schema) -> NDArray[np.float64]:
    """The numbers of a column, or its dates as days, without what is missing or cannot be read.

    Args:
        raw: The column as it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
    """
    values, gaps = _read_numbers(raw, column, schema)
    return values[~gaps & np.isfinite(values)]


def number_values(raw: NDArray[Any], column: ColumnSchema, schema: Schema) -> NDArray[np.float64]:
    """A column as numbers (dates as days since 1970), NaN where it is missing or cannot be read; refuses nothing.

    Args:
        raw: The column as it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
    """
    values, gaps = _read_numbers(raw, column, schema)
    return np.where(gaps, np.nan, values)


def text_values(raw: NDArray[Any], column: ColumnSchema, schema: Schema) -> NDArray[Any]:
    """A column as texts, None where it is missing; refuses nothing.

    Args:
        raw: The column as it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
    """
    texts, gaps = _texts(raw, schema.missing_for(column))
    found = np.empty(len(texts), dtype=object)
    found[:] = [None if gap else text for text, gap in zip(texts, gaps.tolist(), strict=True)]
    return found


def present_texts(raw: NDArray[Any], column: ColumnSchema, schema: Schema) -> list[str]:
    """The values of a column of categories, without what is missing.

    Args:
        raw: The column as it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
    """
    texts, gaps = _texts(raw, schema.missing_for(column))
    return [text for text, gap in zip(texts, gaps.tolist(), strict=True) if not gap]


_WHOLE = re.compile(r"^(-?\d+)\.0+$")
"""A whole number with zeros behind its point."""


def person_texts(raw: NDArray[Any] | CodedTexts) -> list[str]:
    """Whose row it is, as one text per person: however a piece of a table holds an id, it reads alike.

    Spaces around an id do not count, nor whether a whole number is written 7, 7.0 or "7": with one missing id, a reader
    turns all whole numbers of a piece into floats. All rows without an id count as one person's.

    Args:
        raw: The column of persons as it was read.
    """
    if isinstance(raw, CodedTexts):
        different = person_texts(raw.texts)
        return [different[code] for code in raw.codes.tolist()]
    return [_WHOLE.sub(r"\1", _text(value)) for value in raw.tolist()]


def category_codes(
    raw: NDArray[Any] | CodedTexts, column: ColumnSchema, schema: Schema, first: int
) -> NDArray[np.int64]:
    """The position of each value in the column's list; the list's length for others, one more for missing.

    Args:
        raw: The column as it was read.
        column: What is public about it.
        schema: The table's list of what stands for a missing value.
        first: The number of the first row, for messages.
    """
    different = raw.texts if isinstance(raw, CodedTexts) else raw
    texts, gaps = _texts(different, tuple(one for one in schema.missing_for(column) if one not in column.values))
    places = {value: code for code, value in enumerate(column.values)}
    other = len(column.values)
    codes = np.fromiter((places.get(text, other) for text in texts), np.int64, len(texts))
    codes[gaps] = other + 1
    codes = codes[raw.codes] if isinstance(raw, CodedTexts) else codes
    _refuse_gaps(codes == other + 1, column, first)
    return codes


def _read_numbers(
    raw: NDArray[Any] | CodedTexts, column: ColumnSchema, schema: Schema
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers (NaN where none can be read), and where nothing stands."""
    if isinstance(raw, CodedTexts):
        values, gaps = _read_numbers(raw.texts, column, schema)
        return values[raw.codes], gaps[raw.codes]
    if column.kind is ColumnKind.DATE:
        return _dates(raw, column, schema)
    if raw.dtype.kind in "iufb":
        values = raw.astype(np.float64)
        absent = [_number(text) for text in schema.missing_for(column) if _text(_number(text)) == text]
        return values, np.isnan(values) | np.isin(values, absent)
    texts, gaps = _texts(raw, schema.missing_for(column))
    if not column.written_plainly:
        texts = [plain_number(text, column) for text in texts]
    return _parsed(texts, gaps), gaps


def _texts(raw: NDArray[Any], missing: Sequence[str]) -> tuple[list[str], NDArray[np.bool_]]:
    """The column as stripped texts, and where nothing stands; whole floats are written without a point."""
    values = raw.tolist()
    try:
        texts = list(map(str.strip, values))
    except TypeError:  # not texts alone
        texts = [_text(value) for value in values]
    return texts, np.fromiter(map(frozenset([*missing, "\0"]).__contains__, texts), np.bool_, len(texts))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if _is_absent(value):
        return "\0"
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    if (
        isinstance(value, Decimal)
        and value.is_finite()
        and value.adjusted() < 400
        and value == value.to_integral_value()
    ):
        return str(int(value))
    try:
        return str(value).strip()
    except ValueError:  # a whole number of more digits than Python writes
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"


def _is_absent(value: Any) -> bool:
    """Whether a frame says by ``value`` that nothing stands there; asks no value whether it equals itself."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    if isinstance(value, Decimal):
        return value.is_nan()
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _parsed(texts: list[str], gaps: NDArray[np.bool_]) -> NDArray[np.float64]:
    kept = ["nan" if gap else text for text, gap in zip(texts, gaps.tolist(), strict=True)] if gaps.any() else texts
    try:
        if "_" not in " ".join(kept):  # Python reads 1_000, files do not mean it
            return np.array(kept, dtype=np.float64)
    except ValueError:
        pass
    return np.fromiter((_number(text) for text in kept), np.float64, len(kept))


def plain_number(text: str, column: ColumnSchema) -> str:
    """A number as programs write it, from how ``column`` writes it; "nan" where it does not.

    Args:
        text: What stands in the file.
        column: Its marks and its unit.
    """
    text = text.removeprefix(column.unit).removesuffix(column.unit).strip()
    whole, _, decimals = text.partition(column.decimal)
    sign, digits = (whole[:1], whole[1:]) if whole[:1] in ("+", "-") else ("", whole)
    groups = digits.split(column.thousands) if column.thousands else [digits]
    if len(groups) > 1 and (not 1 <= len(groups[0]) <= 3 or any(len(one) != 3 for one in groups[1:])):
        return "nan"
    return f"{sign}{''.join(groups)}.{decimals}" if decimals else f"{sign}{''.join(groups)}"


def _number(text: str) -> float:
    try:
        return float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan


def _dates(raw: NDArray[Any], column: ColumnSchema, schema: Schema) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    import pandas

    if raw.dtype.kind == "M":
        stamps = raw.astype("datetime64[s]")
        gaps = np.isnat(stamps)
    else:
        texts, gaps = _texts(raw, schema.missing_for(column))
        read = pandas.to_datetime(
            pandas.Series(texts, dtype=object), format=column.format or "ISO8601", errors="coerce", utc=True
        )
        stamps = read.dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    values = (stamps - np.datetime64("1970-01-01")) / _DAY
    return np.where(np.isnat(stamps), np.nan, values), gaps


def _refuse_gaps(gaps: NDArray[np.bool_], column: ColumnSchema, first: int) -> None:
    if not column.optional:
        _refuse(gaps, column, first, "is missing", "Fill it in, or set optional = true in the schema.")


def _refuse(wrong: NDArray[np.bool_], column: ColumnSchema, first: int, what: str, cure: str) -> None:
    if wrong.any():
        row = first + int(np.argmax(wrong))
        raise InvalidInput(f"row {row}, column {column.name!r} {what} (its value is not shown). {cure}")
