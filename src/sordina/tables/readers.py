"""Tables from files and frames, piece by piece: CSV (also gzip), Parquet, pandas, polars.

A piece is a mapping from column names to arrays, with the number of its first row. The text of a file is never in
memory as a whole. What cannot be read is refused in one line that names row and column, and quotes no value.

**Large CSV files.** Where pyarrow is installed and the caller says what the columns hold (``schema``), parts of a file
that hold no quote are parsed by it: there, lines are rows and separators separate, so that it reads what Python's own
reader would. Numbers arrive as numbers where all of a part are plain ones or missing, texts as codes of the different
ones (`CodedTexts`). A part that pyarrow refuses is read again by Python's reader, which says what is wrong.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.tables.schema import ColumnKind, Schema

Source: TypeAlias = Any
"""A path, or a pandas or polars frame."""
ROWS_AT_ONCE = 50_000
_PARQUET = (".parquet", ".pq")
_BLOCK = 4 << 20
_LINE_BY_LINE = frozenset({"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252"})
"""Encodings in which no byte of a letter looks like a quote, a separator or the end of a line."""


@dataclass(frozen=True)
class CodedTexts:
    """A column of texts of which few differ.

    Args:
        texts: The different ones.
        codes: Which of them stands in each row.
    """

    texts: NDArray[Any]
    codes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array of texts."""
        return self.texts.dtype

    def tolist(self) -> list[Any]:
        """The text of each row."""
        return list(self.texts[self.codes].tolist())

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.texts[self.codes]


@dataclass(frozen=True)
class Piece:
    """Some rows of a table.

    Args:
        columns: One array per column; texts for files, whatever the frame holds for frames. Read with a schema, a
            file's numbers may be numbers already (NaN where missing) and its texts `CodedTexts`.
        first: The number of the first row, counted from 1; the header of a file is not counted.
    """

    columns: dict[str, Any]
    first: int

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def header(source: Source, *, encoding: str = "utf-8", separator: str = ",") -> list[str]:
    """The names of the columns.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
    """
    if not isinstance(source, (str, os.PathLike)):
        names = [str(name) for name in _frame_columns(source)]
    elif _is_parquet(Path(source)):
        names = [str(name) for name in _parquet(Path(source)).schema_arrow.names]
    else:
        with _open_text(Path(source), encoding) as file:
            try:
                names = next(csv.reader(file, delimiter=separator))
            except StopIteration:
                raise InvalidInput(f"{source} is empty: it has no header.") from None
            except (UnicodeError, EOFError, OSError, csv.Error) as error:
                raise _unreadable(Path(source), encoding, error) from error
        names = [name.strip() for name in names]
    _refuse_duplicates(source, names)
    return names


def pieces(
    source: Source,
    names: Sequence[str] | None = None,
    *,
    encoding: str = "utf-8",
    separator: str = ",",
    rows_at_once: int = ROWS_AT_ONCE,
    schema: Schema | None = None,
) -> Iterator[Piece]:
    """The rows of a table, about ``rows_at_once`` at a time, and never more without ``schema``.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        names: The columns wanted; all if None. One that is not there is refused.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
        rows_at_once: How many rows a piece holds at most.
        schema: What the columns hold: lets large CSV files be read in the forms that `sordina.tables.prepare` takes.
    """
    present = header(source, encoding=encoding, separator=separator)
    wanted = present if names is None else list(names)
    absent = [name for name in wanted if name not in present]
    if absent:
        raise InvalidInput(
            f"{_called(source)} has no column {', '.join(map(repr, absent[:8]))}: {columns_of(present)}."
        )
    if not isinstance(source, (str, os.PathLike)):
        yield from _frame_pieces(source, wanted, rows_at_once)
    elif _is_parquet(Path(source)):
        yield from _parquet_pieces(Path(source), wanted, rows_at_once)
    else:
        places = [present.index(name) for name in wanted]
        rows = _CsvRows(Path(source), present, dict(zip(wanted, places, strict=True)), encoding, separator)
        yield from rows.blocks(schema) if schema is not None else rows.pieces(rows_at_once)


def refuse_scoring_on(source: Source, test: Source) -> None:
    """Refuse a test table that is the training's: its scores are raw values of the people a guarantee is for.

    Args:
        source: What is trained on.
        test: What is to be scored on.
    """
    same = test is source
    if isinstance(source, (str, os.PathLike)) and isinstance(test, (str, os.PathLike)):
        one, two = Path(source), Path(test)
        same = one.resolve() == two.resolve() or (one.exists() and two.exists() and one.samefile(two))
    if same:
        raise InvalidInput(
            "the test data are the training data: scores are computed without noise, so they would be raw values of "
            "the people the guarantee is for. Give other rows, or a test share."
        )


