"""The clients' data: rows of all clients end to end, and where each client's begin.

In process the whole population sits in one place, as in any simulation; only the clients' side of the seam (work and
guard) ever reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.objective import Batch
from sordina.federated.order import Order, arrange


@dataclass(frozen=True)
class Population:
    """``x`` and ``y`` of all clients, client c owning rows ``starts[c] : starts[c] + sizes[c]``."""

    x: Tensor
    y: Tensor
    sizes: NDArray[np.int64]
    numbers: NDArray[np.int64] | None = None
    """By which numbers the server calls the clients, where these are not 0, 1, ...: their rows' order depends on it."""

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) == int(self.sizes.sum()):
            raise InvalidInput(
                f"{len(self.x)} inputs, {len(self.y)} targets and {int(self.sizes.sum())} rows of clients do not match."
            )

    @classmethod
    def of(cls, shards: Sequence[tuple[Tensor, Tensor]]) -> Population:
        """From one ``(x, y)`` per client.

        >>> people = Population.of([(torch.zeros(3, 2), torch.zeros(3)), (torch.ones(1, 2), torch.ones(1))])
        >>> len(people), people.sizes.tolist()
        (2, [3, 1])
        """
        if not shards:
            raise InvalidInput("a federation needs at least one client.")
        x, y = (torch.cat([shard[i] for shard in shards]) for i in (0, 1))
        return cls(x, y, np.array([len(shard[0]) for shard in shards], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each client."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def cohort(self, ids: NDArray[np.int64]) -> Cohort:
        """The clients ``ids``, in that order."""
        return Cohort(self, np.asarray(ids, dtype=np.int64))

    def to(self, dtype: torch.dtype) -> Population:
        """The same clients with inputs, and targets that are not classes, in ``dtype``."""
        y = self.y.to(dtype) if self.y.is_floating_point() else self.y
        return Population(self.x.to(dtype), y, self.sizes, self.numbers)


@dataclass(frozen=True)
class Cohort:
    """Some clients of a population. Work on several steps expects them sorted by size, largest first."""

    population: Population
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each client."""
        return self.population.sizes[self.ids]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """By which number the server calls each client."""
        return self.ids if self.population.numbers is None else self.population.numbers[self.ids]

    def whole(self) -> Batch:
        """All rows of every client, padded to the largest."""
        position = np.arange(max(1, int(self.sizes.max(initial=0))))[None]
        return self._batch(np.where(position < self.sizes[:, None], position, -1))

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """All rows of every client end to end, and the place in the cohort of the client each belongs to."""
        sizes = self.sizes
        owner = np.repeat(np.arange(len(self)), sizes)
        first = np.repeat(self.population.starts[self.ids] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        index = torch.from_numpy(first + np.arange(len(owner)))
        return self.population.x[index], self.population.y[index], torch.from_numpy(owner)

    def batches(self, order: Order, *, batch: int, epochs: int = 1, steps: int | None = None) -> Iterator[Batch]:
        """The local batches, step after step, for the clients that still have one: a prefix of the cohort."""
        for positions in arrange(self.sizes, self.numbers, order, batch=batch, epochs=epochs, steps=steps):
            yield self._batch(positions)

    def _batch(self, positions: NDArray[np.int64]) -> Batch:
        """Rows at ``positions`` of the first clients; -1 is padding, filled with the client's first row."""
        starts = self.population.starts[self.ids[: len(positions)], None]
        last = len(self.population.x) - 1
        index = torch.from_numpy(np.minimum(starts + np.maximum(positions, 0), last))
        x, y = self.population.x[index], self.population.y[index]
        return Batch(x, y, torch.from_numpy(positions >= 0).to(x.dtype if x.is_floating_point() else torch.float32))
