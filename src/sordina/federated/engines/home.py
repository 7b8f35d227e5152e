"""A client's own folder: its account, and what it said last in each run. It outlives the client's processes.

    <folder>/policy.json       what the client agrees to (`client_policy`); written by a person
    <folder>/account.json      what it has revealed, over everything and in each run
    <folder>/model-<number>.npz the model the client would use after a run, made with its own rows
    <folder>/run-<number>.npz  the last round answered in a run, the reply, and the vectors kept between rounds

Everything is written before anything leaves, so a crash can only over-report. An instruction that comes twice gets the
stored reply, byte for byte: a second draw of noise would be a second release. Only the owner can read any of it.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina import private_files
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.privacy.account import ClientAccount
from sordina.federated.privacy.leakage import Leakage
from sordina.run_folder import read_json

MODEL_PREFIX = "model-"
_STATE, _REPLY, _ROUND = "state", "reply", "round"
_SCHEMA = 2


@dataclass(frozen=True)
class Memory:
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
class Home:
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

    def recall(self, run: int) -> Memory:
        """What was said last in a run; nothing yet in a new one. A damaged memory is refused: it may hide a reply."""
        path = self._path(run)
        if not path.exists():
            return Memory()
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
            parts: dict[str, dict[str, NDArray[Any]]] = {_STATE: {}, _REPLY: {}}
            for key, value in arrays.items():
                kind, _, name = key.partition("|")
                if kind in parts:
                    parts[kind][name] = value
            return Memory(int(arrays[_ROUND]), parts[_REPLY], parts[_STATE])
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"{path} is not what this client wrote; restore it.") from error

    def remember(self, run: int, memory: Memory) -> None:
        """Replace the memory of a run, in one step."""
        arrays: dict[str, Any] = {_ROUND: np.asarray(memory.round)}
        arrays |= {f"{_STATE}|{name}": value for name, value in memory.state.items()}
        arrays |= {f"{_REPLY}|{name}": value for name, value in memory.reply.items()}
        private_files.write(self._path(run), lambda file: np.savez(file, **arrays))

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
