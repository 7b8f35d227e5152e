"""What the spends of a data set cost together, quickly however many there are.

Up to `_FEW` distinct events are judged from scratch by the data set's accountant. Beyond that the past is *kept*: its
composition (see `accounting.kept`) is stored beside the history, and only what is new joins it. A stored past is

* conservative: it never costs less than the same spends judged from scratch, and at most `ROUNDING` more;
* bound to the chain: the entry it was stored with holds its SHA-256, so it is as hard to alter as an entry. One that
  is missing, or does not match, is composed again from the history, which takes as long as it takes.

Three parts are kept apart, because only what is settled is final:

=======  ========================================================================================================
settled  all spends that an entry up to ``entry`` settled, as one
recent   the newest open reservations, one by one, so that settling or releasing one composes nothing again
older    open reservations beyond `_RECENT`, as one; composed again if one of them is settled as something else, or
         released
=======  ========================================================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice

from sordina.accounting.convolve import TooFine
from sordina.accounting.kept import KeptPast, Question, keeps, kept
from sordina.accounting.ledger.packing import pack, unpack
from sordina.accounting.ledger.state import DataSet, Spend, State, Statement, Status, compose

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


def statement(state: State, terms: DataSet, stored: ComposedSpends | None = None) -> Statement:
    """What was spent on a data set so far.

    Args:
        state: What the history means.
        terms: Of the data set.
        stored: The past as it was kept last.
    """
    spends = state.spends_on(terms)
    return Statement(terms, epsilon(terms, spends, stored), spends)
