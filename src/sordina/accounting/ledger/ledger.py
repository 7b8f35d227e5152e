"""What a user does with a ledger: create a budget, reserve before touching data, settle afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sordina.accounting.accountants import accountant as accountant_called
from sordina.accounting.events import Event
from sordina.accounting.ledger.entries import Entry, Head, History, Kind, stored_form
from sordina.accounting.ledger.limits import overrun, refuse_over_budget, refuse_overspent
from sordina.accounting.ledger.state import (
    DataSet,
    Spend,
    Statement,
    Status,
    created,
    released,
    replay,
    reserved,
    settled,
)
from sordina.accounting.ledger.store import Store
from sordina.accounting.ledger.words import line, myself, now, whole_hash
from sordina.errors import BudgetRefused, InvalidInput, LedgerCorrupt
from sordina.types import Adjacency, Budget, Unit


class Ledger:
    """The budgets of data sets, in a file or in a database that a team shares.

    ``where`` is a path to a SQLite file or any SQLAlchemy URL. ``timeout`` is how many seconds to wait for others.

    >>> import tempfile
    >>> from sordina.accounting import Gaussian, Repeated
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger(f"{folder.name}/ledger.db")
    >>> _ = ledger.create("patients", Budget(epsilon=3, delta=1e-5))
    >>> with ledger.reserve("patients", Repeated(Gaussian(5.0), 10), what="count visits") as reservation:
    ...     _ = reservation.settle(Repeated(Gaussian(5.0), 4))  # six of the ten were not needed
    >>> 1 < ledger.spent("patients") < 2
    True
    >>> ledger.reserve("patients", Gaussian(0.1), what="too much")
    Traceback (most recent call last):
    sordina.errors.BudgetRefused: 'too much' would bring 'patients' to epsilon ...
    >>> folder.cleanup()
    """

    def __init__(self, where: str | Path = "sordina-ledger.db", *, timeout: float = 60.0) -> None:
        self._store = Store(where, timeout)

    @property
    def name(self) -> str:
        """Where the ledger is, without any password."""
        return self._store.name

    @property
    def id(self) -> str:
        """A name no other ledger has, wherever it is moved: the hash of its first entry."""
        return self._store.read().hashes[0]

    def create(
        self,
        dataset: str,
        budget: Budget,
        *,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        unit: Unit | str = Unit.RECORD,
        accountant: str = "pld",
        who: str | None = None,
    ) -> DataSet:
        """Open an account for ``dataset``. Its terms are final: a second `create` of the same name is refused."""
        if not isinstance(budget, Budget) or budget.epsilon == float("inf"):
            raise InvalidInput(
                f"a ledger needs a finite budget, such as Budget(epsilon=3, delta=1e-5); got {budget!r}."
            )
        dataset_ = DataSet(
            line("the name of a data set", dataset), budget, _adjacency(adjacency), _unit(unit),
            accountant_called(accountant).name,
        )  # fmt: skip
        who = line("who", who or myself())

        def decide(history: History) -> Entry:
            entry = _entry(history, Kind.CREATE, dataset_, who, "open the account", budget=budget)
            created(replay(history.entries), entry)
            return entry

        self._store.append(decide, found=True)
        return dataset_

    def reserve(
        self,
        dataset: str,
        event: Event,
        *,
        what: str,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        unit: Unit | str = Unit.RECORD,
        who: str | None = None,
    ) -> Reservation:
        """Set aside what a run may spend at worst, *before* it touches data; `BudgetRefused` if that does not fit.

        ``event`` is stated for ``adjacency`` and ``unit``, which must be the data set's. A reservation counts as spent
        until it is settled, or released by a person.
        """
        what, who = line("what", what), line("who", who or myself())
        decide = _reserving(dataset, event, what, who, adjacency, unit)
        return Reservation(self, reserved(self._append(decide)), who)

    def check(
        self,
        dataset: str,
        event: Event,
        *,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        unit: Unit | str = Unit.RECORD,
    ) -> None:
        """Refuse now what `reserve` would refuse, and write nothing: for who has not even opened the data yet."""
        _reserving(dataset, event, "check", myself(), adjacency, unit)(self._store.read())

    def reservation(self, number: int) -> Reservation:
        """An open reservation made earlier, by this process or another: to go on with after a crash."""
        spend = replay(self._store.read().entries).spend(number)
        if spend.status is not Status.OPEN:
            raise InvalidInput(f"reservation {number} is {spend.status} already; only an open one can be taken up.")
        return Reservation(self, spend, myself())

    def spends(self) -> dict[int, Spend]:
        """Every reservation by its number, whatever became of it; costs no accounting."""
        return dict(replay(self._store.read().entries).spends)

    def settle(self, number: int, event: Event | None = None, *, who: str | None = None) -> Entry:
        """Record what reservation ``number`` really spent (without ``event``: all of it).

        The truth is recorded even if it is more than was reserved, or comes after a release: then with a warning, and
        with `BudgetRefused` if the budget is passed, because the result must not be released.
        """
        event = None if event is None else stored_form(event)
        who = line("who", who or myself())

        def decide(history: History) -> Entry:
            state = replay(history.entries)
            spend = state.spend(number)
            after = settled(spend, event)
            terms = state.dataset(spend.dataset)
            return _entry(
                history, Kind.SETTLE, terms, who, spend.what,
                event=after.event, reservation=number, note=overrun(state, terms, spend, after),
            )  # fmt: skip

        entry = self._append(decide)
        if entry.note:
            refuse_overspent(self.statement(entry.dataset), entry)
            warnings.warn(f"reservation {number} ({entry.what!r}) {entry.note}; recorded as such.", stacklevel=2)
        return entry

    def release(self, number: int, *, why: str, who: str | None = None) -> Entry:
        """Declare that reservation ``number`` spent nothing, for a reason that is recorded: a person's decision."""
        why, who = line("why", why), line("who", who or myself())

        def decide(history: History) -> Entry:
            state = replay(history.entries)
            spend = state.spend(number)
            released(spend)
            terms = state.dataset(spend.dataset)
            return _entry(history, Kind.RELEASE, terms, who, spend.what, reservation=number, note=why)

        return self._append(decide)

    def budgets(self) -> tuple[DataSet, ...]:
        """Every data set and its terms, by name."""
        datasets = replay(self._store.read().entries).datasets
        return tuple(datasets[name] for name in sorted(datasets))

    def statement(self, dataset: str) -> Statement:
        """What was spent on ``dataset``, what remains, and every reservation."""
        return replay(self._store.read().entries).statement(dataset)

    def statements(self) -> tuple[Statement, ...]:
        """The statement of every data set, by name."""
        state = replay(self._store.read().entries)
        return tuple(state.statement(name) for name in sorted(state.datasets))

    def spent(self, dataset: str) -> float:
        """The epsilon spent on ``dataset`` at its delta, open reservations included."""
        return self.statement(dataset).spent

    def remaining(self, dataset: str) -> float:
        """The budget of ``dataset`` minus what was spent."""
        return self.statement(dataset).remaining

    def history(self, dataset: str | None = None) -> tuple[Entry, ...]:
        """Every entry, or those about ``dataset``, oldest first."""
        entries = self._store.read().entries
        if dataset is None:
            return entries
        replay(entries).dataset(dataset)
        return tuple(entry for entry in entries if entry.dataset == dataset)

    def verify(self, head: str | None = None) -> Head:
        """Check the whole history and return its head; `LedgerCorrupt` if it was altered.

        With ``head``, a hash that was noted earlier, also check that everything up to it is still there.
        """
        head = None if head is None else whole_hash(head)
        history = self._store.read()
        replay(history.entries)
        if head is not None and head not in history.hashes:
            raise LedgerCorrupt(
                f"the history is whole in itself but does not contain the noted head {head[:12]}...: "
                "it was rewritten, or replaced by an older copy."
            )
        return history.head

    def _append(self, decide: Callable[[History], Entry]) -> Entry:
        """Decide once without the lock, then again under it; what was accounted is remembered, so the lock is short."""
        decide(self._store.read())
        return self._store.append(decide)


