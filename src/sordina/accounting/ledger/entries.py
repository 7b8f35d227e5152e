"""One line of the history: its fields, its canonical text, the chain of hashes, and its description."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import socket
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from sordina.accounting.events import (
    Composed,
    Event,
    FixedSizeSampled,
    PoissonSampled,
    RandomStopping,
    Repeated,
    from_dict,
    to_dict,
)
from sordina.errors import InvalidInput, LedgerCorrupt
from sordina.privacy import Adjacency, Budget, Unit

# The plain fields of an entry: who, when, and one line of text.

_LONGEST = 200


def line(field: str, text: str) -> str:
    """``text`` without surrounding blanks, if it is one printable line; refused otherwise.

    >>> line("what", " count visits ")
    'count visits'
    """
    stripped = text.strip() if isinstance(text, str) else ""
    if not stripped:
        raise InvalidInput(f"{field} must be said in a few words, got {text!r}.")
    if not stripped.isprintable() or len(stripped) > _LONGEST:
        raise InvalidInput(f"{field} must be one printable line of at most {_LONGEST} characters, got {text[:40]!r}...")
    return stripped


def name_of(dataset: str) -> str:
    """The name of a data set: one printable line whose letters are composed (NFC), so that one name has one spelling.

    >>> name_of("cafe\\u0301") == name_of("caf\\xe9")
    True
    """
    return line("the name of a data set", composed(dataset))


def composed(text: str) -> str:
    """``text`` with every letter and its accents as one character where there is one."""
    return unicodedata.normalize("NFC", text) if isinstance(text, str) else text


def without_secrets(text: str, *secrets: str | None) -> str:
    """``text`` with the password of a URL, and every one of ``secrets``, replaced by three stars.

    >>> without_secrets("postgresql:/ada:hunter2@db/books")
    'postgresql:/ada:***@db/books'
    """
    for secret in sorted({secret for secret in secrets if secret}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"(\w:/{1,2}[^/@:\s]*):\S*@", r"\1:***@", text)


def myself() -> str:
    """user@host, and nothing more about either."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def whole_hash(text: str) -> str:
    """``text`` if it is a SHA-256 in hexadecimal; refused otherwise."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise InvalidInput(
            f"a head is 64 hexadecimal digits as `sordina ledger verify` prints them, got {text[:80]!r}."
        )
    return text


# One line of the history, its canonical text, and the chain of hashes that holds the lines together.
#
# The text of an entry is JSON with sorted keys, no spaces and ASCII only, so every database stores it unchanged; its
# hash is ``sha256(previous hash, newline, text)``, and the first entry follows sixty-four zeros.

GENESIS = "0" * 64


class Kind(str, Enum):
    """What an entry does."""

    CREATE = "create"
    RESERVE = "reserve"
    SETTLE = "settle"
    RELEASE = "release"

    def __str__(self) -> str:
        return self.value


_KINDS = {kind.value: kind for kind in Kind}
_ADJACENCIES = {adjacency.value: adjacency for adjacency in Adjacency}
_UNITS = {unit.value: unit for unit in Unit}


@dataclass(frozen=True)
class Entry:
    """Who did what to which data set, when, and under which adjacency, unit and accountant.

    ``budget`` belongs to *create*, ``event`` to *reserve* and *settle*, and ``reservation`` (the id of the entry
    that reserved) to *settle* and *release*. ``note`` holds why a reservation was released, or a warning,
    and ``past`` the SHA-256 of the composition of all spends up to this entry, where one was stored with it (`costs`).
    ``process`` says which process reserved (`processes`).
    """

    id: int
    time: str
    who: str
    what: str
    kind: Kind
    dataset: str
    adjacency: Adjacency
    unit: Unit
    accountant: str
    budget: Budget | None = None
    event: Event | None = None
    reservation: int | None = None
    note: str = ""
    past: str = ""
    process: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture of the entry; `from_dict` reads it back."""
        data: dict[str, Any] = {
            "id": self.id, "time": self.time, "who": self.who, "what": self.what, "kind": str(self.kind),
            "dataset": self.dataset, "adjacency": str(self.adjacency), "unit": str(self.unit),
            "accountant": self.accountant,
        }  # fmt: skip
        if self.budget is not None:
            data |= {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        if self.event is not None:
            data["event"] = to_dict(self.event)
        if self.reservation is not None:
            data["reservation"] = self.reservation
        if self.note:
            data["note"] = self.note
        if self.past:
            data["past"] = self.past
        if self.process:
            data["process"] = self.process
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any], reserved: Mapping[int, tuple[Any, Event]] | None = None) -> Entry:
        """The entry that `to_dict` pictured.

        Args:
            data: The picture.
            reserved: Pictures of events, and the events, by the reservation they were read with: most spends are
                settled as they were reserved, and such an event need not be read twice.
        """
        event, picture = None, data.get("event")
        if "event" in data:
            known = (reserved or {}).get(data.get("reservation", 0))
            event = known[1] if known is not None and known[0] == picture else from_dict(data["event"])
        return cls(
            data["id"], data["time"], data["who"], data["what"], _KINDS[data["kind"]], data["dataset"],
            _ADJACENCIES[data["adjacency"]], _UNITS[data["unit"]], data["accountant"],
            Budget(data["epsilon"], data["delta"]) if "epsilon" in data else None,
            event, data.get("reservation"), data.get("note", ""), data.get("past", ""), data.get("process", ""),
        )  # fmt: skip

    def text(self) -> str:
        """The canonical text that is stored and hashed."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Head:
    """How long the history is, and the hash of its last entry. Note it down to hold the history to it later."""

    count: int = 0
    hash: str = GENESIS


def link(previous: str, text: str) -> str:
    """The hash of an entry that follows the one with hash ``previous``."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


