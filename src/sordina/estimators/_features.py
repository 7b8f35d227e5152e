"""Columns as a few bins, by public facts alone: what trees and boosting count in.

A number in [0, 1] falls into one of ``bins`` cells of equal width. Columns ``name=value`` of a prepared table (see
`sordina.tables.prepare`) are one categorical feature again: each row is in one cell of it, so a count over all its
cells changes by one when a row comes or goes.

Besides, fixed maps of scaled columns to more columns, so that a linear model can bend; drawn or laid out without
looking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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


KNOTS = 9
"""Knots of a number's hats where they pay; chosen on a part of Adult's training rows (5, 9 and 17 were tried)."""
ROWS_PER_HAT = 50
"""Rows times epsilon that each hat needs; below, noise on more columns costs more than bending brings."""


class HatFeatures(nn.Module):
    """The columns, and for each of some of them ``max(0, 1 - (K - 1) |v - k|)`` at K knots k from 0 to 1.

    Sums of such hats are all piecewise linear functions of v with those knots.
    """

    knots: Tensor

    def __init__(self, columns: Sequence[int], knots: int) -> None:
        super().__init__()
        self.columns = list(columns)
        self.register_buffer("knots", torch.linspace(0, 1, knots), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """The columns of each row and its hats."""
        gaps = (rows[:, self.columns, None] - self.knots).abs() * (len(self.knots) - 1)
        return torch.cat([rows, (1 - gaps).clamp(min=0).flatten(1)], dim=1)

    def width(self, width: int) -> int:
        """How many columns come out of ``width``."""
        return width + len(self.columns) * len(self.knots)


class FourierFeatures(nn.Module):
    """``sqrt(2 / D) cos(W x + b)``, W normal of variance ``2 gamma``: its products approximate the RBF kernel."""

    frequencies: Tensor
    phases: Tensor

    def __init__(self, width: int, size: int, gamma: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)  # public randomness: the same features for everybody
        frequencies = torch.randn(width, size, generator=generator) * math.sqrt(2 * gamma)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("phases", torch.rand(size, generator=generator) * 2 * math.pi, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """The features of each row."""
        return math.sqrt(2 / self.phases.numel()) * torch.cos(rows @ self.frequencies + self.phases)

    def width(self, width: int) -> int:
        """How many columns come out of ``width``."""
        return self.phases.numel()


def number_columns(names: Any, width: int) -> list[int]:
    """The columns that hold numbers, by their names: not those of a category, ``name=value``.

    Args:
        names: Names of the columns; None if they have none, and all are numbers.
        width: How many columns there are.
    """
    return [one.columns[0] for one in binned_features(names, width, 2) if one.ordered]


def knots_for(columns: int, units: int, epsilon: float) -> int:
    """How many knots a number gets, from public facts alone: `KNOTS`, or 0 where rows and budget are too few.

    Args:
        columns: How many columns hold numbers.
        units: Number of rows, or of persons.
        epsilon: Of the budget.
    """
    return KNOTS if columns * KNOTS * ROWS_PER_HAT <= units * epsilon else 0
