"""Texts from files: the text columns of a table with a schema, or the lines of a plain file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.sampling import Users
from sordina.tables.prepare import category_codes, person_texts, text_values
from sordina.tables.readers import pieces
from sordina.tables.schema import ColumnKind, ColumnSchema, Schema

_LINES = ColumnSchema("text", ColumnKind.TEXT)


@dataclass(frozen=True)
class TextTable:
    """Texts, what is known of each, and whose they are.

    Args:
        texts: One per row; several text columns are joined by a space.
        labels: The number of each row's class; None without a target.
        owners: Whose row it is; None if every row is another person.
        schema: What is public about the file.
        persons: What each number in ``owners`` stands for, as the file writes it.
    """

    texts: list[str]
    labels: NDArray[np.int64] | None
    owners: NDArray[np.int64] | None
    schema: Schema
    persons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.schema[self.schema.target].values if self.schema.target else ()

    @property
    def users(self) -> Users | None:
        """The unit of person-level privacy."""
        return None if self.owners is None else Users(self.owners, rows_per_user=self.schema.rows_per_person or 1)

    def rows(self, chosen: NDArray[Any]) -> TextTable:
        """Some rows.

        Args:
            chosen: Their numbers.
        """
        labels = None if self.labels is None else self.labels[chosen]
        owners = None if self.owners is None else self.owners[chosen]
        return TextTable([self.texts[index] for index in chosen], labels, owners, self.schema, self.persons)

    def divided(self, share: float, seed: int) -> tuple[TextTable, TextTable]:
        """Rows to train and rows to score on, by a coin of each person (or row): one more moves nobody else.

        Args:
            share: The part to score on.
            seed: Of the coins.
        """
        if not 0 < share < 1:
            raise InvalidInput(f"the test share must lie between 0 and 1, got {share}.")
        owners = np.arange(len(self)) if self.owners is None else self.owners
        tested = (np.random.default_rng(seed).random(int(owners.max()) + 1) < share)[owners]
        if tested.all() or not tested.any():
            raise InvalidInput("the file is too small for this test share: one of the two parts is empty.")
        return self.rows(np.flatnonzero(~tested)), self.rows(np.flatnonzero(tested))


def read_texts(
    source: Any, schema: Any, *, with_target: bool, encoding: str = "utf-8", separator: str = ","
) -> TextTable:
    """Read the texts of a file.

    Args:
        source: Path of a CSV or Parquet file with a schema, or of a plain file with one text a line.
        schema: What is public about it; None for a plain file.
        with_target: Whether the target is wanted.
        encoding: Of the file.
        separator: Between the fields of a CSV file.
    """
    if schema is None:
        return _lines(Path(source), encoding)
    public = Schema.load(schema).complete()
    columns = [column for column in public.columns if column.kind is ColumnKind.TEXT]
    if not columns:
        raise InvalidInput('the schema has no column of text: state kind = "text" for what the model is to read.')
    target = public[public.target] if with_target and public.target is not None else None
    if with_target and (target is None or target.kind is not ColumnKind.CATEGORY):
        raise InvalidInput("a classifier of texts needs a target that is a category: state target = NAME.")
    roles = [name for name in (target.name if target else None, public.person) if name is not None]
    texts: list[str] = []
    labels: list[NDArray[np.int64]] = []
    owners: list[int] = []
    persons: dict[str, int] = {}
    names = [column.name for column in columns] + roles
    for piece in pieces(source, list(dict.fromkeys(names)), encoding=encoding, separator=separator):
        parts = [text_values(piece.columns[column.name], column, public) for column in columns]
        texts += [" ".join(str(part) for part in row if part) for row in zip(*parts, strict=True)]
        if target is not None:
            labels.append(category_codes(piece.columns[target.name], target, public, piece.first))
        if public.person is not None:
            found = person_texts(piece.columns[public.person])
            owners += [persons.setdefault(text, len(persons)) for text in found]
    if not texts:
        raise InvalidInput("the table has no rows.")
    classes = np.concatenate(labels) if labels else None
    if classes is not None and target is not None and (classes >= len(target.values)).any():
        raise InvalidInput(
            f"column {target.name!r} holds a value that is none of the schema's classes: list it in values, or leave "
            "such rows out."
        )
    return TextTable(texts, classes, np.array(owners) if owners else None, public, tuple(persons))


def _lines(path: Path, encoding: str) -> TextTable:
    try:
        content = path.read_text(encoding=encoding)
    except (OSError, LookupError) as error:
        raise InvalidInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path.name} is not written in {encoding}: say --encoding latin-1, or another.") from error
    texts = [line.strip() for line in content.splitlines() if line.strip()]
    if not texts:
        raise InvalidInput(f"{path.name} has no lines of text.")
    return TextTable(texts, None, None, Schema((_LINES,)))
