"""By what an answer is divided: known cells that the schema lists, or values that have to be found.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.statistics.noise import TotalsNoise
from sordina.statistics.rows import BoundedRows
from sordina.tables.schema import ColumnKind, ColumnSchema

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
