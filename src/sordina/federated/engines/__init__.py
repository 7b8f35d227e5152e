"""Where a federation runs: the seam of engines, the engine in process, and faults injected into it.

In process a round's clients are one computation, or run one by one as the reference.

Clients are sorted by size, largest first, and cut into chunks, so that padding and memory stay small; what leaves is
put back into the order in which the clients were drawn, which says nothing about their sizes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput, SordinaError
from sordina.federated.aggregation import ReceivedUpdate, UpdateValidator
from sordina.federated.algorithms.algorithm import ClientWork, PrivateWork, dtype_of, perform, unmoved
from sordina.federated.messages import Arrays, ClientResult, ClientUpdate, joined
from sordina.federated.population import Population, RowOrder
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.placement import Placement

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it once, when it is first imported

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
        outcome, fresh = self._performed(side, call, ids, state, rng)
        for name, value in fresh.items():
            sound = value.isfinite().all(dim=1)
            self.states[name][rows[sound]] = value[sound]
        return outcome

    def _performed(
        self, side: ClientSide, call: RoundRequest, ids: NDArray[np.int64], state: Arrays, rng: np.random.Generator
    ) -> tuple[ClientResult, Arrays]:
        """All at once; where that fails, one by one, and who fails alone sends what one would that learns nothing.

        What fails on zeros too is a fault of model or loss, and is told; so is everything without privacy.
        """
        work = side.work
        try:
            return perform(work, call.sent, self.population.cohort(ids), state, call.order, rng)
        except Exception as error:
            if isinstance(error, SordinaError) or isinstance(work, PrivateWork) or not side.placement.hides_failures:
                raise  # private work has left out what fails, record by record
        alone: list[tuple[ClientResult, Arrays]] = []
        for place in range(len(ids)):
            own = {name: value[place : place + 1] for name, value in state.items()}
            one = self.population.cohort(ids[place : place + 1])
            try:
                alone.append(perform(work, call.sent, one, own, call.order, rng))
            except SordinaError:
                raise
            except Exception:
                nobody = Population.of(
                    [(torch.zeros_like(self.population.x[:2]), torch.zeros_like(self.population.y[:2]))]
                )
                perform(work, call.sent, nobody.cohort(np.array([0])), own, call.order, rng)
                alone.append((unmoved(work, call.sent), own))
        outcomes, states = zip(*alone, strict=True)
        return joined(outcomes), {name: torch.cat([one[name] for one in states]) for name in state}

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


# Faults for simulations: clients that fall silent, answer too late, or send what they should not.

# Faults that are injected: dropout, late answers, and hostile clients.

KINDS = ("nan", "huge", "replay", "duplicate", "malformed", "impostor")
_HUGE = 1e30


@dataclass(frozen=True)
class FaultInjection:
    """``dropout`` of the clients never answer, ``late`` of the answers miss the deadline, and some are ``hostile``.

    A client that drops out has released nothing; one that is late has. ``hostile`` says what a client does, each time
    it is asked: send NaN, send 1e30, resend its first update, send everything twice, send another shape, or write under
    the name of somebody else. Who falls silent when is a function of (``seed``, round).
    """

    dropout: float = 0.0
    late: float = 0.0
    hostile: Mapping[int, str] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, share in (("dropout", self.dropout), ("late", self.late)):
            if not 0 <= share < 1:
                raise InvalidInput(f"the share of clients in {name} must lie in [0, 1), got {share}.")
        for client, kind in self.hostile.items():
            if kind not in KINDS or client < 0:
                raise InvalidInput(f"client {client} cannot be {kind!r}: choose one of {', '.join(KINDS)}.")

    @property
    def calm(self) -> bool:
        """Whether nothing happens at all."""
        return not (self.dropout or self.late or self.hostile)

    def draw(self, number: int, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Who of ``count`` clients stays silent in round ``number``, and who would be late."""
        rng = np.random.default_rng([self.seed, number])
        return rng.random(count) < self.dropout, rng.random(count) < self.late