def columns_of(names: Sequence[str]) -> str:
    """The names of a table's columns for a message; asks about the separator where there is one name full of others.

    Args:
        names: Of the columns.
    """
    other = next((one for one in (";", "\t", "|") if len(names) == 1 and one in names[0]), None)
    if other is not None:
        said = "$'\\t'" if other == "\t" else f"'{other}'"
        return f"its header has no comma; say --separator {said}"
    return f"the columns are {', '.join(map(repr, names[:20]))}{' ...' if len(names) > 20 else ''}"


@dataclass
class _CsvRows:
    """The rows of one CSV file, read from its beginning to its end, once."""

    path: Path
    present: list[str]
    wanted: dict[str, int]
    encoding: str
    separator: str
    first: int = 1
    """The number of the next row."""

    def pieces(self, rows_at_once: int) -> Iterator[Piece]:
        """All rows, by Python's own reader."""
        with _open_text(self.path, self.encoding) as file:
            try:
                next(csv.reader(file, delimiter=self.separator))
            except (csv.Error, UnicodeError, EOFError, OSError) as error:
                raise _unreadable(self.path, self.encoding, error) from error
            yield from self._read(file, rows_at_once)

    def _read(self, file: io.TextIOBase, rows_at_once: int) -> Iterator[Piece]:
        reader = csv.reader(file, delimiter=self.separator, strict=True)
        try:
            while taken := list(itertools.islice(reader, rows_at_once)):
                rows = [row for row in taken if row]  # blank lines are no rows
                if not rows:
                    continue
                if set(map(len, rows)) != {len(self.present)}:
                    place = next(place for place, row in enumerate(rows) if len(row) != len(self.present))
                    more = "more" if len(rows[place]) > len(self.present) else "fewer"
                    raise InvalidInput(
                        f"row {self.first + place} of {self.path.name} has {more} fields than the header: is a quote "
                        "or a separator missing?"
                    )
                columns = list(zip(*rows, strict=True))
                yield Piece({name: _objects(columns[place]) for name, place in self.wanted.items()}, self.first)
                self.first += len(rows)
        except (csv.Error, UnicodeError, EOFError, OSError) as error:
            raise _unreadable(self.path, self.encoding, error, self.first) from error

    def blocks(self, schema: Schema) -> Iterator[Piece]:
        """All rows, by pyarrow as long as parts of the file hold no quote, by Python's reader from there on."""
        with _open_text(self.path, self.encoding) as text:
            raw: Any = text.buffer
            try:
                start = self._after_header(raw)
                parser = None if start is None else _arrow_parser(self, schema)
                while parser is not None and start is not None:
                    block = start + raw.read(_BLOCK)
                    if not block:
                        return
                    block += raw.readline()
                    if b'"' in block or b"\0" in block or block.count(b"\r") != block.count(b"\r\n"):
                        rest = io.TextIOWrapper(io.BufferedReader(_Chained(block, raw)), self.encoding, newline="")
                        yield from self._read(rest, ROWS_AT_ONCE)
                        return
                    start = b""
                    columns = parser(block)
                    if columns is None:
                        yield from self._read(io.StringIO(block.decode(self.encoding), newline=""), ROWS_AT_ONCE)
                    elif piece := Piece(columns, self.first):
                        yield piece
                        self.first += len(piece)
            except (UnicodeError, EOFError, OSError) as error:
                raise _unreadable(self.path, self.encoding, error, self.first) from error
        if parser is None:
            yield from self.pieces(ROWS_AT_ONCE)

    def _after_header(self, raw: IO[bytes]) -> bytes | None:
        """Nothing, after the header was read as one line; None where it may be more, or the encoding is unusual."""
        try:
            plain = codecs.lookup(self.encoding).name in _LINE_BY_LINE
        except LookupError:
            return None
        if not plain or len(self.separator) != 1 or not self.separator.isascii():
            return None
        line = raw.readline().removeprefix(codecs.BOM_UTF8)
        if b"\r" in line.rstrip(b"\r\n"):
            return None
        names = next(csv.reader([line.decode(self.encoding)], delimiter=self.separator), [])
        return b"" if [name.strip() for name in names] == self.present else None


