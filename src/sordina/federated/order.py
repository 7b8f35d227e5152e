"""In which order a client goes through its rows: a pure function of (seed, round, client).

Every client could shuffle with a generator of its own; making one costs more than training a small client. A counter
hashed with SplitMix64 (Steele, Lea and Flood 2014) gives each row a key instead, and sorting the keys shuffles: all
clients at once, and the same whether they are computed alone or together. The order protects nobody and no
guarantee rests on it; noise never comes from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Order:
    """The seed of a run and the number of the round: with a client's number, they fix its shuffles."""

    seed: int = 0
    round: int = 0


def _mix(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


def shuffles(sizes: NDArray[np.int64], clients: NDArray[np.int64], order: Order, epochs: int) -> NDArray[np.int64]:
    """``epochs`` permutations per client, shape (clients, epochs, largest size); entries beyond a size mean nothing.

    >>> one = shuffles(np.array([4]), np.array([7]), Order(1, 2), 1)[0, 0]
    >>> sorted(one.tolist())
    [0, 1, 2, 3]
    >>> both = shuffles(np.array([6, 4]), np.array([3, 7]), Order(1, 2), 1)
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
    order: Order,
    *,
    batch: int,
    epochs: int = 1,
    steps: int | None = None,
) -> Iterator[NDArray[np.int64]]:
    """The positions of each local step, shape (clients that still take it, batch), -1 where a batch is short.

    A client goes through its rows ``epochs`` times, or until it has made ``steps`` steps, each time shuffled anew;
    one that fits into a single batch keeps its order. ``sizes`` must not increase, so the clients that take step s
    are the first ones.
    """
    if batch < 1 or epochs < 1 or (steps is not None and steps < 1):
        raise InvalidInput(f"local batch, epochs and steps must be at least 1, got {batch}, {epochs}, {steps}.")
    if np.any(np.diff(sizes) > 0):
        raise InvalidInput("clients must be sorted by size, largest first.")
    if not len(sizes) or not sizes.max(initial=0):
        return
    per_epoch = -(-sizes // batch)
    total = per_epoch * epochs if steps is None else np.where(sizes > 0, steps, 0)
    width = int(min(batch, sizes.max()))
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
        slot = (step % count) * batch + np.arange(width)
        inside = slot < sizes[:taking, None]
        chosen = permutation[lane, (step // count) % passes, np.minimum(slot, permutation.shape[-1] - 1)]
        yield np.where(inside, chosen, -1)
