"""Clients with their data, and everything a run needs to know about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sordina.federated.partition import Shard


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
