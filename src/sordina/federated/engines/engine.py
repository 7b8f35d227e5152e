"""The seam of engines: send to clients, gather what leaves them, add it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordina.federated.algorithms.algorithm import ClientWork
from sordina.federated.messages import Arrays, ClientUpdate
from sordina.federated.population import RowOrder
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.placement import Placement


@dataclass(frozen=True)
class ClientSide:
    """Everything that happens at a client: its work, then the client half of the placement."""

    work: ClientWork
    placement: Placement


@dataclass(frozen=True)
class RoundRequest:
    """One round's request: what is sent, the public privacy state, and the order seed."""

    sent: Arrays
    privacy: Any
    order: RowOrder


class FederatedEngine(Protocol):
    """Runs the clients' side somewhere and brings back what left it."""

    @property
    def accounts(self) -> Sequence[ClientAccount]:
        """The clients' own accounts, as far as this engine can see them."""
        ...

    def map_reduce(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> ClientUpdate:
        """Run ``side`` at each of ``clients`` and add up the updates."""
        ...


class PerClientEngine(FederatedEngine, Protocol):
    """An engine that can also hand over every client's update by itself, as it comes from a network."""

    def apart(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[dict[int, ClientUpdate], ClientUpdate]:
        """The updates with numbers in them, and the counts of the clients that sent none."""
        ...
