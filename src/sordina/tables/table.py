"""A table ready for training: prepared rows, targets, whose row it is, protected groups."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordina.datasets import Task
from sordina.errors import InvalidInput
from sordina.sampling import Users
from sordina.tables.prepare import category_codes, feature_names, features, numbers, person_texts
from sordina.tables.readers import Piece, Source, pieces
from sordina.tables.schema import ColumnKind, Schema


@dataclass(frozen=True)
class PreparedTable:
    """The rows of a table after preparation.

    Args:
        schema: What is public about the table.
        inputs: Float32, one prepared row each; memory-mapped where the source is a file.
        targets: Class codes (int64), or numbers scaled to [0, 1] (float32); None without a target.
        owners: Whose row it is, one code per row; None if every row is another person.
        persons: What each code of ``owners`` stands for, as the file writes it.
        groups: One code per row for every protected attribute.
    """

    schema: Schema
    inputs: Tensor
    targets: Tensor | None = None
    owners: Tensor | None = None
    persons: tuple[str, ...] = ()
    groups: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def task(self) -> Task:
        """Classification for a category, regression for a number."""
        if self.schema.target is None:
            raise InvalidInput("the schema names no target: state target = NAME.")
        number = self.schema[self.schema.target].kind is ColumnKind.NUMBER
        return Task.REGRESSION if number else Task.CLASSIFICATION

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for regression."""
        return self.schema[self.schema.target].values if self.schema.target else ()

    @property
    def users(self) -> Users | None:
        """The unit of person-level privacy, for a trainer."""
        if self.owners is None:
            return None
        return Users(self.owners.numpy(), rows_per_user=self.schema.rows_per_person or 1)

    def dataset(self) -> TensorDataset:
        """Inputs and targets as a data set of PyTorch."""
        if self.targets is None:
            raise InvalidInput("the table was read without a target.")
        return TensorDataset(self.inputs, self.targets)


def read_table(
    source: Source,
    schema: Schema | str | dict[str, Any],
    *,
    with_target: bool = True,
    encoding: str = "utf-8",
    separator: str = ",",
) -> PreparedTable:
    """Read and prepare a table.

    Rows of a file go, piece by piece, into a temporary file that has no name and vanishes with the process; the
    tensor is mapped onto it, so neither the text nor the numbers need to fit into memory.

    Args:
        source: Path of a CSV or Parquet file, or a pandas or polars frame.
        schema: What is public about it: a `Schema`, plain data of that form, or the path of a TOML file.
        with_target: Whether the target is wanted; rows to predict have none.
        encoding: Of a CSV file.
        separator: Between the fields of a CSV file.
    """
    schema = Schema.load(schema).complete()
    target = schema.target if with_target else None
    roles = [name for name in (target, schema.person) if name is not None]
    names = dict.fromkeys(
        [column.name for column in schema.features] + roles + list(schema.groups if with_target else ())
    )
    with tempfile.TemporaryFile(prefix="sordina-") as store:
        reading = _Reading(schema, target, store)
        for piece in pieces(source, list(names), encoding=encoding, separator=separator, schema=schema):
            reading.take(piece)
        return reading.table()


class _Reading:
    """What has been read of a table so far."""

    def __init__(self, schema: Schema, target: str | None, store: IO[bytes]) -> None:
        self.schema, self.target, self.store = schema, target, store
        self.rows = 0
        self.targets: list[Tensor] = []
        self.owners: list[Tensor] = []
        self.persons: dict[str, int] = {}
        self.groups: dict[str, list[Tensor]] = {name: [] for name in schema.groups}

    def take(self, piece: Piece) -> None:
        self.store.write(features(piece, self.schema).data)
        self.rows += len(piece)
        if self.target is not None:
            self.targets.append(_targets(piece, self.schema, self.target))
        if self.schema.person is not None:
            texts = person_texts(piece.columns[self.schema.person])
            codes = [self.persons.setdefault(text, len(self.persons)) for text in texts]
            self.owners.append(torch.tensor(codes, dtype=torch.int64))
        for name, parts in self.groups.items():
            if name in piece.columns:
                codes_ = category_codes(piece.columns[name], self.schema[name], self.schema, piece.first)
                parts.append(torch.from_numpy(codes_))

    def table(self) -> PreparedTable:
        if not self.rows:
            raise InvalidInput("the table has no rows.")
        self.store.flush()
        width = len(feature_names(self.schema))
        if not width:
            raise InvalidInput("the schema leaves no column to learn from: numbers, categories or dates.")
        mapped = np.memmap(self.store, dtype=np.float32, mode="r+", shape=(self.rows, width))
        return PreparedTable(
            self.schema,
            torch.from_numpy(mapped),
            torch.cat(self.targets) if self.target is not None else None,
            torch.cat(self.owners) if self.owners else None,
            tuple(self.persons),
            {name: torch.cat(parts) for name, parts in self.groups.items() if parts},
        )


def _targets(piece: Piece, schema: Schema, target: str) -> Tensor:
    column = schema[target]
    raw = piece.columns[target]
    if column.kind is ColumnKind.CATEGORY:
        codes = category_codes(raw, column, schema, piece.first)
        strange = codes >= len(column.values)
        if strange.any():
            row = piece.first + int(np.argmax(strange))
            raise InvalidInput(
                f"row {row}: the target {target!r} is missing or not one of the {len(column.values)} classes of the "
                "schema (its value is not shown)."
            )
        return torch.from_numpy(codes)
    values, gaps = numbers(raw, column, schema, piece.first)
    if gaps.any():
        row = piece.first + int(np.argmax(gaps))
        raise InvalidInput(f"row {row}: the target {target!r} is missing.")
    low, high = column.low or 0.0, column.high or 0.0
    return torch.from_numpy(((np.clip(values, low, high) - low) / (high - low)).astype(np.float32))
