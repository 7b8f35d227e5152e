"""How long a ledger takes with many distinct events: `python -m benchmarks.ledger --events 10000`.

The past are distinct Laplace queries, what joins it are trainings. The entries of the past are written straight into
the database, as an old version would have left them; the first `reserve` composes them once, and then every `Ledger`
reserves, settles and shows as in a process of its own. Processor seconds, and seconds on the clock.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from sordina.accounting import Event, Gaussian, Laplace, PoissonSampled, Repeated
from sordina.accounting.ledger import Entry, Kind, Ledger, Status
from sordina.accounting.ledger.entries import link
from sordina.accounting.ledger.store import _ENTRIES, _HEAD
from sordina.privacy import Budget


def run_of(number: int) -> Event:
    draw = random.Random(number)
    step = PoissonSampled(1e-4 * (1 + draw.random()), Gaussian(1 + draw.random()))
    return Repeated(step, draw.randrange(50, 150))


def query_of(number: int) -> Event:
    return Laplace(200 + random.Random(number).random() * 100)


def filled(
    path: Path,
    events: int,
    accountant: str,
    *,
    settled: bool = True,
    make: Callable[[int], Event] = query_of,
    epsilon: float = 10.0,
) -> Ledger:
    """A ledger with so many distinct settled (or open) spends."""
    ledger = Ledger(path)
    ledger.create("patients", Budget(epsilon, 1e-5), accountant=accountant)
    [first], head = ledger.history(), ledger.verify().hash
    rows: list[dict[str, object]] = []
    for number in range(events):
        makes = [(Kind.RESERVE, None)] + ([(Kind.SETTLE, len(rows) + 2)] if settled else [])
        for kind, reservation in makes:
            entry = Entry(
                len(rows) + 2, first.time, first.who, f"run {number}", kind, "patients", first.adjacency, first.unit,
                accountant, event=make(number), reservation=reservation,
            )  # fmt: skip
            text = entry.text()
            head = link(head, text)
            rows.append({"id": entry.id, "entry": text, "hash": head})
    with ledger._store._engine.begin() as connection:
        connection.execute(sa.insert(_ENTRIES), rows)
        connection.execute(sa.update(_HEAD).values(count=len(rows) + 1, hash=head))
    return Ledger(path)


def timed(what: str, act: Callable[[], object]) -> None:
    wall, begun = time.perf_counter(), time.process_time()
    act()
    took = time.process_time() - begun
    print(f"{what:<40} {took:8.3f} s of processor time, {time.perf_counter() - wall:8.3f} s", flush=True)


def main(events: int, accountant: str, settled: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        print(f"{events} distinct {'settled' if settled else 'open'} events, accountant {accountant}")
        filled(path, events, accountant, settled=settled)
        fresh = iter(range(10**6, 10**7))

        def reserve(ledger: Ledger) -> None:
            ledger.reserve("patients", run_of(next(fresh)), what="x")

        timed("first reserve, composes the past once", lambda: reserve(Ledger(path)))
        for _ in range(6):
            timed("reserve, new Ledger", lambda: reserve(Ledger(path)))
        ledger = Ledger(path)
        for _ in range(6):
            timed("reserve, same Ledger", lambda: reserve(ledger))
        newest = ledger.statement("patients").having(Status.OPEN)[-1].id
        timed("settle for less, new Ledger", lambda: Ledger(path).settle(newest, Gaussian(1000.0)))
        timed("statement, new Ledger", lambda: Ledger(path).statement("patients"))
        timed("verify, new Ledger", lambda: Ledger(path).verify())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--accountant", default="pld")
    parser.add_argument("--open", action="store_true", help="leave the events open instead of settled")
    given = parser.parse_args()
    main(given.events, given.accountant, not given.open)
