"""Faults for simulations: clients that fall silent, answer too late, or send what they should not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.aggregation import ReceivedUpdate, UpdateValidator
from sordina.federated.engines.in_process import ClientSide, PerClientEngine, RoundRequest
from sordina.federated.messages import ClientUpdate
from sordina.federated.privacy.accounts import ClientAccount

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
