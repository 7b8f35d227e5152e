"""One client's half of a round, and its own folder: look up, charge, work, seal, remember, then answer."""

from __future__ import annotations

import json
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina import private_files, random
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.federated.algorithms.algorithm import PrivateWork, perform, unmoved
from sordina.federated.engines import ClientSide, RoundRequest
from sordina.federated.flower.client_policy import ClientPolicy
from sordina.federated.messages import Arrays, ClientResult, ClientUpdate, arrays_of_update
from sordina.federated.population import Cohort, Population, RowOrder
from sordina.federated.privacy.accounts import ClientAccount, Leakage
from sordina.run_folder import read_json

# A client's own folder: its account, and what it said last in each run. It outlives the client's processes.
#
#     <folder>/policy.json       what the client agrees to (`client_policy`); written by a person
#     <folder>/account.json      what it has revealed, over everything and in each run
#     <folder>/model-<number>.npz the model the client would use after a run, made with its own rows
#     <folder>/run-<number>.npz  the last round answered in a run, the reply, and the vectors kept between rounds
#     <folder>/steps-<number>.json  the last step taken in a run, where a round has several
#
# Everything is written before anything leaves, so a crash can only over-report. An instruction that comes twice gets
# the stored reply, byte for byte: a second draw of noise would be a second release. Only the owner can read any of it.

MODEL_PREFIX = "model-"
_STATE, _REPLY, _ROUND = "state", "reply", "round"
_SCHEMA = 2


@dataclass(frozen=True)
class RememberedReply:
    """What a client remembers of a run: the last round it answered, its reply, its state after it."""

    round: int = -1
    reply: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientTotal:
    """One client's account: what it has revealed over everything, and how much of each run's own limit is used."""

    leakage: Leakage = field(default_factory=Leakage)
    runs: Mapping[str, ClientAccount] = field(default_factory=dict)

    @property
    def participations(self) -> int:
        """How often the client took part, over everything."""
        return sum(one.participations for one in self.runs.values())

    def of_run(self, run: int, limit: Fraction | None = None) -> ClientAccount:
        """The account of one run, with its limit."""
        return replace(self.runs.get(str(run), ClientAccount()), limit=limit)

    def after(self, run: int, cost: Fraction, leakage: Leakage, limit: Fraction | None = None) -> ClientTotal:
        """The account after one more participation; refused above the run's ``limit``."""
        account = self.of_run(run, limit)
        account.charge(cost)
        return ClientTotal(self.leakage + leakage, {**self.runs, str(run): replace(account, limit=None)})


@dataclass(frozen=True)
class ClientFolder:
    """The folder of one client. Two clients never share one: their replies would be mixed up."""

    folder: Path

    @contextmanager
    def busy(self) -> Iterator[None]:
        """One participation at a time, also among processes: two at once could both pass under the same limit."""
        try:
            import fcntl
        except ImportError:
            raise Unsupported("a client's account needs file locks of a POSIX system.") from None
        private_files.make_folder(self.folder)
        with os.fdopen(os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def total(self) -> ClientTotal:
        """The account; a damaged one is refused, since a fresh start would forget what was leaked."""
        path = self._account
        if old := sorted(self.folder.glob("account-*.json")):
            raise InvalidInput(
                f"{old[0]} is an account of an earlier version, which kept one per kind of noise: begin a new folder, "
                "with a policy whose limits are lower by what the old accounts say."
            )
        if not path.exists():
            if any(self.folder.glob("run-*.npz")):
                raise InvalidInput(f"{path} is gone though this client took part before; restore it.")
            return ClientTotal()
        try:
            data = read_json(path)
            if data["schema"] != _SCHEMA:
                raise ValueError("another schema")
            runs = {str(run): ClientAccount.from_dict(one) for run, one in dict(data["runs"]).items()}
            return ClientTotal(Leakage.from_dict(data["leakage"]), runs)
        except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{path} is not a client account; restore it, do not start afresh.") from error

    def keep(self, total: ClientTotal) -> None:
        """Put the account on the disk, whole or not at all."""
        runs = {run: account.to_dict() for run, account in total.runs.items()}
        document = {"schema": _SCHEMA, "leakage": total.leakage.to_dict(), "runs": runs}
        private_files.write(self._account, (json.dumps(document, indent=1) + "\n").encode())

    def recall(self, run: int) -> RememberedReply:
        """What was said last in a run; nothing yet in a new one. A damaged memory is refused: it may hide a reply."""
        path = self._path(run)
        if not path.exists():
            return RememberedReply()
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
            parts: dict[str, dict[str, NDArray[Any]]] = {_STATE: {}, _REPLY: {}}
            for key, value in arrays.items():
                kind, _, name = key.partition("|")
                if kind in parts:
                    parts[kind][name] = value
            return RememberedReply(int(arrays[_ROUND]), parts[_REPLY], parts[_STATE])
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"{path} is not what this client wrote; restore it.") from error

    def remember(self, run: int, memory: RememberedReply) -> None:
        """Replace the memory of a run, in one step."""
        arrays: dict[str, Any] = {_ROUND: np.asarray(memory.round)}
        arrays |= {f"{_STATE}|{name}": value for name, value in memory.state.items()}
        arrays |= {f"{_REPLY}|{name}": value for name, value in memory.reply.items()}
        private_files.write(self._path(run), lambda file: np.savez(file, **arrays))

    def advance(self, run: int, number: int, step: int) -> None:
        """Write down that a step of a round is about to be answered; one that was, or an earlier one, is refused.

        Whatever comes twice, at the same time or after a restart: only one of them passes.

        Args:
            run: The number of the run.
            number: The round.
            step: The step in it, from 0 on.
        """
        path = self.folder / f"steps-{run}.json"
        with self.busy():
            before = read_json(path)["taken"] if path.exists() else [-1, -1]
            if [number, step] <= before:
                raise InvalidInput("this step of the round was answered before: a second answer would tell more.")
            private_files.write(path, json.dumps({"taken": [number, step]}).encode())

    def keep_model(self, run: int, weights: NDArray[Any], models: NDArray[Any]) -> None:
        """Keep the model that the client would use after a run: ``models (M, P)`` in shares ``weights (M,)``."""
        private_files.write(
            self.folder / f"{MODEL_PREFIX}{run}.npz", lambda file: np.savez(file, weights=weights, models=models)
        )

    @property
    def _account(self) -> Path:
        return self.folder / "account.json"

    def _path(self, run: int) -> Path:
        return self.folder / f"run-{run}.npz"


