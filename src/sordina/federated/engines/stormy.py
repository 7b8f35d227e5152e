"""The engine in process, outdoors: each client sends a letter of its own, through the weather and past the guard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sordina.federated.engines.engine import Call, ClientSide, Postal
from sordina.federated.guard import Guard, Letter
from sordina.federated.messages import Parcel
from sordina.federated.privacy.account import ClientAccount
from sordina.federated.weather import Weather, tampered

LOG = logging.getLogger("sordina.federated")


@dataclass
class Stormy:
    """``inner`` computes, charges and seals; ``weather`` is what happens on the way; ``guard`` decides what counts."""

    inner: Postal
    weather: Weather
    guard: Guard = field(default_factory=Guard)
    under_way: list[Letter] = field(init=False, default_factory=list)
    """Letters that missed the deadline of their round and arrive in the next one."""
    first: dict[int, Parcel] = field(init=False, default_factory=dict)
    """What replaying clients sent first."""

    @property
    def accounts(self) -> Sequence[ClientAccount]:
        """The clients' own: charged for what they released, whether or not it arrived or was let in."""
        return self.inner.accounts

    def map_reduce(self, side: ClientSide, call: Call, clients: NDArray[np.int64], rng: np.random.Generator) -> Parcel:
        """Ask those who are there; read what arrives in time, and what is left of the round before."""
        number = call.order.round
        silent, slow = self.weather.draw(number, len(clients))
        released, aside = self.inner.apart(side, call, clients[~silent], rng)
        late = {int(client) for client in clients[slow]}
        arriving, self.under_way = list(self.under_way), []
        for client, parcel in released.items():
            letter = Letter(client, self.guard.token(number, client), parcel)
            (self.under_way if client in late else arriving).extend(self._sent(letter, clients))
        missing = sum(client in late for client in released)
        total = replace(
            aside + self.guard.sift(arriving, side, call, clients),
            dropped=aside.dropped + int(silent.sum()) + missing,
        )
        for one in total.refused:
            LOG.warning("round %d: client %d is left out: %s", number + 1, one.sender, one.reason)
        return total

    def _sent(self, letter: Letter, clients: NDArray[np.int64]) -> list[Letter]:
        kind = self.weather.hostile.get(letter.sender)
        if kind is None:
            return [letter]
        others = [int(client) for client in clients if client != letter.sender]
        return tampered(letter, kind, self.first, others[0] if others else letter.sender + 1)