@dataclass
class Reservation:
    """A spend set aside. Left by an exception it stays reserved; left in peace unsettled, it is settled in full."""

    ledger: Ledger
    spend: Spend
    who: str
    settled: bool = False

    @property
    def id(self) -> int:
        """By which `Ledger.settle` and `Ledger.release` know it."""
        return self.spend.id

    def settle(self, event: Event | None = None) -> Entry:
        """Record what was really spent; without ``event``, all that was reserved."""
        try:
            entry = self.ledger.settle(self.id, event, who=self.who)
        except BudgetRefused:
            self.settled = True
            raise
        self.settled = True
        return entry

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self.settled:
            self.settle()


def _reserving(
    dataset: str, event: Event, what: str, who: str, adjacency: Adjacency | str, unit: Unit | str
) -> Callable[[History], Entry]:
    """What decides, from a history, whether ``event`` may be reserved."""
    event = stored_form(event)
    stated = _adjacency(adjacency), _unit(unit)

    def decide(history: History) -> Entry:
        state = replay(history.entries)
        terms = state.dataset(dataset)
        if stated != (terms.adjacency, terms.unit):
            raise InvalidInput(
                f"the budget of {dataset!r} is per {terms.unit} with {terms.adjacency} neighbours, but {what!r} is "
                f"stated per {stated[1]} with {stated[0]} neighbours; the two do not add up."
            )
        entry = _entry(history, Kind.RESERVE, terms, who, what, event=event)
        refuse_over_budget(state, terms, reserved(entry))
        return entry

    return decide


def _entry(
    history: History,
    kind: Kind,
    terms: DataSet,
    who: str,
    what: str,
    *,
    budget: Budget | None = None,
    event: Event | None = None,
    reservation: int | None = None,
    note: str = "",
) -> Entry:
    return Entry(
        history.next_id, now(), who, what, kind, terms.name, terms.adjacency, terms.unit, terms.accountant,
        budget=budget, event=event, reservation=reservation, note=note,
    )  # fmt: skip


def _adjacency(value: Adjacency | str) -> Adjacency:
    try:
        return Adjacency(value)
    except ValueError as error:
        raise InvalidInput(f"adjacency is one of {', '.join(map(str, Adjacency))}, got {str(value)!r}.") from error


def _unit(value: Unit | str) -> Unit:
    try:
        return Unit(value)
    except ValueError as error:
        raise InvalidInput(f"unit is one of {', '.join(map(str, Unit))}, got {str(value)!r}.") from error
