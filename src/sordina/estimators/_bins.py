"""Columns as a few bins, by public facts alone: what trees and boosting count in.

A number in [0, 1] falls into one of ``bins`` cells of equal width. Columns ``name=value`` of a prepared table (see
`sordina.tables.prepare`) are one categorical feature again: each row is in one cell of it, so a count over all its
cells changes by one when a row comes or goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class BinnedFeature:
    """One feature as trees see it.

    Args:
        columns: The columns it is made of: one for a number, several for a category.
        cells: How many cells a row can be in.
        ordered: Whether neighbouring cells belong together, as those of a number do.
    """

    columns: tuple[int, ...]
    cells: int
    ordered: bool

    def codes(self, rows: Floats) -> Codes:
        """The cell of each row.

        Args:
            rows: Rows with values in [0, 1].
        """
        if self.ordered:
            return np.minimum((rows[:, self.columns[0]] * self.cells).astype(np.int64), self.cells - 1)
        part = rows[:, self.columns]
        return np.where(part.max(axis=1) > 0.5, part.argmax(axis=1), len(self.columns))


def binned_features(names: Any, width: int, bins: int) -> tuple[BinnedFeature, ...]:
    """The features of a table with these column names.

    Args:
        names: Names of the columns; None if they have none.
        width: How many columns there are.
        bins: Cells of a number.
    """
    texts = [str(name) for name in names] if names is not None else [str(place) for place in range(width)]
    groups: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        head = text.rsplit("=", 1)[0] + "=" if "=" in text else text
        groups.setdefault(head, []).append(place)
    return tuple(
        BinnedFeature(tuple(places), len(places) + 1, ordered=False)
        if head.endswith("=")
        else BinnedFeature(tuple(places), bins, ordered=True)
        for head, places in groups.items()
    )


def all_codes(features: tuple[BinnedFeature, ...], rows: Floats) -> Codes:
    """The cell of each row in each feature, one column per feature.

    Args:
        features: From `binned_features`.
        rows: Rows with values in [0, 1].
    """
    return np.column_stack([feature.codes(rows) for feature in features])
