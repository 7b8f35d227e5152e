"""Several weighted sums for the price of one, where the weights allow it.

The queries of a policy give each unit a column of coefficients, one per query. Columns that are multiples of each other
need one sum between them: with Online clipping a clipped unit has coefficients ``(C/n, 1/n) = (C, 1)/n`` and any other
``(1, 0)``, so two sums over *disjoint* units answer both queries, at the cost of a single sum over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

MOST_PARTS = 3
"""More directions than this are not worth the bookkeeping: the queries are then summed one by one."""


@dataclass(frozen=True)
class Part:
    """Units whose columns are ``mix * scale_i``."""

    index: Tensor | None
    """Which units; None stands for all of them."""
    scale: Tensor
    mix: Tensor
    """Shape (Q,)."""

    def pick(self, x: Tensor) -> Tensor:
        """The part's rows of ``x``."""
        return x if self.index is None else x.index_select(0, self.index)


@dataclass(frozen=True)
class Weights:
    """Coefficients (Q, U), and how they split into parts."""

    rows: Tensor

    @cached_property
    def single(self) -> bool:
        """Whether there is only one query."""
        return self.rows.shape[0] == 1

    @cached_property
    def parts(self) -> tuple[Part, ...] | None:
        """Disjoint parts that cover every unit with a nonzero coefficient; None if there would be too many.

        >>> norms = torch.tensor([0.5, 2.0, 4.0])
        >>> online = Weights(torch.stack([(1 / norms).clamp(max=1), (norms > 1) / norms]))
        >>> [(part.index.tolist(), part.scale.tolist(), part.mix.tolist()) for part in online.parts]
        [([0], [1.0], [1.0, 0.0]), ([1, 2], [0.5, 0.25], [1.0, 1.0])]
        """
        largest = self.rows.abs().amax(0)
        directions = self.rows / largest
        tolerance = 16 * torch.finfo(self.rows.dtype).eps
        left = largest > 0
        parts: list[Part] = []
        while left.any():
            if len(parts) == MOST_PARTS:
                return None
            mix = directions[:, int(left.to(torch.uint8).argmax())]
            members = ((directions - mix[:, None]).abs_() <= tolerance).all(0).logical_and_(left)
            index = None if members.all() else members.nonzero()[:, 0]
            parts.append(Part(index, largest if index is None else largest[index], mix))
            left &= ~members
        return tuple(parts)
