"""What a history means: data sets, reservations, settlements, and which process made them."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from pathlib import Path

from sordina.accounting.accountants import accountant
from sordina.accounting.events import NOTHING, Composed, Event, Repeated, to_dict
from sordina.accounting.ledger.entries import Entry, Kind, composed
from sordina.errors import InvalidInput, LedgerCorrupt
from sordina.privacy import Adjacency, Budget, Unit

# Which process made a reservation, and whether it still runs: told for processes of this machine only.


class Life(str, Enum):
    """What is known of the process that made a reservation."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


def this_process() -> str:
    """This process: its host, its number, and when it started, so that another of the same number is not taken for it.

    >>> life_of(this_process())
    <Life.RUNNING: 'running'>
    """
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def life_of(process: str) -> Life:
    """Whether the process that `this_process` told of still runs.

    Args:
        process: What was recorded; empty for a reservation that no running process holds.
    """
    host, _, rest = process.partition("/")
    number, _, started = rest.partition("/")
    if host != socket.gethostname() or not number.isdigit():
        return Life.UNKNOWN
    found = _started(int(number))
    return Life.RUNNING if found and found == started else Life.ENDED


def _started(number: int) -> str:
    """When a process started, in the system's own units; empty if it does not run."""
    try:
        text = Path(f"/proc/{number}/stat").read_text()
        state, *rest = text.rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        pass
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(number, 0)
    except (OSError, OverflowError):
        return ""
    return "there"


# What a history means: which data sets there are, what was reserved, settled and released, and what it all costs.
#
# There is no stored balance that could disagree with the history: everything here is computed from the entries.


class Status(str, Enum):
    """Where a reservation stands. An open or settled one counts as spent, a released one does not."""

    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class DataSet:
    """What may be spent on a data set, and how spending is counted."""

    name: str
    budget: Budget
    adjacency: Adjacency
    unit: Unit
    accountant: str

    def epsilon(self, event: Event) -> float:
        """What ``event`` costs at the data set's delta."""
        if event == NOTHING:
            return 0.0
        return _epsilon(self.accountant, event, self.budget.delta, self.adjacency)


@lru_cache(maxsize=256)
def _epsilon(name: str, event: Event, delta: float, adjacency: Adjacency) -> float:
    return accountant(name).epsilon(event, delta, adjacency)


@dataclass(frozen=True)
class Spend:
    """A reservation and what became of it; ``event`` is the reserved one until another is settled."""

    id: int
    dataset: str
    event: Event
    status: Status
    what: str
    who: str
    time: str
    closed: int = 0
    """The number of the entry that settled it; 0 while it is open or released."""
    as_reserved: bool = True
    """Whether ``event`` is what was reserved."""
    process: str = ""
    """Which process reserved, if one that lasts did."""

    @property
    def life(self) -> Life:
        """Whether that process still runs."""
        return life_of(self.process)

    @property
    def age(self) -> timedelta:
        """How long ago it was reserved."""
        return datetime.now(timezone.utc) - datetime.fromisoformat(self.time)


@dataclass(frozen=True)
class Statement:
    """A data set's budget against what was spent, by the composition of all its open and settled spends."""

    dataset: DataSet
    spent: float
    spends: tuple[Spend, ...]

    @property
    def remaining(self) -> float:
        """Budget minus spent, never below 0. Composition is sublinear, so more than this may still fit."""
        return max(0.0, self.dataset.budget.epsilon - self.spent)

    def having(self, status: Status) -> tuple[Spend, ...]:
        """The spends that are open, settled or released."""
        return tuple(spend for spend in self.spends if spend.status is status)


@dataclass
class State:
    """The data sets and spends of a history."""

    datasets: dict[str, DataSet] = field(default_factory=dict)
    spends: dict[int, Spend] = field(default_factory=dict)

    def dataset(self, name: str) -> DataSet:
        """The data set called ``name``, however its letters are composed; refuses an unknown or an ambiguous one."""
        spellings = [known for known in self.datasets if composed(known) == composed(name)]
        if len(spellings) > 1:
            raise InvalidInput(
                f"the ledger holds {len(spellings)} data sets that read {composed(name)!r}, their letters composed in "
                "different ways: nobody can tell which is meant, so nothing more is booked on them. Open one account "
                "under a new name, with what is left of both."
            )
        if not spellings:
            known_ = ", ".join(sorted(self.datasets)) or "none yet"
            raise InvalidInput(f"the ledger holds no data set called {name!r} (it holds: {known_}).")
        return self.datasets[spellings[0]]

    def exactly(self, name: str) -> DataSet:
        """The data set whose recorded name is ``name``, character by character."""
        if name not in self.datasets:
            raise InvalidInput(f"there is no data set called {name!r}.")
        return self.datasets[name]

    def spend(self, number: int) -> Spend:
        """The reservation with id ``number``; refuses an unknown one."""
        if number not in self.spends:
            raise InvalidInput(f"{number} is not a reservation's id. `sordina ledger show` lists the open ones.")
        return self.spends[number]

    def spends_on(self, terms: DataSet, *, instead: Spend | None = None) -> tuple[Spend, ...]:
        """Every spend on a data set; ``instead`` joins them or takes the place of the one with its id."""
        spends = {number: spend for number, spend in self.spends.items() if spend.dataset == terms.name}
        if instead is not None:
            spends[instead.id] = instead
        return tuple(spends.values())