# One client's half of a round, wherever it lives: look up, charge, work, seal, remember, and only then answer.

LOG = logging.getLogger("sordina.federated")
_NOISE = 0x5EA1
"""Sets the stream of a seeded client's noise apart from every other use of the seed."""


@dataclass(frozen=True)
class ClientContext:
    """What a client works with.

    Args:
        side: Its half of the run.
        rows: Gives its rows, as a cohort of one; called only when they are needed, since reading them may fail.
        home: Its folder.
        limit: The run's own limit, in the costs of the placement; the client's policy holds besides.
        policy: What the client agrees to over everything; None in simulations only, where there is nobody to protect.
        seed: Makes the noise repeatable, for simulations only: whoever knows it can subtract the noise.
    """

    side: ClientSide
    rows: Callable[[], Cohort]
    home: ClientFolder
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


def answer(client_context: ClientContext, call: RoundRequest, run: int, number: int) -> Mapping[str, NDArray[Any]]:
    """What client ``number`` writes back.

    A round that was answered already gets the same answer again, without a charge; an older one gets none. Whether the
    client answers depends on public things only: the account, the limits, the instruction. What goes wrong with its
    rows, from reading them to a vector that is not finite, becomes an update of zero, sanitised and charged like any
    other, unless there is no privacy to protect.

    Args:
        client_context: What the client works with.
        call: The instruction.
        run: The number of the run.
        number: The number of the client in it.
    """
    with client_context.home.busy():
        memory = client_context.home.recall(run)
        if call.order.round == memory.round:
            return memory.reply
        placement, size = client_context.side.placement, client_context.side.work.width(call.sent)
        total, cost = client_context.home.total(), placement.cost(size)
        if call.order.round < memory.round or not total.of_run(run, client_context.limit).allows(cost):
            return arrays_of_update(ClientUpdate(withheld=1))
        after = total.after(run, cost, placement.leakage(size), client_context.limit)
        if client_context.policy is not None:
            try:
                client_context.policy.check_total(after.leakage)
            except BudgetRefused as error:
                LOG.warning("nothing is sent: %s", error)
                return arrays_of_update(ClientUpdate(withheld=1))
        client_context.home.keep(after)
        noise = _noise(client_context.seed, call.order, number)
        outcome, state = _worked(client_context, call, memory, noise)
        update = ClientUpdate(rejected=1)
        if placement.hides_failures or bool(outcome.vectors.sum().isfinite()):
            update = replace(placement.seal(outcome.steady(), call.privacy, noise), answered=1)
        reply = arrays_of_update(update)
        client_context.home.remember(run, RememberedReply(call.order.round, reply, state))
        return reply


def _worked(
    client_context: ClientContext, call: RoundRequest, memory: RememberedReply, noise: np.random.Generator
) -> tuple[ClientResult, Mapping[str, NDArray[Any]]]:
    """The client's vector, of the form that every client sends, and what it keeps for the next round.

    A client that cannot compute sends what one without rows would: work that noises its own result noises that too.
    """
    work = client_context.side.work
    still = unmoved(work, call.sent)
    try:
        before = state_of_client(work.state_sizes, memory, still.vectors.dtype)
        outcome, fresh = perform(work, call.sent, client_context.rows(), before, call.order, noise)
        if outcome.vectors.shape != still.vectors.shape:
            raise ValueError(f"the work gave a vector of shape {tuple(outcome.vectors.shape)}")
        outcome = replace(outcome, vectors=outcome.vectors.to(still.vectors.dtype))
        kept = {name: value if bool(value.isfinite().all()) else before[name] for name, value in fresh.items()}
        return outcome, {name: value.numpy() for name, value in kept.items()}
    except Exception:
        LOG.exception("this client could not compute an update; it is not told to anybody else.")
        if isinstance(work, PrivateWork):
            return work.run_private(call.sent, None, {}, noise)[0], memory.state
        bad = (
            still if client_context.side.placement.hides_failures else replace(still, vectors=still.vectors * torch.nan)
        )
        return bad, memory.state


def state_of_client(sizes: Mapping[str, int], memory: RememberedReply, dtype: torch.dtype) -> Arrays:
    """What a client kept of its last round; zeros in its first.

    Args:
        sizes: The vectors that its work keeps.
        memory: What is in its folder.
        dtype: Of the model.
    """
    zeros = {name: torch.zeros(1, size, dtype=dtype) for name, size in sizes.items()}
    return {name: torch.from_numpy(memory.state[name]) if name in memory.state else zeros[name] for name in zeros}


def _noise(seed: int | None, order: RowOrder, number: int) -> np.random.Generator:
    """Secure, or a function of (seed, round, client)."""
    if seed is None:
        return random.secure()
    return np.random.default_rng([seed, order.round, number, _NOISE])
