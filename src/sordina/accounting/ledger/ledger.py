"""What a user does with a ledger: create a budget, reserve before touching data, settle afterwards."""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from sordina.accounting.accountants import accountant as accountant_called
from sordina.accounting.events import Event
from sordina.accounting.ledger.costs import Book, Fit, Remembered, fit_of, overrun, refuse_over_budget, refuse_overspent
from sordina.accounting.ledger.entries import (
    Entry,
    Head,
    Kind,
    composed,
    line,
    link,
    myself,
    name_of,
    now,
    stored_form,
    whole_hash,
)
from sordina.accounting.ledger.state import (
    DataSet,
    Life,
    Spend,
    Statement,
    Status,
    created,
    released,
    reserved,
    settled,
    this_process,
)
from sordina.accounting.ledger.store import Store
from sordina.errors import BudgetRefused, InvalidInput, LedgerCorrupt, SordinaError
from sordina.privacy import Adjacency, Budget, Unit


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
        self._remembered: Remembered = {}

    def __deepcopy__(self, _: object) -> Ledger:
        """Itself: scikit-learn's `clone` copies what an estimator was given, and there is one ledger."""
        return self

    @property
    def name(self) -> str:
        """Where the ledger is, without any password."""
        return self._store.name

    @property
    def id(self) -> str:
        """A name no other ledger has, wherever it is moved: the hash of its first entry."""
        return self._book().history.hashes[0]

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
            name_of(dataset), budget, _adjacency(adjacency), _unit(unit),
            accountant_called(accountant).name,
        )  # fmt: skip
        who = line("who", who or myself())

        def decide(book: Book) -> Entry:
            entry = _entry(book, Kind.CREATE, dataset_, who, "open the account", budget=budget)
            if any(composed(known) == dataset_.name for known in book.state.datasets):
                raise InvalidInput(
                    f"the ledger already holds a data set called {dataset_.name!r}; its budget is final."
                )
            created(book.state, entry)
            return entry

        self._store.found()
        self._append(decide)
        return dataset_

    def dataset(self, name: str) -> DataSet:
        """The terms of a data set.

        Args:
            name: The name of the data set, its accents composed or not.

        Raises:
            InvalidInput: The ledger is not there, or holds no such data set.
        """
        return self._book().state.dataset(name)

    def reserve(
        self,
        dataset: str,
        event: Event,
        *,
        what: str,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        unit: Unit | str = Unit.RECORD,
        who: str | None = None,
        lasting: bool = True,
    ) -> Reservation:
        """Set aside what a run may spend at worst, *before* it touches data; `BudgetRefused` if that does not fit.

        A reservation counts as spent until it is settled, or released by a person.

        Args:
            dataset: The name of the data set.
            event: What may happen, stated for ``adjacency`` and ``unit``.
            what: What it is for, in a few words.
            adjacency: Must be the data set's.
            unit: Must be the data set's.
            who: Who acts; user@host by default.
            lasting: Whether this process itself makes the run, so that a reader can be told if it still does.
        """
        what, who = line("what", what), line("who", who or myself())
        decide = _reserving(dataset, event, what, who, adjacency, unit, this_process() if lasting else "")
        entry, book = self._append(decide)
        return Reservation(self, reserved(entry), who, link(book.history.head.hash, entry.text()))

    def check(
        self,
        dataset: str,
        event: Event,
        *,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        unit: Unit | str = Unit.RECORD,
    ) -> None:
        """Refuse now what `reserve` would refuse, and write nothing: for who has not even opened the data yet."""
        _reserving(dataset, event, "this run", myself(), adjacency, unit)(self._book())

    def reservation(self, number: int, fingerprint: str | None = None) -> Reservation:
        """An open reservation made earlier, by this process or another: to go on with after a crash.

        Args:
            number: Its id.
            fingerprint: Its `Reservation.fingerprint`, which refuses the reservation of that number in another ledger.
        """
        book = self._book()
        spend = book.state.spend(number)
        if fingerprint is not None and book.history.hashes[number - 1] != fingerprint:
            raise InvalidInput(
                f"reservation {number} of the ledger {self.name} is another one than was made for this run: name the "
                "ledger that the run was booked on."
            )
        if spend.status is not Status.OPEN:
            raise InvalidInput(f"reservation {number} is {spend.status} already; only an open one can be taken up.")
        return Reservation(self, spend, myself(), book.history.hashes[number - 1])

    def spends(self) -> dict[int, Spend]:
        """Every reservation by its number, whatever became of it; costs no accounting."""
        return dict(self._book().state.spends)

    def settle(self, number: int, event: Event | None = None, *, who: str | None = None) -> Entry:
        """Record what reservation ``number`` really spent (without ``event``: all of it).

        The truth is recorded even if it is more than was reserved, or comes after a release: then with a warning, and
        with `BudgetRefused` if the budget is passed, because the result must not be released.
        """
        event = None if event is None else stored_form(event)
        who = line("who", who or myself())

        def decide(book: Book) -> Entry:
            spend = book.state.spend(number)
            after = settled(spend, event, book.history.next_id)
            terms = book.state.exactly(spend.dataset)
            note = overrun(book.state, terms, spend, after, book.past(terms))
            return _entry(
                book, Kind.SETTLE, terms, who, spend.what, event=after.event, reservation=number, note=note
            )  # fmt: skip

        entry, _ = self._append(decide)
        if entry.note:
            book = self._book()
            refuse_overspent(book.statement(book.state.exactly(entry.dataset)), entry)
            warnings.warn(f"reservation {number} ({entry.what!r}) {entry.note}; recorded as such.", stacklevel=2)
        return entry

    def release(self, number: int, *, why: str, who: str | None = None) -> Entry:
        """Declare that reservation ``number`` spent nothing, for a reason that is recorded: a person's decision."""
        why, who = line("why", why), line("who", who or myself())

        def decide(book: Book) -> Entry:
            spend = book.state.spend(number)
            released(spend)
            terms = book.state.exactly(spend.dataset)
            return _entry(book, Kind.RELEASE, terms, who, spend.what, reservation=number, note=why)

        return self._append(decide)[0]

    def release_older(
        self, age: timedelta, *, why: str, dataset: str | None = None, who: str | None = None
    ) -> tuple[tuple[Entry, ...], tuple[Spend, ...]]:
        """Declare that all open reservations older than ``age`` spent nothing.

        Args:
            age: How old a reservation is at least.
            why: How that is known; recorded with each.
            dataset: Of this data set only.
            who: Who acts; user@host by default.

        Returns:
            The entries written, and the reservations that were kept because their process runs on this machine.
        """
        state = self._book().state
        only = None if dataset is None else state.dataset(dataset).name
        found = [
            spend for spend in state.spends.values()
            if spend.status is Status.OPEN and spend.age >= age and only in (None, spend.dataset)
        ]  # fmt: skip
        alive = tuple(spend for spend in found if spend.life is Life.RUNNING)
        return tuple(self.release(spend.id, why=why, who=who) for spend in found if spend not in alive), alive

    def fit(
        self,
        dataset: str,
        event: Event,
        *,
        adjacency: Adjacency | str | None = None,
        unit: Unit | str | None = None,
    ) -> Fit:
        """Whether ``event`` could be reserved now, and what all would cost with it; writes nothing.

        Args:
            dataset: The name of the data set.
            event: What may happen.
            adjacency: What the event is stated for; the data set's if left out.
            unit: Likewise.
        """
        book = self._book()
        terms = book.state.dataset(dataset)
        stated = _adjacency(adjacency or terms.adjacency), _unit(unit or terms.unit)
        if stated != (terms.adjacency, terms.unit):
            raise InvalidInput(f"the budget of {terms.name!r} is per {terms.unit} with {terms.adjacency} neighbours.")
        return fit_of(book.state, terms, stored_form(event), book.past(terms))

    def budgets(self) -> tuple[DataSet, ...]:
        """Every data set and its terms, by name."""
        datasets = self._book().state.datasets
        return tuple(datasets[name] for name in sorted(datasets))

    def statement(self, dataset: str) -> Statement:
        """What was spent on ``dataset``, what remains, and every reservation."""
        book = self._book()
        return book.statement(book.state.dataset(dataset))

    def statements(self) -> tuple[Statement, ...]:
        """The statement of every data set, by name."""
        book = self._book()
        return tuple(book.statement(book.state.datasets[name]) for name in sorted(book.state.datasets))

    def spent(self, dataset: str) -> float:
        """The epsilon spent on ``dataset`` at its delta, open reservations included."""
        return self.statement(dataset).spent

    def remaining(self, dataset: str) -> float:
        """The budget of ``dataset`` minus what was spent."""
        return self.statement(dataset).remaining

    def history(self, dataset: str | None = None) -> tuple[Entry, ...]:
        """Every entry, or those about ``dataset``, oldest first."""
        book = self._book()
        if dataset is None:
            return book.history.entries
        name = book.state.dataset(dataset).name
        return tuple(entry for entry in book.history.entries if entry.dataset == name)

    def verify(self, head: str | None = None, *, recompose: bool = False) -> Head:
        """Check the whole history and return its head; `LedgerCorrupt` if it was altered.

        Args:
            head: A hash that was noted earlier: also check that everything up to it is still there.
            recompose: Also compose every data set from its first entry on, however long that takes, and hold the
                stored composition against it.
        """
        head = None if head is None else whole_hash(head)
        book = self._book()
        history = book.history
        if recompose:
            for terms in book.state.datasets.values():
                book.refuse_understated(terms)
        if head is not None and head not in history.hashes:
            raise LedgerCorrupt(
                f"the history is whole in itself but does not contain the noted head {head[:12]}...: "
                "it was rewritten, or replaced by an older copy."
            )
        return history.head

    def _book(self) -> Book:
        with _collector_at_rest():
            return Book(*self._store.read(), self._remembered)

    def _append(self, decide: Callable[[Book], Entry]) -> tuple[Entry, Book]:
        """Decide without a lock, and write if nobody wrote meanwhile; else decide again. Returns what was decided on.

        Somebody always gets through; one who never does gives up after the ledger's timeout.
        """
        until = time.monotonic() + self._store.timeout
        while True:
            book = self._book()
            entry = decide(book)
            entry, past = book.with_past(entry)
            if self._store.append(entry, book.history.head, past):
                return entry, book
            if time.monotonic() > until:
                raise SordinaError(f"the ledger {self.name} is in use by others without a pause; try again.")
            time.sleep(random.uniform(0.0, 0.01))


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """A long history is made of small objects that all stay: to look for garbage among them takes a quarter longer."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass
class Reservation:
    """A spend set aside. Left by an exception it stays reserved; left in peace unsettled, it is settled in full."""

    ledger: Ledger
    spend: Spend
    who: str
    fingerprint: str = ""
    """The hash of the entry that reserved: no other reservation, in any ledger, has it."""
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
    dataset: str, event: Event, what: str, who: str, adjacency: Adjacency | str, unit: Unit | str, process: str = ""
) -> Callable[[Book], Entry]:
    """What decides, from a history, whether ``event`` may be reserved."""
    event = stored_form(event)
    stated = _adjacency(adjacency), _unit(unit)

    def decide(book: Book) -> Entry:
        terms = book.state.dataset(dataset)
        if stated != (terms.adjacency, terms.unit):
            raise InvalidInput(
                f"the budget of {dataset!r} is per {terms.unit} with {terms.adjacency} neighbours, but {what!r} is "
                f"stated per {stated[1]} with {stated[0]} neighbours; the two do not add up."
            )
        entry = _entry(book, Kind.RESERVE, terms, who, what, event=event, process=process)
        refuse_over_budget(book.state, terms, reserved(entry), book.past(terms))
        return entry

    return decide


def _entry(
    book: Book,
    kind: Kind,
    terms: DataSet,
    who: str,
    what: str,
    *,
    budget: Budget | None = None,
    event: Event | None = None,
    reservation: int | None = None,
    note: str = "",
    process: str = "",
) -> Entry:
    return Entry(
        book.history.next_id, now(), who, what, kind, terms.name, terms.adjacency, terms.unit, terms.accountant,
        budget=budget, event=event, reservation=reservation, note=note, process=process,
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
