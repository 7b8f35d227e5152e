"""Divide rows among clients, make clients differ, and hold a federation's data together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.privacy import check_positive

# Divide rows among clients, and make clients differ.
#
# `iid`, `by_quantity`, `by_label` and `by_key` return one array of row numbers per client; every row is used exactly
# once, and no client is empty unless ``smallest=0`` asks for it. `rotate` and `shift_concept` change clients that
# exist.

Rows: TypeAlias = npt.NDArray[np.int64]
Shard: TypeAlias = tuple[Tensor, Tensor]
"""``(x, y)`` of one client."""


def iid(count: int, clients: int, rng: np.random.Generator) -> list[Rows]:
    """Shuffle ``count`` rows and deal them out evenly.

    >>> [len(rows) for rows in iid(10, 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _check(count, clients, 1)
    return [np.sort(rows) for rows in np.array_split(rng.permutation(count), clients)]


def by_quantity(
    count: int, clients: int, rng: np.random.Generator, *, alpha: float = 1.0, smallest: int = 1
) -> list[Rows]:
    """Shuffled rows in unequal shares ~ Dirichlet(alpha): quantity skew, the stronger the smaller ``alpha``.

    >>> sum(len(rows) for rows in by_quantity(1000, 7, np.random.default_rng(0), alpha=0.3))
    1000
    """
    _check(count, clients, smallest)
    shares = rng.dirichlet(np.full(clients, check_positive("alpha", alpha)))
    free = count - clients * smallest
    cuts = _cuts(shares, free) + smallest * np.arange(1, clients)
    return [np.sort(rows) for rows in np.split(rng.permutation(count), cuts)]


def by_label(
    labels: npt.ArrayLike, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, smallest: int = 1
) -> list[Rows]:
    """Label skew (Hsu et al. 2019): the rows of each class go to the clients in shares ~ Dirichlet(alpha).

    A client left with fewer than ``smallest`` rows is then given random rows of whoever has the most.
    """
    kinds = np.asarray(labels)
    _check(len(kinds), clients, smallest)
    concentration = np.full(clients, check_positive("alpha", alpha))
    held: list[list[Rows]] = [[] for _ in range(clients)]
    for kind in np.unique(kinds):
        rows = rng.permutation(np.flatnonzero(kinds == kind))
        for client, part in enumerate(np.split(rows, _cuts(rng.dirichlet(concentration), len(rows)))):
            held[client].append(part)
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in held]
    return [np.sort(rows) for rows in _top_up(parts, smallest)]


def by_key(keys: npt.ArrayLike) -> list[Rows]:
    """One client per distinct key (writer, hospital), in the order of the keys.

    >>> [rows.tolist() for rows in by_key([7, 3, 7, 7])]
    [[1], [0, 2, 3]]
    """
    values = np.asarray(keys)
    _, counts = np.unique(values, return_counts=True)
    return list(np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1]))


def rotate(
    shards: Sequence[Shard], rng: np.random.Generator, *, probability: float = 0.5, quarter_turns: int = 1
) -> tuple[list[Shard], list[int]]:
    """Turn all images of a client counter-clockwise with a ``probability``; also says whom it turned (1) or not (0).

    000 section 2.5.1: ``rot_c ~ Bernoulli(1/2)``, 90 degrees.
    """
    if not 0 <= probability <= 1:
        raise InvalidInput(f"the probability of a rotation must lie in [0, 1], got {probability}.")
    turned = [int(draw < probability) for draw in rng.random(len(shards))]
    changed = [
        (torch.rot90(x, quarter_turns, dims=(-2, -1)) if turn else x, y)
        for (x, y), turn in zip(shards, turned, strict=True)
    ]
    return changed, turned


def shift_concept(
    shards: Sequence[Shard], rng: np.random.Generator, *, classes: int, clusters: int = 2
) -> tuple[list[Shard], list[int]]:
    """Give every cluster of clients its own meaning of the labels; also says which cluster each client is in.

    Clients are dealt out evenly and at random. Cluster 0 keeps its labels; each other cluster permutes them.
    """
    _check(len(shards), clusters, 1)
    meanings = [torch.arange(classes), *(torch.from_numpy(rng.permutation(classes)) for _ in range(clusters - 1))]
    cluster = [int(index) for index in rng.permutation(np.arange(len(shards)) % clusters)]
    return [(x, meanings[index][y]) for (x, y), index in zip(shards, cluster, strict=True)], cluster


def take(x: Tensor, y: Tensor, parts: Sequence[Rows]) -> list[Shard]:
    """The rows of each client as tensors."""
    return [(x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]) for rows in parts]


def _check(count: int, clients: int, smallest: int) -> None:
    if clients < 1 or smallest < 0:
        raise InvalidInput(f"at least one client and no negative sizes, got {clients} clients of {smallest} or more.")
    if clients * smallest > count:
        raise InvalidInput(f"{count} rows cannot give {clients} clients {smallest} or more each.")


def _cuts(shares: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    return np.rint(np.cumsum(shares)[:-1] * count).astype(np.int64)


def _top_up(parts: list[Rows], smallest: int) -> list[Rows]:
    sizes = np.array([len(rows) for rows in parts])
    while sizes.min() < smallest:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        parts[poor], parts[rich] = np.append(parts[poor], parts[rich][-1]), parts[rich][:-1]
        sizes[poor] += 1
        sizes[rich] -= 1
    return parts


# Clients with their data, and everything a run needs to know about them.


@dataclass(frozen=True)
class Groups:
    """A protected attribute: for each client, one code per row."""

    names: tuple[str, ...]
    train: list[Tensor]
    validation: list[Tensor]


@dataclass(frozen=True)
class Federation:
    """Training and held-out clients, as plain ``(x, y)`` tensors."""

    name: str
    train: list[Shard]
    validation: list[Shard]
    model: str
    """Name in `sordina.models`."""
    loss: str
    """Name in `sordina.models.losses`."""
    metric: str
    """Name in `sordina.models.metrics`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model."""
    root: bool = False
    """Whether a client minimises the root of its mean loss (RMSE) rather than the mean."""
    clusters: tuple[list[int], list[int]] | None = None
    """Which distribution each client (training, validation) comes from: known in a simulation only."""
    optima: tuple[Tensor, ...] = ()
    """The parameters the data were generated with, one flat vector per cluster."""
    groups: Mapping[str, Groups] = field(default_factory=dict)
    outcome: Callable[[Tensor, Tensor], Tensor] | None = None
    """For fairness: ``(values or predicted classes, group codes) -> 0/1``; none if the class is the outcome."""
    source: str = ""


def by_cluster(
    names: tuple[str, ...], train: list[Shard], validation: list[Shard], clusters: tuple[list[int], list[int]]
) -> Groups:
    """Groups in which all rows of a client are alike: a client's cluster is its group."""

    def codes(shards: list[Shard], cluster: list[int]) -> list[Tensor]:
        return [y.new_full((len(y),), index).long() for (_, y), index in zip(shards, cluster, strict=True)]

    return Groups(names, codes(train, clusters[0]), codes(validation, clusters[1]))