def hostile_of(text: str) -> dict[int, str]:
    """Read ``nan:3,huge:7``: kind and client.

    >>> hostile_of("nan:3,huge:7"), hostile_of("")
    ({3: 'nan', 7: 'huge'}, {})
    """
    found: dict[int, str] = {}
    for word in filter(None, text.split(",")):
        kind, _, client = word.strip().partition(":")
        if not client.isdecimal():
            raise InvalidInput(f"hostile clients are told as KIND:CLIENT, such as nan:3; got {word!r}.")
        found[int(client)] = kind
    return found


def tampered(received: ReceivedUpdate, kind: str, memory: dict[int, ClientUpdate], victim: int) -> list[ReceivedUpdate]:
    """What a hostile client sends in place of an honest message."""
    update = received.update
    if kind == "nan":
        return [replace(received, update=_mapped(update, lambda one: one * float("nan")))]
    if kind == "huge":
        return [
            replace(
                received,
                update=_mapped(
                    update, lambda one: torch.full_like(one.to(torch.promote_types(one.dtype, torch.float32)), _HUGE)
                ),
            )
        ]
    if kind == "malformed":
        return [replace(received, update=_mapped(update, lambda one: torch.cat([one.flatten(), one.flatten()])))]
    if kind == "replay":
        return [replace(received, update=memory.setdefault(received.sender, update))]
    if kind == "duplicate":
        return [received, received]
    return [received, replace(received, sender=victim)]


def _mapped(update: ClientUpdate, change: Callable[[Tensor], Tensor]) -> ClientUpdate:
    vectors = None if update.vectors is None else change(update.vectors)
    return replace(update, sums=tuple(change(one) for one in update.sums), vectors=vectors)


# The engine in process with faults: each client sends an update of its own, through injected faults and validation.

LOG = logging.getLogger("sordina.federated")


@dataclass
class FaultInjectingEngine:
    """``inner`` computes, charges and seals; ``faults`` happen on the way; ``validator`` decides what counts."""

    inner: PerClientEngine
    faults: FaultInjection
    validator: UpdateValidator = field(default_factory=UpdateValidator)
    under_way: list[ReceivedUpdate] = field(init=False, default_factory=list)
    """Letters that missed the deadline of their round and arrive in the next one."""
    first: dict[int, ClientUpdate] = field(init=False, default_factory=dict)
    """What replaying clients sent first."""

    @property
    def accounts(self) -> Sequence[ClientAccount]:
        """The clients' own: charged for what they released, whether or not it arrived or was let in."""
        return self.inner.accounts

    def map_reduce(
        self, side: ClientSide, call: RoundRequest, clients: NDArray[np.int64], rng: np.random.Generator
    ) -> ClientUpdate:
        """Ask those who are there; read what arrives in time, and what is left of the round before."""
        number = call.order.round
        silent, slow = self.faults.draw(number, len(clients))
        released, aside = self.inner.apart(side, call, clients[~silent], rng)
        late = {int(client) for client in clients[slow]}
        arriving, self.under_way = list(self.under_way), []
        for client, update in released.items():
            received = ReceivedUpdate(client, self.validator.token(number, client), update)
            (self.under_way if client in late else arriving).extend(self._sent(received, clients))
        missing = sum(client in late for client in released)
        total = replace(
            aside + self.validator.sift(arriving, side, call, clients),
            dropped=aside.dropped + int(silent.sum()) + missing,
        )
        for one in total.refused:
            LOG.warning("round %d: client %d is left out: %s", number + 1, one.sender, one.reason)
        return total

    def _sent(self, received: ReceivedUpdate, clients: NDArray[np.int64]) -> list[ReceivedUpdate]:
        kind = self.faults.hostile.get(received.sender)
        if kind is None:
            return [received]
        others = [int(client) for client in clients if client != received.sender]
        return tampered(received, kind, self.first, others[0] if others else received.sender + 1)
