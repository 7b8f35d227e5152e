"""Two weighted sums for the price of one, where the weights allow it.

With Online clipping a clipped unit has coefficients ``(C/n, 1/n)`` and any other ``(1, 0)``. The two sums
``a = sum g_i / n_i`` over the clipped units and ``b = sum g_i`` over the others run over *disjoint* units, and so cost
as much as a single sum over all of them; the answers are ``C a + b`` and ``a``. Where few units are clipped, it is
cheaper still to sum over all of them once, and over the clipped ones once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOLERANCE = {4: 2e-6, 8: 4e-15}
"""How far ratios may differ and still count as rounded from the same number, by the bytes of a number."""


@dataclass(frozen=True)
class Split:
    """Units in two parts: in the first the coefficients are ``(ratio, 1) scale``, in the second ``(1, 0) scale``."""

    order: Tensor | None
    """Indices of the units, first part first; None if they all are in one part."""
    first: int
    """How many units the first part has."""
    scale: Tensor
    """One factor per unit, in that order."""
    ratio: float

    def arranged(self, x: Tensor) -> Tensor:
        """The rows of ``x`` in that order."""
        return x if self.order is None else x.index_select(0, self.order)

    def parts(self) -> tuple[slice, slice]:
        """Where the parts lie in that order."""
        return slice(0, self.first), slice(self.first, len(self.scale))


class Query(NamedTuple):
    """The coefficients of one query that are not zero."""

    scale: Tensor
    units: Tensor | None
    """The units they belong to; None stands for all."""

    @classmethod
    def of(cls, row: Tensor, values: NDArray[Any]) -> Query:
        """Leave out the zeros where that saves at least half."""
        if 2 * np.count_nonzero(values) > len(values):
            return cls(row, None)
        units = torch.from_numpy(values.nonzero()[0]).to(row.device)
        return cls(row.index_select(0, units), units)

    def chosen(self, x: Tensor) -> Tensor:
        """The rows of ``x`` that take part."""
        return x if self.units is None else x.index_select(0, self.units)


@dataclass(frozen=True)
class Weights:
    """The coefficients of Q queries for U units, shape (Q, U)."""

    rows: Tensor

    @property
    def single(self) -> bool:
        """Whether there is only one query."""
        return len(self.rows) == 1

    @cached_property
    def queries(self) -> list[Query]:
        """The queries one by one, each with the units that take part in it if they are few.

        >>> Weights(torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.5, 0.0]])).queries
        [Query(scale=tensor([1., 1., 1.]), units=None), Query(scale=tensor([0.5000]), units=tensor([1]))]
        """
        if self.single:
            return [Query(self.rows[0], None)]
        return [Query.of(row, values) for row, values in zip(self.rows, self.rows.cpu().numpy(), strict=True)]

    @property
    def mostly_two(self) -> bool:
        """Whether there are two queries in which most units take part: then a `split` saves most."""
        return len(self.rows) == 2 and all(query.units is None for query in self.queries)

    @cached_property
    def split(self) -> Split | None:
        """The two parts, if there are two queries and their coefficients allow it.

        >>> norms = torch.tensor([2.0, 0.5, 4.0])
        >>> split = Weights(torch.stack([(1 / norms).clamp(max=1), (norms > 1) / norms])).split
        >>> split.order.tolist(), split.first, split.scale.tolist(), split.ratio
        ([0, 2, 1], 2, [0.5, 0.25, 1.0], 1.0)
        """
        if len(self.rows) != 2:
            return None
        rows = self.rows.detach().cpu().numpy()
        alone = rows[1] == 0
        first = len(alone) - int(np.count_nonzero(alone))
        if first == 0:
            return Split(None, 0, self.rows[0], 0.0)
        order = alone.argsort(kind="stable")
        one, two = rows[:, order]
        ratios = one[:first] / two[:first]
        low, high = float(ratios.min()), float(ratios.max())
        if not high - low <= TOLERANCE[rows.dtype.itemsize] * abs(high):
            return None
        if first == len(alone):
            return Split(None, first, self.rows[1], high)
        two[first:] = one[first:]
        device = self.rows.device
        return Split(torch.from_numpy(order).to(device), first, torch.from_numpy(two).to(device), high)