@dataclass(frozen=True)
class History:
    """All entries, oldest first, and their hashes."""

    entries: tuple[Entry, ...] = ()
    hashes: tuple[str, ...] = ()

    @property
    def head(self) -> Head:
        """The end of the history."""
        return Head(len(self.hashes), self.hashes[-1]) if self.hashes else Head()

    @property
    def next_id(self) -> int:
        """The id of the entry to come."""
        return len(self.entries) + 1


def unchain(rows: Iterable[tuple[int, str, str]], head: Head, known: dict[str, Entry] | None = None) -> History:
    """The history in ``rows`` of (id, text, hash), or `LedgerCorrupt` naming the first that does not fit.

    ``known`` remembers entries by their hash, which says all about them and what went before: every hash is computed
    again, but a text that was read once is not read again.

    >>> unchain([], Head())
    History(entries=(), hashes=())
    >>> unchain([], Head(1, "ab"))
    Traceback (most recent call last):
    sordina.errors.LedgerCorrupt: the history ends after entry 0, but 1 were recorded: its end was cut off.
    """
    entries: list[Entry] = []
    hashes: list[str] = []
    reserved: dict[int, tuple[Any, Event]] = {}
    for expected, (number, text, stored) in enumerate(rows, start=1):
        if number != expected:
            raise LedgerCorrupt(f"entry {expected} is missing from the history (entry {number} stands in its place).")
        if link(hashes[-1] if hashes else GENESIS, text) != stored:
            raise LedgerCorrupt(f"entry {number} does not match its hash: it was altered, moved or inserted.")
        if known is None or stored not in known:
            entry = _read(number, text, reserved)
            if known is not None:
                known[stored] = entry
        else:
            entry = known[stored]
        entries.append(entry)
        hashes.append(stored)
    history = History(tuple(entries), tuple(hashes))
    if len(entries) < head.count:
        raise LedgerCorrupt(
            f"the history ends after entry {len(entries)}, but {head.count} were recorded: its end was cut off."
        )
    if history.head != head:
        raise LedgerCorrupt(f"the history's end (entry {len(entries)}) is not the recorded head (entry {head.count}).")
    return history


def _read(number: int, text: str, reserved: dict[int, tuple[Any, Event]]) -> Entry:
    try:
        data = json.loads(text)
        entry = Entry.from_dict(data, reserved)
        if entry.kind is Kind.RESERVE and entry.event is not None:
            reserved[number] = data["event"], entry.event
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerCorrupt(f"entry {number} cannot be read ({type(error).__name__}: {error}).") from error
    if entry.id != number:
        raise LedgerCorrupt(f"entry {number} says that it is entry {entry.id}.")
    return entry


def stored_form(event: Event) -> Event:
    """``event`` as it comes back from the history; refuses what is not an event and what would not survive."""
    try:
        text = json.dumps(to_dict(event), default=_plain_number)
        back = from_dict(json.loads(text))
        unchanged = bool(back == event)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"not a privacy event: {str(event)[:120]}. Use those of sordina.accounting.") from error
    if not unchanged:
        raise InvalidInput(f"the event {str(event)[:120]} would not be recorded unchanged.")
    return back


def _plain_number(value: Any) -> float | int:
    """NumPy and tensor scalars, as Python numbers."""
    plain = value.item()
    if not isinstance(plain, (int, float)) or (isinstance(plain, float) and math.isnan(plain)):
        raise TypeError(f"not a number: {value!r}")
    return plain


# An event in a few words, for tables that people read.


def describe(event: Event) -> str:
    """``event`` in a few words.

    >>> from sordina.accounting.events import Gaussian
    >>> describe(Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100))
    '100 x Gaussian 1.5 at rate 0.01'
    >>> describe(Composed(()))
    'nothing'
    """
    if isinstance(event, Composed):
        return " + ".join(describe(part) for part in event.events) or "nothing"
    if isinstance(event, Repeated):
        return f"{event.count} x {_within(event.event)}"
    if isinstance(event, PoissonSampled):
        return f"{_within(event.event)} at rate {event.rate:g}"
    if isinstance(event, FixedSizeSampled):
        return f"{_within(event.event)} on {event.batch_size} of {event.population}"
    if isinstance(event, RandomStopping):
        return f"best of about {event.mean:g} x {_within(event.event)}"
    return " ".join([type(event).__name__, *(f"{getattr(event, field.name):g}" for field in fields(event))])


def _within(event: Event) -> str:
    text = describe(event)
    return f"({text})" if isinstance(event, Composed) and len(event.events) > 1 else text
