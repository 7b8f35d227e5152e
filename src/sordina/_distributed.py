"""One process or several: who draws the batch, and how their sums meet.

Rank 0 alone is random: it draws the batch of a step and the noise, and tells the others. So a run of several processes
has the same law as a run of one: the same sampling, the same sum, the same single draw of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sordina.sampling import Indices


@dataclass(frozen=True)
class Team:
    """The processes that train together; one process is a team of one."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process draws what is random."""
        return self.rank == 0

    def share(self, indices: Indices | None) -> Indices:
        """Rank 0's ``indices``, on every rank."""
        if self.size == 1:
            assert indices is not None
            return indices
        held = [indices]
        dist.broadcast_object_list(held, src=0)
        return np.asarray(held[0])

    def tell(self, value: Any) -> Any:
        """Rank 0's ``value``, plain data, on every rank."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def portion(self, units: Indices) -> Indices:
        """This rank's part of a batch."""
        return units[self.rank :: self.size]

    def add(self, total: Tensor) -> Tensor:
        """The sum of ``total`` over all ranks."""
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def agree(self, value: Tensor) -> Tensor:
        """Rank 0's ``value``, on every rank."""
        if self.size > 1:
            dist.broadcast(value, src=0)
        return value

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` holds on any rank."""
        return bool(self.add(torch.tensor(float(flag))) > 0) if self.size > 1 else flag


def team() -> Team:
    """The team of this process: that of ``torch.distributed`` where it was initialised."""
    if dist.is_available() and dist.is_initialized():
        return Team(dist.get_rank(), dist.get_world_size())
    return Team()