class _Chained(io.RawIOBase):
    """Some bytes that were read already, and then the rest of a stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        part = self._head[: len(into)] or self._rest.read(len(into))
        self._head = self._head[len(into) :]
        into[: len(part)] = part
        return len(part)


def _arrow_parser(rows: _CsvRows, schema: Schema) -> Any:
    """A function from the bytes of whole lines to columns, None where it cannot; or None without pyarrow."""
    try:
        import pyarrow
        from pyarrow import compute
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    reading = arrow_csv.ReadOptions(column_names=rows.present, use_threads=False, block_size=2 * _BLOCK)
    parsing = arrow_csv.ParseOptions(delimiter=rows.separator, quote_char=False, newlines_in_values=False)
    converting = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(rows.present, pyarrow.string()), include_columns=list(rows.wanted)
    )
    absent = {name: _missing_in(schema, name) for name in rows.wanted}

    def column(name: str, texts: Any) -> Any:
        missing = absent[name]
        if missing is not None:
            try:
                gaps = compute.is_in(texts, value_set=pyarrow.array(missing, pyarrow.string()))
                numbers = compute.if_else(gaps, None, texts).cast(pyarrow.float64())
                found = np.asarray(numbers.fill_null(np.nan).to_numpy(zero_copy_only=False))
                if (np.isfinite(found) | np.asarray(gaps.to_numpy(zero_copy_only=False))).all():
                    return found
            except pyarrow.ArrowException:
                pass
        coded = texts.dictionary_encode()
        return CodedTexts(
            _objects(coded.dictionary.to_pylist()), np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int32)
        )

    def parse(block: bytes) -> dict[str, Any] | None:
        try:
            if codecs.lookup(rows.encoding).name not in ("utf-8", "ascii"):
                block = block.decode(rows.encoding).encode()
            if not block.strip(b"\r\n"):
                return None
            table = arrow_csv.read_csv(pyarrow.BufferReader(block), reading, parsing, converting)
        except (pyarrow.ArrowException, UnicodeError):
            return None
        return {name: column(name, table.column(name).combine_chunks()) for name in rows.wanted}

    return parse


def _missing_in(schema: Schema, name: str) -> list[str] | None:
    """What stands for a missing value in a column of numbers; None for other columns, and where a number does."""
    known = [column for column in schema.columns if column.name == name]
    if not known or known[0].kind is not ColumnKind.NUMBER or not known[0].written_plainly:
        return None
    missing = schema.missing_for(known[0])
    return None if any(_is_number(text) for text in missing) else list(missing)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _parquet_pieces(path: Path, wanted: list[str], rows_at_once: int) -> Iterator[Piece]:
    first = 1
    for batch in _parquet(path).iter_batches(batch_size=rows_at_once, columns=wanted):
        columns = {name: batch.column(batch.schema.get_field_index(name)) for name in wanted}
        yield Piece({name: _arrow_values(one) for name, one in columns.items()}, first)
        first += batch.num_rows


def _arrow_values(column: Any) -> NDArray[Any]:
    """The values of a column; whole numbers too large for a float stay exact where one beside them is missing."""
    from pyarrow import types

    exact = types.is_integer(column.type) and column.null_count > 0
    return np.asarray(column.to_pandas(integer_object_nulls=exact))


def _frame_pieces(frame: Any, wanted: list[str], rows_at_once: int) -> Iterator[Piece]:
    names = list(_frame_columns(frame))
    keys = {name: names[[str(one) for one in names].index(name)] for name in wanted}
    for start in range(0, len(frame), rows_at_once):
        part = getattr(frame, "iloc", frame)[start : start + rows_at_once]  # pandas 2 slices a float index by label
        yield Piece({name: np.asarray(part[key].to_numpy()) for name, key in keys.items()}, start + 1)


def _frame_columns(frame: Any) -> Any:
    if not hasattr(frame, "columns") or not hasattr(frame, "__getitem__"):
        raise InvalidInput(
            f"a table is a path of a CSV or Parquet file, or a pandas or polars frame; got {type(frame).__name__}."
        )
    return frame.columns


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in _PARQUET


def _parquet(path: Path) -> Any:
    _refuse_special(path)
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InvalidInput("Parquet files need pyarrow: pip install 'sordina[tables]'.") from error
    try:
        return parquet.ParquetFile(path)
    except (OSError, ArrowException) as error:
        raise InvalidInput(f"{path} is not a readable Parquet file.") from error


def _open_text(path: Path, encoding: str) -> io.TextIOWrapper:
    _refuse_special(path)
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        stream: Any = gzip.open(path) if compressed else path.open("rb")  # noqa: SIM115 (the wrapper closes it)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}.") from error
    name = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    try:
        return io.TextIOWrapper(stream, encoding=name, newline="")
    except LookupError:
        stream.close()
        raise InvalidInput(f"no encoding is called {encoding!r}: try utf-8, latin-1 or cp1252.") from None


def _refuse_special(path: Path) -> None:
    """A folder, a pipe or a device is no table; opening a pipe would wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        raise InvalidInput(f"{path} is not a file.")


def _unreadable(path: Path, encoding: str, error: Exception, first: int = 1) -> InvalidInput:
    if isinstance(error, UnicodeError):
        return InvalidInput(
            f"{path.name} is not written in {encoding} (found after row {first - 1}): say --encoding latin-1, or "
            "whichever it is."
        )
    if isinstance(error, (EOFError, OSError)):
        return InvalidInput(f"{path.name} ends too early or is damaged (after row {first - 1}).")
    return InvalidInput(f"{path.name} is not a readable CSV file (after row {first - 1}): is a quote left open?")


def _refuse_duplicates(source: Source, names: list[str]) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names, 1):
        if not name:
            raise InvalidInput(f"column {position} of {_called(source)} has no name in the header.")
        if name in seen:
            raise InvalidInput(f"{_called(source)} has two columns called {name!r}: rename one.")
        seen.add(name)


def _called(source: Source) -> str:
    return Path(source).name if isinstance(source, (str, os.PathLike)) else "the frame"
