"""One client's half of a round, wherever it lives: look up, charge, work, seal, remember, and only then answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina import randomness
from sordina.errors import BudgetRefused
from sordina.federated.client_policy import ClientPolicy
from sordina.federated.clients.work import PrivateWork, perform, unmoved
from sordina.federated.engines.engine import Call, ClientSide
from sordina.federated.engines.home import Home, Memory
from sordina.federated.engines.letters import written
from sordina.federated.messages import Arrays, Outcome, Parcel
from sordina.federated.order import Order
from sordina.federated.population import Cohort, Population

LOG = logging.getLogger("sordina.federated")
_NOISE = 0x5EA1
"""Sets the stream of a seeded client's noise apart from every other use of the seed."""


@dataclass(frozen=True)
class Desk:
    """What a client works with.

    Args:
        side: Its half of the run.
        rows: Gives its rows, as a cohort of one; called only when they are needed, since reading them may fail.
        home: Its folder.
        limit: The run's own limit, in the costs of the placement; the client's policy holds besides.
        policy: What the client agrees to over everything; None in simulations only, where there is nobody to protect.
        seed: Repeatable noise, for simulations only: whoever knows it can subtract the noise.
    """

    side: ClientSide
    rows: Callable[[], Cohort]
    home: Home
    limit: Fraction | None = None
    policy: ClientPolicy | None = None
    seed: int | None = None


def alone(x: Tensor, y: Tensor, number: int) -> Cohort:
    """One client's rows, under the number by which the server calls it: the rows' order depends on it.

    >>> cohort = alone(torch.zeros(3, 2), torch.zeros(3), 2)
    >>> cohort.sizes.tolist(), cohort.numbers.tolist()
    ([3], [2])
    """
    return Population(x, y, np.array([len(x)]), np.array([number])).cohort(np.array([0]))


def answer(desk: Desk, call: Call, run: int, number: int) -> Mapping[str, NDArray[Any]]:
    """What client ``number`` writes back.

    A round that was answered already gets the same answer again, without a charge; an older one gets none. Whether the
    client answers depends on public things only: the account, the limits, the instruction. What goes wrong with its
    rows, from reading them to a vector that is not finite, becomes an update of zero, sanitised and charged like any
    other, unless there is no privacy to protect.

    Args:
        desk: What the client works with.
        call: The instruction.
        run: The number of the run.
        number: The number of the client in it.
    """
    with desk.home.busy():
        memory = desk.home.recall(run)
        if call.order.round == memory.round:
            return memory.reply
        placement, size = desk.side.placement, desk.side.work.width(call.sent)
        total, cost = desk.home.total(), placement.cost(size)
        if call.order.round < memory.round or not total.of_run(run, desk.limit).allows(cost):
            return written(Parcel(withheld=1))
        after = total.after(run, cost, placement.leakage(size), desk.limit)
        if desk.policy is not None:
            try:
                desk.policy.check_total(after.leakage)
            except BudgetRefused as error:
                LOG.warning("nothing is sent: %s", error)
                return written(Parcel(withheld=1))
        desk.home.keep(after)
        noise = _noise(desk.seed, call.order, number)
        outcome, state = _worked(desk, call, memory, noise)
        parcel = Parcel(rejected=1)
        if placement.hides_failures or bool(outcome.vectors.sum().isfinite()):
            parcel = replace(placement.seal(outcome.steady(), call.privacy, noise), answered=1)
        reply = written(parcel)
        desk.home.remember(run, Memory(call.order.round, reply, state))
        return reply


def _worked(
    desk: Desk, call: Call, memory: Memory, noise: np.random.Generator
) -> tuple[Outcome, Mapping[str, NDArray[Any]]]:
    """The client's vector, of the form that every client sends, and what it keeps for the next round.

    A client that cannot compute sends what one without rows would: work that noises its own result noises that too.
    """
    work = desk.side.work
    still = unmoved(work, call.sent)
    try:
        before = state_of_client(work.state_sizes, memory, still.vectors.dtype)
        outcome, fresh = perform(work, call.sent, desk.rows(), before, call.order, noise)
        if outcome.vectors.shape != still.vectors.shape:
            raise ValueError(f"the work gave a vector of shape {tuple(outcome.vectors.shape)}")
        outcome = replace(outcome, vectors=outcome.vectors.to(still.vectors.dtype))
        kept = {name: value if bool(value.isfinite().all()) else before[name] for name, value in fresh.items()}
        return outcome, {name: value.numpy() for name, value in kept.items()}
    except Exception:
        LOG.exception("this client could not compute an update; it is not told to anybody else.")
        if isinstance(work, PrivateWork):
            return work.run_private(call.sent, None, {}, noise)[0], memory.state
        bad = still if desk.side.placement.hides_failures else replace(still, vectors=still.vectors * torch.nan)
        return bad, memory.state


def state_of_client(sizes: Mapping[str, int], memory: Memory, dtype: torch.dtype) -> Arrays:
    """What a client kept of its last round; zeros in its first.

    Args:
        sizes: The vectors that its work keeps.
        memory: What is in its folder.
        dtype: Of the model.
    """
    zeros = {name: torch.zeros(1, size, dtype=dtype) for name, size in sizes.items()}
    return {name: torch.from_numpy(memory.state[name]) if name in memory.state else zeros[name] for name in zeros}


def _noise(seed: int | None, order: Order, number: int) -> np.random.Generator:
    """Secure, or a function of (seed, round, client)."""
    if seed is None:
        return randomness.secure()
    return np.random.default_rng([seed, order.round, number, _NOISE])
