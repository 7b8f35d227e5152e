"""Many processes at one ledger: exactly as many win as fit, and killing some of them loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sordina.accounting import Gaussian, Repeated, accountant
from sordina.accounting.ledger import Kind, Ledger
from sordina.errors import BudgetRefused, SordinaError
from sordina.privacy import Budget

RACERS = Path(__file__).with_name("ledger_racers.py")
ROOM = 10


@pytest.fixture(scope="module")
def epsilon():
    """A budget with room for ten reservations of Gaussian(5.0) and not for eleven."""
    ten, eleven = (accountant("pld").epsilon(Repeated(Gaussian(5.0), n), 1e-5) for n in (ROOM, ROOM + 1))
    assert ten < eleven
    return (ten + eleven) / 2


@pytest.fixture
def fresh(tmp_path, epsilon):
    """Makes ledgers with that budget."""

    def make(name):
        Ledger(tmp_path / name).create("patients", Budget(epsilon, 1e-5))
        return tmp_path / name

    return make


@pytest.fixture
def path(fresh):
    return fresh("ledger.db")


def run(races, accounted=1):
    """Run races in another process, with the verdicts on up to ``accounted`` reservations known beforehand."""
    command = [sys.executable, str(RACERS), json.dumps(races), str(accounted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    outcomes = json.loads(done.stdout)
    assert [outcome["failed"] for outcome in outcomes] == [[]] * len(races)
    return outcomes


def reserved(path):
    return [entry.id for entry in Ledger(path).history("patients") if entry.kind is Kind.RESERVE]


def test_of_32_racers_exactly_ten_win_and_none_is_lost(path):
    [outcome] = run([{"path": str(path)}])
    assert (len(outcome["won"]), len(outcome["refused"])) == (ROOM, 32 - ROOM)
    assert sorted(outcome["won"]) == reserved(path)
    assert Ledger(path).verify().count == 1 + ROOM


def test_killing_most_of_them_at_random_moments_loses_nothing(fresh):
    seeds = range(4)
    struck = [fresh(f"{seed}.db") for seed in seeds]
    races = [{"path": str(file), "victims": 20, "seed": seed} for seed, file in zip(seeds, struck, strict=True)]
    outcomes = run([{"path": str(fresh("calm.db"))}, *races], accounted=ROOM + 1)[1:]
    assert sum(outcome["killed"] for outcome in outcomes) >= len(seeds), "too few were killed in time to show anything"

    for file, outcome in zip(struck, outcomes, strict=True):
        recorded = reserved(file)
        assert set(outcome["won"]) <= set(recorded), "a success that was reported is missing from the history"
        assert len(recorded) <= ROOM
        assert not outcome["refused"] or len(recorded) == ROOM, "refused although there was room"
        assert Ledger(file).verify().count == 1 + len(recorded)
        assert fill(file) == ROOM - len(recorded), "what the dead left free can be used, and no more"


def fill(path):
    """Reserve until refused; how often that went well."""
    count = 0
    with contextlib.suppress(BudgetRefused):
        while count <= ROOM:
            Ledger(path).reserve("patients", Gaussian(5.0), what="fill")
            count += 1
    return count


def in_a_process_that_dies(path, setup):
    """Reserve in a child in which ``setup`` makes it kill itself with SIGKILL at a chosen point."""
    script = f"""
import os, signal, sqlalchemy as sa
from sordina.accounting import Gaussian
from sordina.accounting.ledger import Ledger, store
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ledger = Ledger({str(path)!r})
{setup}
ledger.reserve("patients", Gaussian(5.0), what="doomed")
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == -signal.SIGKILL


def test_killed_between_insert_and_commit_nothing_is_written(path):
    in_a_process_that_dies(
        path,
        "sa.event.listen(ledger._store._engine, 'after_cursor_execute',"
        " lambda c, k, sql, *_: die() if sql.startswith('INSERT') else None)",
    )
    assert reserved(path) == []
    assert Ledger(path).verify().count == 1


def test_killed_right_after_commit_the_reservation_counts(path):
    in_a_process_that_dies(
        path, "append = store.Store.append\nstore.Store.append = lambda *a, **k: die(append(*a, **k))"
    )
    assert reserved(path) == [2]
    assert fill(path) == ROOM - 1


def test_a_hot_journal_of_a_killed_writer_is_rolled_back(path):
    script = f"""
import os, signal, sqlite3
db = sqlite3.connect({str(path)!r}, isolation_level=None)
db.execute("PRAGMA cache_size = 5")
db.execute("BEGIN IMMEDIATE")
for number in range(2, 60):
    db.execute("INSERT INTO sordina_entries VALUES (?, ?, 'x')", (number, "y" * 20000))
os.kill(os.getpid(), signal.SIGKILL)
"""
    before = path.read_bytes()
    subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert path.with_name("ledger.db-journal").exists()
    assert path.read_bytes() != before, "the writer must have touched the file for this to show anything"
    assert Ledger(path).verify().count == 1
    assert Ledger(path).reserve("patients", Gaussian(5.0), what="afterwards").id == 2


def test_whoever_waits_too_long_for_the_lock_is_told_and_nothing_is_written(path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(SordinaError, match="in use by another process"):
        Ledger(path, timeout=0.2).reserve("patients", Gaussian(5.0), what="impatient")
    holder.execute("ROLLBACK")
    holder.close()
    assert reserved(path) == []


@pytest.mark.skipif("SORDINA_TEST_DATABASE" not in os.environ, reason="set SORDINA_TEST_DATABASE to an empty database")
def test_a_server_lets_exactly_ten_win_too(epsilon):
    url = os.environ["SORDINA_TEST_DATABASE"]
    ledger = Ledger(url)
    ledger.create("patients", Budget(epsilon, 1e-5))
    [outcome] = run([{"path": url}])
    assert (len(outcome["won"]), len(outcome["refused"])) == (ROOM, 32 - ROOM)
    assert sorted(outcome["won"]) == reserved(url)
    with pytest.raises(BudgetRefused):
        ledger.reserve("patients", Gaussian(5.0), what="the eleventh")
