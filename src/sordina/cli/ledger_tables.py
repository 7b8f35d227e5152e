"""What `sordina ledger` shows: statements, open reservations, the history, and the history as CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sordina.cli.output import plain, say_table
from sordina.errors import InvalidInput
from sordina.privacy import format_down, format_up

if TYPE_CHECKING:
    from sordina.accounting.ledger import DataSet, Entry, Spend, Statement
    from sordina.accounting.ledger.costs import Fit

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "w": "weeks"}
_UNBROKEN = ("id", "UTC", "kind", "age")
_COLUMNS = (
    "id", "time", "who", "what", "kind", "dataset", "adjacency", "unit", "accountant", "epsilon", "delta", "event",
    "reservation", "note",
)  # fmt: skip


def duration(text: str) -> timedelta:
    """``7d``, ``36h``, ``90m`` or ``2w``.

    >>> duration("36h")
    datetime.timedelta(days=1, seconds=43200)
    """
    found = re.fullmatch(r"(\d{1,6})([dhmw])", text.strip())
    if found is None:
        raise InvalidInput(f"an age is a number and d, h, m or w, as 7d or 36h; got {text[:40]!r}.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def terms_of(dataset: DataSet) -> dict[str, Any]:
    """The terms of a data set, for JSON."""
    return {
        "name": dataset.name,
        "epsilon": dataset.budget.epsilon,
        "delta": dataset.budget.delta,
        "adjacency": str(dataset.adjacency),
        "unit": str(dataset.unit),
        "accountant": dataset.accountant,
    }


def statement_of(statement: Statement) -> dict[str, Any]:
    """A statement, for JSON."""
    from sordina.accounting.ledger import Status

    waiting = [
        {"id": spend.id, "what": spend.what, "who": spend.who, "time": spend.time,
         "epsilon": statement.dataset.epsilon(spend.event), "age_seconds": round(spend.age.total_seconds()),
         "run": str(spend.life)}
        for spend in statement.having(Status.OPEN)
    ]  # fmt: skip
    counts = {"settled": len(statement.having(Status.SETTLED)), "released": len(statement.having(Status.RELEASED))}
    amounts = {"spent": statement.spent, "remaining": statement.remaining}
    return terms_of(statement.dataset) | amounts | counts | {"open": waiting}


def fit_facts(found: Fit) -> dict[str, Any]:
    """Whether a spend fits, for JSON."""
    amounts = {"alone": found.alone, "spent": found.spent, "together": found.together}
    return {"fits": found.fits, **amounts, "budget": found.dataset.budget.epsilon, "why": str(found)}


def print_statements(statements: Sequence[Statement]) -> None:
    """Budgets, and what is open."""
    from sordina.accounting.ledger import Status

    rows = [
        [
            entry.dataset.name, f"{entry.dataset.budget.epsilon:g}", f"{entry.dataset.budget.delta:g}",
            format_up(entry.spent, 4), format_down(entry.remaining, 4),
            f"{entry.dataset.adjacency}, {entry.dataset.unit}, {entry.dataset.accountant}",
        ]
        for entry in statements
    ]  # fmt: skip
    columns = ("data set", "epsilon", "delta", "spent", "remaining", "counted by")
    say_table(columns, rows, title="budgets", unbroken=_UNBROKEN)
    waiting = [
        [str(spend.id), spend.dataset, spend.what, format_up(statement.dataset.epsilon(spend.event), 4), _age(spend),
         str(spend.life), spend.who]
        for statement in statements
        for spend in statement.having(Status.OPEN)
    ]  # fmt: skip
    if waiting:
        about = ("id", "data set", "what", "epsilon alone", "age", "its run", "who")
        say_table(about, waiting, title="open reservations, counted as spent", unbroken=_UNBROKEN)


def _age(spend: Spend) -> str:
    seconds = max(spend.age.total_seconds(), 0.0)
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {letter}"
    return f"{seconds:.0f} s"


def print_entries(entries: Sequence[Entry]) -> None:
    """The history."""
    from sordina.accounting.ledger.entries import describe

    rows = []
    for entry in entries:
        about = f"epsilon {entry.budget.epsilon:g}, delta {entry.budget.delta:g}" if entry.budget else entry.note
        if entry.event is not None:
            about = "; ".join(part for part in (describe(entry.event), entry.note) if part)
        kind = f"{entry.kind} {entry.reservation}" if entry.reservation else str(entry.kind)
        minute = entry.time[:16].replace("T", " ")
        rows.append([str(entry.id), minute, entry.dataset, kind, entry.who, entry.what, about])
    say_table(("id", "UTC", "data set", "kind", "who", "what", "about"), rows, title="history", unbroken=_UNBROKEN)


def csv_lines(entries: Sequence[Entry]) -> list[str]:
    """The history as lines of CSV, the names of the columns first; no cell is a formula for a spreadsheet."""
    lines = [_line(_COLUMNS)]
    for entry in entries:
        facts = entry.to_dict()
        if "event" in facts:
            facts["event"] = json.dumps(facts["event"], sort_keys=True)
        lines.append(_line([_cell(facts.get(column, "")) for column in _COLUMNS]))
    return lines


def _cell(value: object) -> str:
    text = plain(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def _line(cells: Sequence[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(cells)
    return written.getvalue()
