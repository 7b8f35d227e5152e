"""One client's half of a round, wherever it lives: look up, work, charge, seal, remember, and only then answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina import randomness
from sordina.federated.engines.engine import Call, ClientSide
from sordina.federated.engines.home import Home, Memory
from sordina.federated.engines.letters import written
from sordina.federated.messages import Parcel
from sordina.federated.order import Order
from sordina.federated.population import Population

_NOISE = 0x5EA1
"""Sets the stream of a seeded client's noise apart from every other use of the seed."""


@dataclass(frozen=True)
class Desk:
    """What a client works with: its half of the run, its rows, its folder, its limit, a seed for repeatable noise."""

    side: ClientSide
    people: Population
    home: Home
    limit: Fraction | None = None
    seed: int | None = None


def alone(x: Tensor, y: Tensor, number: int) -> Population:
    """One client's rows, under the number by which the server calls it: the rows' order depends on it.

    >>> people = alone(torch.zeros(3, 2), torch.zeros(3), 2)
    >>> people.sizes.tolist(), people.starts.tolist()
    ([0, 0, 3], [0, 0, 0])
    """
    return Population(x, y, np.array([*[0] * number, len(x)], dtype=np.int64))


def answer(desk: Desk, call: Call, run: int, number: int) -> Mapping[str, NDArray[Any]]:
    """What client ``number`` writes back.

    A round that was answered already gets the same answer again, without a charge; an older one gets none.
    """
    with desk.home.busy():
        memory = desk.home.recall(run)
        if call.order.round == memory.round:
            return memory.reply
        account = desk.home.account(desk.side.placement, desk.limit)
        cost = desk.side.placement.cost(desk.side.work.width(call.sent))
        if call.order.round < memory.round or not account.allows(cost):
            return written(Parcel(withheld=1))
        before = _state(desk.side, memory, desk.people.x.dtype)
        ids = np.array([number])
        outcome, fresh = desk.side.work.run(call.sent, desk.people.cohort(ids), before, call.order)
        parcel = Parcel(rejected=1)
        if bool(outcome.vectors.sum().isfinite()):
            account.charge(cost)
            noise = _noise(desk.seed, call.order, number)
            parcel = replace(desk.side.placement.seal(outcome, call.privacy, noise), answered=1)
        after = {name: value if bool(value.isfinite().all()) else before[name] for name, value in fresh.items()}
        reply = written(parcel)
        kept = {name: value.numpy() for name, value in after.items()}
        desk.home.remember(run, Memory(call.order.round, reply, kept))
        return reply


def _state(side: ClientSide, memory: Memory, dtype: torch.dtype) -> dict[str, Tensor]:
    zeros = {name: torch.zeros(1, size, dtype=dtype) for name, size in side.work.state_sizes.items()}
    return {name: torch.from_numpy(memory.state[name]) if name in memory.state else zeros[name] for name in zeros}


def _noise(seed: int | None, order: Order, number: int) -> np.random.Generator:
    """Secure, or a function of (seed, round, client)."""
    if seed is None:
        return randomness.secure()
    return np.random.default_rng([seed, order.round, number, _NOISE])
