"""The clients' data, the order in which a client goes through its rows, and who takes part in a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.objective import Batch
from sordina.sampling import Sampler

# In which order a client goes through its rows: a pure function of (seed, round, client).
#
# Every client could shuffle with a generator of its own; making one costs more than training a small client. A counter
# hashed with SplitMix64 (Steele, Lea and Flood 2014) gives each row a key instead, and sorting the keys shuffles: all
# clients at once, and the same whether they are computed alone or together. The order protects nobody and no
# guarantee rests on it; noise never comes from here.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class RowOrder:
    """The seed of a run and the number of the round: with a client's number, they fix its shuffles."""

    seed: int = 0
    round: int = 0


def _mix(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


def shuffles(sizes: NDArray[np.int64], clients: NDArray[np.int64], order: RowOrder, epochs: int) -> NDArray[np.int64]:
    """``epochs`` permutations per client, shape (clients, epochs, largest size); entries beyond a size mean nothing.

    >>> one = shuffles(np.array([4]), np.array([7]), RowOrder(1, 2), 1)[0, 0]
    >>> sorted(one.tolist())
    [0, 1, 2, 3]
    >>> both = shuffles(np.array([6, 4]), np.array([3, 7]), RowOrder(1, 2), 1)
    >>> both[1, 0, :4].tolist() == one.tolist()
    True
    """
    largest = int(sizes.max(initial=0))
    with np.errstate(over="ignore"):
        key = _mix(np.uint64(order.seed & (2**64 - 1)) + _GOLDEN)
        key = _mix(key + np.uint64(order.round + 1) * _GOLDEN)
        key = _mix(key + (clients.astype(np.uint64) + np.uint64(1)) * _GOLDEN)[:, None, None]
        key = _mix(key + (np.arange(epochs, dtype=np.uint64)[:, None] + np.uint64(1)) * _GOLDEN)
        key = _mix(key + (np.arange(largest, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)
    key = np.where(np.arange(largest) < sizes[:, None, None], key, np.uint64(2**64 - 1))
    return np.argsort(key, axis=-1, kind="stable")


def arrange(
    sizes: NDArray[np.int64],
    clients: NDArray[np.int64],
    order: RowOrder,
    *,
    batch_size: int,
    epochs: int = 1,
    steps: int | None = None,
) -> Iterator[NDArray[np.int64]]:
    """The positions of each local step, shape (clients that still take it, batch), -1 where a batch is short.

    A client goes through its rows ``epochs`` times, or until it has made ``steps`` steps, each time shuffled anew;
    one that fits into a single batch keeps its order. ``sizes`` must not increase, so the clients that take step s
    are the first ones.
    """
    if batch_size < 1 or epochs < 1 or (steps is not None and steps < 1):
        raise InvalidInput(f"local batch, epochs and steps must be at least 1, got {batch_size}, {epochs}, {steps}.")
    if np.any(np.diff(sizes) > 0):
        raise InvalidInput("clients must be sorted by size, largest first.")
    if not len(sizes) or not sizes.max(initial=0):
        return
    per_epoch = -(-sizes // batch_size)
    total = per_epoch * epochs if steps is None else np.where(sizes > 0, steps, 0)
    width = int(min(batch_size, sizes.max()))
    if per_epoch.max() == 1:
        permutation = np.broadcast_to(np.arange(width), (len(sizes), 1, width))
        passes = 1
    else:
        passes = int((-(-total // np.maximum(per_epoch, 1))).max())
        permutation = shuffles(sizes, clients, order, passes)
        single = per_epoch == 1
        permutation[single] = np.arange(permutation.shape[-1])
    lanes = np.arange(len(sizes))
    for step in range(int(total.max())):
        taking = int((total > step).sum())
        lane, count = lanes[:taking, None], per_epoch[:taking, None]
        slot = (step % count) * batch_size + np.arange(width)
        inside = slot < sizes[:taking, None]
        chosen = permutation[lane, (step // count) % passes, np.minimum(slot, permutation.shape[-1] - 1)]
        yield np.where(inside, chosen, -1)


# The clients' data: rows of all clients end to end, and where each client's begin.
#
# In process the whole population sits in one place, as in any simulation; only the clients' side of the seam (work and
# guard) ever reads it.


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

    def batches(
        self, order: RowOrder, *, batch_size: int, epochs: int = 1, steps: int | None = None
    ) -> Iterator[Batch]:
        """The local batches, step after step, for the clients that still have one: a prefix of the cohort."""
        for positions in arrange(self.sizes, self.numbers, order, batch_size=batch_size, epochs=epochs, steps=steps):
            yield self._batch(positions)

    def _batch(self, positions: NDArray[np.int64]) -> Batch:
        """Rows at ``positions`` of the first clients; -1 is padding, filled with the client's first row."""
        starts = self.population.starts[self.ids[: len(positions)], None]
        last = len(self.population.x) - 1
        index = torch.from_numpy(np.minimum(starts + np.maximum(positions, 0), last))
        x, y = self.population.x[index], self.population.y[index]
        return Batch(x, y, torch.from_numpy(positions >= 0).to(x.dtype if x.is_floating_point() else torch.float32))


# Who takes part in a round.


class ClientSelection(Protocol):
    """Draws the clients of a round."""

    def draw(self, number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The clients of round ``number``, out of ``size``."""
        ...


@dataclass(frozen=True)
class SampledClients:
    """A fresh sample every round; central accounting needs the sampler's randomness."""

    sampler: Sampler

    def draw(self, number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Whatever the sampler draws."""
        return self.sampler.draw(size, rng)


@dataclass(frozen=True)
class ClientsInTurn:
    """Everybody once before anybody twice, in an order shuffled anew for each pass.

    Leakage that composes by addition is then spread evenly, where fresh samples would hit some clients twice as often
    as others. A pass leaves out the ``size % clients_per_round`` clients that do not fill a round.

    >>> seen = [ClientsInTurn(3, seed=1).draw(t, 7, np.random.default_rng(0)) for t in range(4)]
    >>> len(set(np.concatenate(seen[:2]))), len(set(np.concatenate(seen[2:])))
    (6, 6)
    """

    clients_per_round: int
    seed: int = 0

    def draw(self, number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The next ``clients_per_round`` clients of the present pass."""
        if not 0 < self.clients_per_round <= size:
            raise InvalidInput(f"the clients per round must lie in [1, {size}], got {self.clients_per_round}.")
        turn, place = divmod(number, size // self.clients_per_round)
        order: NDArray[np.int64] = shuffles(np.array([size]), np.array([0]), RowOrder(self.seed, turn), 1)[0, 0]
        return order[place * self.clients_per_round : (place + 1) * self.clients_per_round]
