"""A client's own folder: its accounts, and what it said last in each run. It outlives the client's processes.

    <folder>/account-<unit>.json   one account per kind of leakage that adds up
    <folder>/run-<number>.npz      the last round answered in a run, the reply, and the vectors kept between rounds

Everything is written before anything leaves, so a crash can only over-report. An instruction that comes twice gets the
stored reply, byte for byte: a second draw of noise would be a second release.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput, Unsupported
from sordina.federated.compression import Compressed
from sordina.federated.privacy.account import ClientAccount
from sordina.federated.privacy.metric import Metric
from sordina.federated.privacy.placement import Placement

_STATE, _REPLY, _ROUND = "state", "reply", "round"


@dataclass(frozen=True)
class Memory:
    """What a client remembers of a run: the last round it answered, its reply, its state after it."""

    round: int = -1
    reply: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)


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
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def account(self, placement: Placement, limit: Fraction | None = None) -> ClientAccount:
        """The account of what ``placement`` charges; the stricter of ``limit`` and the limit on file holds."""
        path = self.folder / f"account-{unit_of(placement)}.json"
        kept = ClientAccount.load(path).limit if path.exists() else None
        limits = [one for one in (limit, kept) if one is not None]
        return ClientAccount.kept(path, min(limits, default=None))

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
        except (OSError, KeyError, ValueError, EOFError) as error:
            raise InvalidInput(f"{path} is not what this client wrote ({error}); restore it.") from error

    def remember(self, run: int, memory: Memory) -> None:
        """Replace the memory of a run, in one step."""
        arrays: dict[str, Any] = {_ROUND: np.asarray(memory.round)}
        arrays |= {f"{_STATE}|{name}": value for name, value in memory.state.items()}
        arrays |= {f"{_REPLY}|{name}": value for name, value in memory.reply.items()}
        path = self._path(run)
        fresh = path.with_suffix(".new")
        with open(fresh, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)

    def _path(self, run: int) -> Path:
        return self.folder / f"run-{run}.npz"


def unit_of(placement: Placement) -> str:
    """The name of an account: leakages add up only where they are measured alike.

    Metric leakage is per radius. Participations under local noise count for one noise multiplier. Where the server
    keeps the budget (central), participations are written down at no cost.

    >>> from sordina.federated.privacy.metric import PublicRadius
    >>> unit_of(Metric(5.0, PublicRadius(0.5))), unit_of(Metric(2.0))
    ('metric-public-0.5', 'metric-update')
    """
    if isinstance(placement, Compressed):
        return unit_of(placement.placement)
    name = type(placement).__name__.lower()
    if isinstance(placement, Metric):
        return f"{name}-{str(placement.radius).split()[0].replace(':', '-')}"
    noise = getattr(placement, "noise_multiplier", None)
    return name if noise is None else f"{name}-{noise!r}"
