"""Tables from files and frames, piece by piece: CSV (also gzip), Parquet, pandas, polars.

A piece is a mapping from column names to arrays, with the number of its first row. The text of a file is never in
memory as a whole. What cannot be read is refused in one line that names row and column, and quotes no value.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput

Source: TypeAlias = Any
"""A path, or a pandas or polars frame."""
ROWS_AT_ONCE = 50_000
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Piece:
    """Some rows of a table.

    Args:
        columns: One array per column; texts for files, whatever the frame holds for frames.
        first: The number of the first row, counted from 1; the header of a file is not counted.
    """

    columns: dict[str, NDArray[Any]]
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
            except (UnicodeDecodeError, EOFError, OSError, csv.Error) as error:
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
) -> Iterator[Piece]:
    """The rows of a table, ``rows_at_once`` at a time.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        names: The columns wanted; all if None. One that is not there is refused.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
        rows_at_once: How many rows a piece holds at most.
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
        yield from _csv_pieces(Path(source), present, wanted, encoding, separator, rows_at_once)


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


def _csv_pieces(
    path: Path, present: list[str], wanted: list[str], encoding: str, separator: str, rows_at_once: int
) -> Iterator[Piece]:
    places = [present.index(name) for name in wanted]
    first = 1
    with _open_text(path, encoding) as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        try:
            next(reader)
            while taken := list(itertools.islice(reader, rows_at_once)):
                rows = [row for row in taken if row]  # blank lines are no rows
                if not rows:
                    continue
                if set(map(len, rows)) != {len(present)}:
                    place = next(place for place, row in enumerate(rows) if len(row) != len(present))
                    more = "more" if len(rows[place]) > len(present) else "fewer"
                    raise InvalidInput(
                        f"row {first + place} of {path.name} (line {reader.line_num} or before) has {more} fields than "
                        "the header: is a quote or a separator missing?"
                    )
                columns = list(zip(*rows, strict=True))
                yield Piece({name: _objects(columns[place]) for name, place in zip(wanted, places, strict=True)}, first)
                first += len(rows)
        except (csv.Error, UnicodeDecodeError, EOFError, OSError) as error:
            raise _unreadable(path, encoding, error, first) from error


def _objects(values: Sequence[str]) -> NDArray[Any]:
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
    if isinstance(error, UnicodeDecodeError):
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
