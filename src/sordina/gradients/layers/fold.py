"""Which dimension holds the samples, and how many rows make a unit of privacy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Fold:
    """The batch seen as ``units`` units of ``rows`` consecutive rows each, along dimension ``dim``."""

    units: int
    rows: int = 1
    dim: int = 0

    def places(self, x: Tensor, keep: int = 1) -> Tensor:
        """``x`` as (units, places, features): its last ``keep`` dimensions are features, the others are places.

        >>> Fold(units=2, rows=3).places(torch.zeros(6, 5, 4)).shape
        torch.Size([2, 15, 4])
        """
        x = widen(x)
        if self.dim:
            x = x.movedim(self.dim, 0)
        return x.reshape(self.units, -1, prod(x.shape[x.dim() - keep :]))

    def total(self, x: Tensor, keep: int = 1) -> Tensor:
        """The sum over places: (units, features)."""
        places = self.places(x, keep)
        return places[:, 0] if places.shape[1] == 1 else places.sum(1)

    def by_row(self, x: Tensor) -> Tensor:
        """(units * rows, size) summed over the rows of a unit: (units, size)."""
        return x if self.rows == 1 else x.view(self.units, self.rows, -1).sum(1)


def widen(x: Tensor) -> Tensor:
    """Half precision becomes single: norms are never accumulated in sixteen bits."""
    return x.float() if x.dtype in LOW_PRECISION else x
