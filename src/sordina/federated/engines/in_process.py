"""The seam of engines, and the engine in process: a round's clients as one computation, or one by one as the reference.

Clients are sorted by size, largest first, and cut into chunks, so that padding and memory stay small; what leaves is
put back into the order in which the clients were drawn, which says nothing about their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import ClientWork, dtype_of, perform
from sordina.federated.messages import Arrays, ClientResult, ClientUpdate
from sordina.federated.population import Population, RowOrder
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.placement import Placement

# The seam of engines: send to clients, gather what leaves them, add it up.


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


# The engine in process: the clients of a round as one batched computation, or one by one as the reference.


@dataclass
class InProcess:
    """Simulates all clients of ``population``, at most ``chunk`` at a time; ``chunk=1`` is the plain loop."""

    population: Population
    chunk: int = 128
    limit: Fraction | None = None
    """The leakage limit every client sets for itself."""
    accounts: list[ClientAccount] = field(init=False)
    states: dict[str, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise InvalidInput(f"a chunk holds at least one client, got {self.chunk}.")
        self.accounts = [ClientAccount(self.limit) for _ in range(len(self.population))]

    def map_reduce(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> ClientUpdate:
        """Let those work whose account allows it; seal and add up what they computed."""
        total = ClientUpdate()
        answered: list[NDArray[np.int64]] = []
        for kept, outcome, aside in self._outcomes(side, call, clients, rng):
            total += aside
            if len(kept):
                total += replace(side.placement.seal(outcome, call.privacy, rng), answered=len(kept))
                answered.append(kept)
        return _in_draw_order(total, clients, answered)

    def apart(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[dict[int, ClientUpdate], ClientUpdate]:
        """The same work, but every client's own update, as on a network, and the counts of those that send none."""
        updates: dict[int, ClientUpdate] = {}
        total = ClientUpdate()
        for kept, outcome, aside in self._outcomes(side, call, clients, rng):
            total += aside
            for row, client in enumerate(clients[kept]):
                single = outcome.keep(torch.tensor([row]))
                updates[int(client)] = replace(side.placement.seal(single, call.privacy, rng), answered=1)
        return updates, total

    def _outcomes(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], ClientResult, ClientUpdate]]:
        """Chunk by chunk: the places of clients that will release, already charged, what they computed, and counts."""
        cost = side.placement.cost(side.work.width(call.sent))
        willing = [place for place, client in enumerate(clients) if self.accounts[client].allows(cost)]
        aside = ClientUpdate(withheld=len(clients) - len(willing))
        for places in self._chunks(clients, np.array(willing, dtype=np.int64)):
            outcome, kept = self._work(side, call, clients[places], rng), places
            if side.placement.hides_failures:
                outcome = outcome.steady()
            else:
                finite = outcome.vectors.sum(dim=1).isfinite()
                outcome, kept = outcome.keep(finite), places[finite.numpy()]
                aside += ClientUpdate(rejected=len(places) - len(kept))
            self._charge(clients[kept], cost)
            yield kept, outcome, aside
            aside = ClientUpdate()
        if not willing:
            yield np.zeros(0, dtype=np.int64), ClientResult(torch.zeros(0, 0), torch.zeros(0)), aside

    def _chunks(self, clients: NDArray[np.int64], places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        by_size = places[np.argsort(-self.population.sizes[clients[places]], kind="stable")]
        for first in range(0, len(by_size), self.chunk):
            yield by_size[first : first + self.chunk]

    def _work(
        self, side: ClientSide, call: RoundRequest, ids: NDArray[np.int64], rng: np.random.Generator
    ) -> ClientResult:
        """Run the work and keep the clients' new states, except where the work went wrong."""
        rows = torch.from_numpy(ids)
        kind = dtype_of(call.sent)
        state = {name: self._state(name, size, kind)[rows] for name, size in side.work.state_sizes.items()}
        outcome, fresh = perform(side.work, call.sent, self.population.cohort(ids), state, call.order, rng)
        for name, value in fresh.items():
            sound = value.isfinite().all(dim=1)
            self.states[name][rows[sound]] = value[sound]
        return outcome

    def _state(self, name: str, size: int, kind: torch.dtype) -> Tensor:
        if name not in self.states:
            self.states[name] = torch.zeros(len(self.population), size, dtype=kind)
        return self.states[name]

    def _charge(self, ids: NDArray[np.int64], cost: Fraction) -> None:
        if cost:
            for client in ids:
                self.accounts[client].charge(cost)


def _in_draw_order(update: ClientUpdate, clients: NDArray[np.int64], places: list[NDArray[np.int64]]) -> ClientUpdate:
    if update.vectors is None:
        return update
    drawn = np.concatenate(places)
    order = np.argsort(drawn)
    senders = tuple(int(client) for client in clients[drawn[order]])
    return replace(update, vectors=update.vectors[torch.from_numpy(order)], senders=senders)