def compose(events: Iterable[Event]) -> Event:
    """The events as one, equal ones counted together and in a fixed order, so that accounting them is cheap.

    >>> from sordina.accounting.events import Gaussian
    >>> compose([Gaussian(2.0), Repeated(Gaussian(2.0), 3), Composed((Gaussian(1.0),))]).events
    (Repeated(event=Gaussian(noise_multiplier=1.0), count=1), Repeated(event=Gaussian(noise_multiplier=2.0), count=4))
    """
    counts: Counter[Event] = Counter()
    for event in events:
        _count(event, 1, counts)
    ordered = sorted(counts, key=lambda event: json.dumps(to_dict(event), sort_keys=True))
    return Composed(tuple(Repeated(event, counts[event]) for event in ordered))


def _count(event: Event, times: int, counts: Counter[Event]) -> None:
    if isinstance(event, Composed):
        for part in event.events:
            _count(part, times, counts)
    elif isinstance(event, Repeated):
        _count(event.event, times * int(event.count), counts)
    elif times:
        counts[event] += times


def replay(entries: Iterable[Entry]) -> State:
    """The state after ``entries``; refuses a history that no ledger could have written."""
    state = State()
    for entry in entries:
        apply(entry, state)
    return state


def apply(entry: Entry, state: State) -> None:
    """Change ``state`` as ``entry`` says; refuses an entry that no ledger could have written."""
    try:
        _change(entry, state)
    except InvalidInput as error:
        raise LedgerCorrupt(f"entry {entry.id} ({entry.kind} on {entry.dataset!r}) cannot be: {error}") from error


def _change(entry: Entry, state: State) -> None:
    if entry.kind is Kind.CREATE:
        dataset = created(state, entry)
        state.datasets[dataset.name] = dataset
        return
    dataset = state.exactly(entry.dataset)
    if (entry.adjacency, entry.unit, entry.accountant) != (dataset.adjacency, dataset.unit, dataset.accountant):
        raise InvalidInput("its adjacency, unit or accountant is not the data set's.")
    if entry.kind is Kind.RESERVE:
        spend = reserved(entry)
    else:
        spend = state.spend(entry.reservation or 0)
        if spend.dataset != entry.dataset:
            raise InvalidInput("its reservation belongs to another data set.")
        spend = settled(spend, entry.event, entry.id) if entry.kind is Kind.SETTLE else released(spend)
    state.spends[spend.id] = spend


def created(state: State, entry: Entry) -> DataSet:
    """The data set that ``entry`` adds to ``state``; refuses a second one of the same name."""
    if entry.dataset in state.datasets:
        raise InvalidInput(f"the ledger already holds a data set called {entry.dataset!r}; its budget is final.")
    if entry.budget is None:
        raise InvalidInput(f"the data set {entry.dataset!r} has no budget.")
    return DataSet(entry.dataset, entry.budget, entry.adjacency, entry.unit, entry.accountant)


def reserved(entry: Entry) -> Spend:
    """The spend that ``entry`` sets aside."""
    if entry.event is None:
        raise InvalidInput(f"{entry.what!r} reserves no event.")
    return Spend(
        entry.id, entry.dataset, entry.event, Status.OPEN, entry.what, entry.who, entry.time, process=entry.process
    )


def settled(spend: Spend, event: Event | None, entry: int) -> Spend:
    """``spend`` after ``event`` really happened. One that was released counts again: it did happen after all.

    Args:
        spend: Open or released.
        event: What happened; None for what was reserved.
        entry: The number of the entry that says so.
    """
    if spend.status is Status.SETTLED:
        raise InvalidInput(f"reservation {spend.id} is settled already; a settled spend is final.")
    same = event is None or event is spend.event or event == spend.event
    return Spend(
        spend.id, spend.dataset, spend.event if event is None else event, Status.SETTLED, spend.what, spend.who,
        spend.time, entry, same, spend.process,
    )  # fmt: skip


def released(spend: Spend) -> Spend:
    """``spend`` after a person said that it never happened."""
    if spend.status is not Status.OPEN:
        raise InvalidInput(f"reservation {spend.id} is {spend.status} already; only an open one can be released.")
    return replace(spend, status=Status.RELEASED)
