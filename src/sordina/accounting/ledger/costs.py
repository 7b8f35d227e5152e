"""What the spends of a data set cost together, quickly; whether one more fits; the ledger as once read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import numpy as np

from sordina.accounting._numerics import Array
from sordina.accounting._pld.composition import Pmf, TooFine
from sordina.accounting.events import Event
from sordina.accounting.incremental import KeptDivergences, KeptLosses, KeptPast, KeptShift, Question, keeps, kept
from sordina.accounting.ledger.entries import Entry, History, Kind
from sordina.accounting.ledger.state import DataSet, Spend, State, Statement, Status, apply, compose, replay
from sordina.errors import BudgetRefused, LedgerCorrupt
from sordina.privacy import format_down, format_up

# A kept past as bytes and back: a line of JSON, then the arrays it speaks of. Nothing is ever executed on reading.

_KINDS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in (Pmf, KeptLosses, KeptDivergences, KeptShift)}


def pack(value: Any) -> bytes:
    """``value`` (numbers, texts, lists, dictionaries, kept pasts) as bytes.

    >>> unpack(pack({"entry": 3, "ids": [1, 2]}))
    {'entry': 3, 'ids': [1, 2]}
    """
    arrays: list[Array] = []
    text = json.dumps(_plain(value, arrays), sort_keys=True)
    return b"\n".join([text.encode(), b"".join(array.astype("<f8").tobytes() for array in arrays)])


def unpack(data: bytes) -> Any:
    """What `pack` made the bytes of; ValueError, KeyError or TypeError if it did not make them."""
    text, _, rest = data.partition(b"\n")
    return _back(json.loads(text), np.frombuffer(rest, dtype="<f8"))


def _plain(value: Any, arrays: list[Array]) -> Any:
    if isinstance(value, np.ndarray):
        start = sum(array.size for array in arrays)
        arrays.append(value)
        return {"kind": "array", "start": start, "size": value.size}
    if is_dataclass(value):
        inside = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {"kind": type(value).__name__, "fields": inside}
    if isinstance(value, dict):
        return {"kind": "map", "items": [[key, _plain(part, arrays)] for key, part in value.items()]}
    if isinstance(value, tuple | list):
        return [_plain(part, arrays) for part in value]
    return value


def _back(value: Any, numbers: Array) -> Any:
    if isinstance(value, list):
        return [_back(part, numbers) for part in value]
    if not isinstance(value, dict):
        return value
    if value["kind"] == "array":
        return numbers[value["start"] : value["start"] + value["size"]]
    if value["kind"] == "map":
        return {key: _back(part, numbers) for key, part in value["items"]}
    inside = {name: _back(part, numbers) for name, part in value["fields"].items()}
    return _KINDS[value["kind"]](
        **{name: tuple(part) if isinstance(part, list) else part for name, part in inside.items()}
    )


# What the spends of a data set cost together, quickly however many there are.
#
# Up to `_FEW` distinct events are judged from scratch by the data set's accountant. Beyond that the past is *kept*: its
# composition (see `accounting.kept`) is stored beside the history, and only what is new joins it. A stored past is
#
# * conservative: it never costs less than the same spends judged from scratch, and at most `ROUNDING` more;
# * bound to the chain: the entry it was stored with holds its SHA-256, so it is as hard to alter as an entry. One that
#   is missing, or does not match, is composed again from the history, which takes as long as it takes.
#
# Three parts are kept apart, because only what is settled is final:
#
# =======  ========================================================================================================
# settled  all spends that an entry up to ``entry`` settled, as one
# recent   the newest open reservations, one by one, so that settling or releasing one composes nothing again
# older    open reservations beyond `_RECENT`, as one; composed again if one of them is settled as something else, or
#          released
# =======  ========================================================================================================

_FEW = 12
"""Distinct events that are judged from scratch."""
_RECENT = 8
"""Open reservations that are kept one by one."""
_BATCH = 64
"""Parts that are joined at once."""
ROUNDING = 2e-3
"""What a kept past of ten thousand spends may cost more than from scratch, as a part of it (see `loss_sums`)."""


@dataclass(frozen=True)
class ComposedSpends:
    """The spends of a data set up to an entry of the history, composed."""

    dataset: str
    entry: int = 0
    settled: KeptPast | None = None
    older: KeptPast | None = None
    older_ids: tuple[int, ...] = ()
    recent: Mapping[int, KeptPast] = field(default_factory=dict)

    @property
    def parts(self) -> list[KeptPast]:
        """All that is kept, to be joined."""
        return [part for part in (self.settled, self.older, *self.recent.values()) if part is not None]

    def to_bytes(self) -> bytes:
        """For the store; `from_bytes` reads it."""
        return pack({
            "format": 1, "dataset": self.dataset, "entry": self.entry, "settled": self.settled, "older": self.older,
            "older_ids": self.older_ids, "recent": dict(self.recent),
        })  # fmt: skip


def digest(data: bytes) -> str:
    """The SHA-256 by which an entry knows a stored past."""
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=8)
def composed_from(data: bytes, wanted: str) -> ComposedSpends | None:
    """What `ComposedSpends.to_bytes` wrote, if its digest is ``wanted``; None if it is anything else."""
    if digest(data) != wanted:
        return None
    try:
        read = unpack(data)
        if read["format"] != 1:
            return None
        return ComposedSpends(
            read["dataset"], read["entry"], read["settled"], read["older"], tuple(read["older_ids"]), read["recent"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def question_about(terms: DataSet) -> Question:
    """What is asked of the past of a data set."""
    return Question(terms.accountant, terms.budget.delta, terms.adjacency)


def epsilon(terms: DataSet, spends: Iterable[Spend], stored: ComposedSpends | None = None) -> float:
    """What all ``spends`` that count cost together.

    Args:
        terms: Of the data set.
        spends: Of the data set; released ones do not count.
        stored: The past as it was kept last.
    """
    counted = [spend for spend in spends if spend.status is not Status.RELEASED]
    if not _many(terms, counted):
        return terms.epsilon(compose(spend.event for spend in counted))
    try:
        first, *others = kept_up(terms, counted, stored).parts
        return first.epsilon(others, question_about(terms))
    except TooFine:
        return terms.epsilon(compose(spend.event for spend in counted))


def worth_keeping(
    terms: DataSet, spends: Iterable[Spend], entry: int, stored: ComposedSpends | None
) -> ComposedSpends | None:
    """The past up to ``entry``, composed; None if it is short, or reaches too far to be kept.

    Args:
        terms: Of the data set.
        spends: All of the data set, after that entry.
        entry: The number of the entry.
        stored: The past as it was kept last.
    """
    counted = [spend for spend in spends if spend.status is not Status.RELEASED]
    if not _many(terms, counted):
        return None
    try:
        return kept_up(terms, counted, stored, entry)
    except TooFine:
        return None


def _many(terms: DataSet, counted: list[Spend]) -> bool:
    return keeps(terms.accountant) and len(counted) > _FEW and len({spend.event for spend in counted}) > _FEW


def kept_up(terms: DataSet, counted: list[Spend], stored: ComposedSpends | None, entry: int = 0) -> ComposedSpends:
    """``stored`` brought up to date with the spends that count: what it has composed is not composed again.

    Args:
        terms: Of the data set.
        counted: Every open or settled spend.
        stored: The past as it was kept last; None composes all.
        entry: The number of the last entry that ``counted`` knows of.
    """
    question, past = question_about(terms), stored or ComposedSpends(terms.name)
    now = {spend.id: spend for spend in counted}
    covered = {spend.id for spend in counted if 0 < spend.closed <= past.entry} - set(past.older_ids)
    settled, older, older_ids = past.settled, past.older, past.older_ids
    if all(number in now and now[number].as_reserved for number in older_ids):
        covered |= set(older_ids)
    else:
        older, older_ids = None, ()
    if older is not None and all(now[number].status is Status.SETTLED for number in older_ids):
        settled, older, older_ids = _joined([settled, older], question), None, ()
    recent = {number: part for number, part in past.recent.items() if number in now and not now[number].closed}
    fresh = [spend for spend in counted if spend.id not in covered and spend.id not in recent]

    def part(spend: Spend) -> KeptPast:
        known = past.recent.get(spend.id) if spend.as_reserved else None
        return known or kept(spend.event, question)

    settled = _joined(chain([settled], (part(spend) for spend in fresh if spend.closed)), question)
    waiting = sorted([*recent, *(spend.id for spend in fresh if not spend.closed)])
    old = waiting[: -_RECENT // 2] if len(waiting) > _RECENT else []
    older = _joined(chain([older], (part(now[number]) for number in old)), question)
    recent = {number: part(now[number]) for number in waiting[len(old) :]}
    return ComposedSpends(terms.name, entry, settled, older, older_ids + tuple(old), recent)


def _joined(parts: Iterable[KeptPast | None], question: Question) -> KeptPast | None:
    """All ``parts`` as one, `_BATCH` at a time, so that never more of them are in memory."""
    there = (part for part in parts if part is not None)
    whole: KeptPast | None = next(there, None)
    while whole is not None and (batch := list(islice(there, _BATCH))):
        whole = whole.joined(batch, question)
    return whole


def statement_of_costs(state: State, terms: DataSet, stored: ComposedSpends | None = None) -> Statement:
    """What was spent on a data set so far.

    Args:
        state: What the history means.
        terms: Of the data set.
        stored: The past as it was kept last.
    """
    spends = state.spends_on(terms)
    return Statement(terms, epsilon(terms, spends, stored), spends)


# When a spend does not fit: refused beforehand, or found out too late and said so.

_ROUNDING = 1e-6
"""Relative distance below which two epsilons of one accountant do not count as different."""


@dataclass(frozen=True)
class Fit:
    """What a spend would cost, alone and with all that was spent before."""

    dataset: DataSet
    alone: float
    spent: float
    together: float

    @property
    def fits(self) -> bool:
        """Whether the budget holds all of it."""
        return self.together <= self.dataset.budget.epsilon

    def __str__(self) -> str:
        budget, left = self.dataset.budget, max(0.0, self.dataset.budget.epsilon - self.spent)
        alone, spent, together = format_up(self.alone), format_up(self.spent), format_up(self.together)
        sentence = (
            f"{'fits' if self.fits else 'does not fit'}: alone it costs epsilon {alone}, with the {spent} spent it "
            f"comes to {together} of {budget.epsilon:g} at delta {budget.delta:g}."
        )
        if self.fits and self.alone > left:
            sentence += (
                f" That it is more than the remaining {format_down(left)} is no mistake: epsilons do not simply add up."
                f" The noise of several releases composes as a whole: {spent} and {alone} together are {together}, not"
                f" {format_up(self.spent + self.alone)}."
            )
        if not self.fits and self.alone <= left:
            sentence += " What is known only by its epsilon and delta brings its own delta, which adds to the others'."
        return sentence


def fit_of(state: State, terms: DataSet, event: Event, stored: ComposedSpends | None) -> Fit:
    """What ``event`` would cost beside all that was spent.

    Args:
        state: What the history means.
        terms: Of the data set.
        event: What may be spent.
        stored: The past as it was kept last.
    """
    spend = Spend(0, terms.name, event, Status.OPEN, "", "", "")
    return Fit(
        terms,
        terms.epsilon(event),
        epsilon(terms, state.spends_on(terms), stored),
        epsilon(terms, state.spends_on(terms, instead=spend), stored),
    )


def refuse_over_budget(state: State, terms: DataSet, spend: Spend, stored: ComposedSpends | None) -> None:
    """Refuse ``spend`` if everything spent and reserved on its data set, composed with it, passes the budget."""
    wanted = epsilon(terms, state.spends_on(terms, instead=spend), stored)
    if wanted <= terms.budget.epsilon:
        return
    statement = statement_of_costs(state, terms, stored)
    waiting = len(statement.having(Status.OPEN))
    raise BudgetRefused(
        f"{spend.what!r} would bring {terms.name!r} to epsilon {format_up(wanted, 6)} of {terms.budget.epsilon:g} "
        f"(delta {terms.budget.delta:g}, {terms.accountant}); {format_up(statement.spent, 6)} are spent, counting "
        f"{waiting} open reservation{'' if waiting == 1 else 's'}. Nothing was read or written."
    )


def overrun(state: State, terms: DataSet, before: Spend, after: Spend, stored: ComposedSpends | None) -> str:
    """What is wrong with settling ``before`` as ``after``; empty if nothing is."""
    if before.status is Status.RELEASED:
        return "was settled after it had been released"
    if after.event == before.event:
        return ""
    planned = epsilon(terms, state.spends_on(terms, instead=before), stored)
    actual = epsilon(terms, state.spends_on(terms, instead=after), stored)
    return "" if actual <= planned * (1 + _ROUNDING) else "spent more than it had reserved"


def refuse_overspent(statement: Statement, entry: Entry) -> None:
    """Refuse the result of a settled spend that, against its reservation, brought the data set over its budget."""
    budget = statement.dataset.budget
    if not statement.spent <= budget.epsilon:
        raise BudgetRefused(
            f"{entry.what!r} {entry.note}, and brings {entry.dataset!r} to epsilon {format_up(statement.spent, 6)} of "
            f"{budget.epsilon:g}. This is recorded; do not release its result."
        )


# A ledger as it was read at one moment: the history, what it means, and what it costs.

Remembered = dict[str, tuple[str, ComposedSpends]]
"""By data set: the hash of an entry, and all spends up to it, composed."""


@dataclass
class Book:
    """One reading of a ledger.

    Args:
        history: Checked against its chain.
        stored: Compositions of pasts as bytes, by data set; used only where the history holds their digest.
        remembered: What this process has composed itself; used only where the history holds the entry's hash.
    """

    history: History
    stored: dict[str, bytes]
    remembered: Remembered
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = replay(self.history.entries)

    def past(self, terms: DataSet) -> ComposedSpends | None:
        """The spends of a data set up to now, composed; None if they are too few to be kept."""
        best = self._vouched(terms)
        hash_, known = self.remembered.get(terms.name, ("", None))
        if known is not None and self.history.hashes[known.entry - 1 : known.entry] == (hash_,):
            best = known if best is None or known.entry > best.entry else best
        if best is not None and best.entry == self.history.head.count:
            return best
        made = worth_keeping(terms, self.state.spends_on(terms), self.history.head.count, best)
        if made is not None:
            self.remembered[terms.name] = self.history.head.hash, made
        return made

    def _vouched(self, terms: DataSet) -> ComposedSpends | None:
        """The stored composition, if it is the one whose digest the last entry that has one holds."""
        data = self.stored.get(terms.name)
        if data is None:
            return None
        for entry in reversed(self.history.entries):
            if entry.dataset == terms.name and entry.past:
                found = composed_from(data, entry.past)
                right = found is not None and (found.dataset, found.entry) == (terms.name, entry.id)
                return found if right else None
        return None

    def statement(self, terms: DataSet) -> Statement:
        """What was spent on a data set."""
        return statement_of_costs(self.state, terms, self.past(terms))

    def with_past(self, entry: Entry) -> tuple[Entry, bytes | None]:
        """``entry`` with the digest of the past up to it, and that past, where it is long enough to be kept."""
        if entry.kind is Kind.CREATE:
            return entry, None
        after = State(dict(self.state.datasets), dict(self.state.spends))
        apply(entry, after)
        terms = after.exactly(entry.dataset)
        made = worth_keeping(terms, after.spends_on(terms), entry.id, self.past(terms))
        if made is None:
            return entry, None
        data = made.to_bytes()
        return replace(entry, past=digest(data)), data

    def refuse_understated(self, terms: DataSet) -> None:
        """Compose a data set from its first entry on; `LedgerCorrupt` if the stored composition costs less.

        Args:
            terms: Of the data set.
        """
        stored = self._vouched(terms)
        if stored is None:
            return
        spends = self.state.spends_on(terms)
        kept, again = epsilon(terms, spends, stored), epsilon(terms, spends)
        if kept < again * (1 - 1e-6):
            raise LedgerCorrupt(
                f"the stored composition of {terms.name!r} costs epsilon {kept:.6g}, but its entries cost {again:.6g}: "
                "it was forged, together with the entry that vouches for it."
            )
