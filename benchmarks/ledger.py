"""How long a ledger takes with many distinct events: `python -m benchmarks.ledger --events 10000`.

Entries are written straight into the database (making them by `reserve` costs the same once each), except the last,
which composes the whole past; then a fresh `Ledger` reserves, settles and shows. Processor seconds, of one process.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from sordina.accounting import Event, Gaussian, PoissonSampled, Repeated
from sordina.accounting.ledger import Entry, Kind, Ledger, Status
from sordina.accounting.ledger.entries import link
from sordina.accounting.ledger.store import _ENTRIES, _HEAD
from sordina.types import Budget


def run_of(number: int) -> Event:
    draw = random.Random(number)
    step = PoissonSampled(1e-4 * (1 + draw.random()), Gaussian(1 + draw.random()))
    return Repeated(step, draw.randrange(50, 150))


def filled(path: Path, events: int, accountant: str, settled: bool = True) -> Ledger:
    """A ledger with so many distinct settled (or open) spends."""
    ledger = Ledger(path)
    ledger.create("patients", Budget(10, 1e-5), accountant=accountant)
    [first], head = ledger.history(), ledger.verify().hash
    rows = []
    for number in range(events):
        event = run_of(number)
        makes = [(Kind.RESERVE, None)] + ([(Kind.SETTLE, 2 + 2 * number)] if settled else [])
        for kind, reservation in makes:
            entry = Entry(
                len(rows) + 2, first.time, first.who, f"run {number}", kind, "patients", first.adjacency, first.unit,
                accountant, event=event, reservation=reservation,
            )  # fmt: skip
            text = entry.text()
            head = link(head, text)
            rows.append({"id": entry.id, "entry": text, "hash": head})
    with ledger._store._engine.begin() as connection:
        connection.execute(sa.insert(_ENTRIES), rows)
        connection.execute(sa.update(_HEAD).values(count=len(rows) + 1, hash=head))
    return Ledger(path)


def timed(what: str, act: Callable[[], object]) -> float:
    wall, begun = time.perf_counter(), time.process_time()
    act()
    took = time.process_time() - begun
    print(f"{what:<44} {took:8.3f} s CPU, {time.perf_counter() - wall:8.3f} s", flush=True)
    return took


def main(events: int, accountant: str, settled: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        state = "settled" if settled else "open"
        print(f"{events} distinct {state} events, accountant {accountant}")
        filled(path, events, accountant, settled)
        timed(
            "first reserve, composes the past once", lambda: Ledger(path).reserve("patients", run_of(10**6), what="x")
        )
        for number in range(3):
            timed(
                "reserve, new process",
                lambda n=number: Ledger(path).reserve("patients", run_of(10**6 + 1 + n), what="x"),
            )
        ledger = Ledger(path)
        for number in range(3):
            timed("reserve, same process", lambda n=number: ledger.reserve("patients", run_of(10**6 + 9 + n), what="x"))
        newest = ledger.statement("patients").having(Status.OPEN)[-1].id
        timed("settle for less, new process", lambda: Ledger(path).settle(newest, Gaussian(1000.0)))
        timed("statement, new process", lambda: Ledger(path).statement("patients"))
        timed("verify, new process", lambda: Ledger(path).verify())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--accountant", default="pld")
    parser.add_argument("--open", action="store_true", help="leave the events open instead of settled")
    given = parser.parse_args()
    main(given.events, given.accountant, not given.open)
