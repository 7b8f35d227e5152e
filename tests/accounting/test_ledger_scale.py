"""A long past is kept composed: as dear as from scratch within the stated rounding, bound to the chain, and quick."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import time
from contextlib import closing

import pytest

from sordina.accounting import (
    ApproximateDP,
    Composed,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Repeated,
    ZeroConcentrated,
    accountant,
)
from sordina.accounting.incremental import Question, kept
from sordina.accounting.ledger import Ledger, Status, costs
from sordina.accounting.ledger.costs import ROUNDING, ComposedSpends
from sordina.accounting.ledger.entries import GENESIS, link
from sordina.accounting.ledger.state import compose
from sordina.errors import BudgetRefused, LedgerCorrupt
from sordina.privacy import Adjacency, Budget


def sampled(draw):
    return Repeated(PoissonSampled(0.01 * (1 + draw.random()), Gaussian(1 + draw.random())), draw.randrange(5, 40))


def laplace(draw):
    return Laplace(20 + 30 * draw.random())


PASTS = {
    "sampled": (Adjacency.ADD_REMOVE, 1e-5, ("pld", "rdp", "gdp"), lambda d: [sampled(d) for _ in range(14)]),
    "tiny delta": (Adjacency.ADD_REMOVE, 1e-12, ("pld",), lambda d: [sampled(d) for _ in range(6)]),
    "bounded": (Adjacency.ADD_REMOVE, 1e-5, ("pld", "rdp", "gdp"), lambda d: [laplace(d) for _ in range(40)]),
    "pure": (Adjacency.ADD_REMOVE, 0.0, ("pld", "rdp"), lambda d: [PureDP(d.random() / 10) for _ in range(30)]),
    "leaking": (
        Adjacency.ADD_REMOVE, 1e-5, ("pld", "rdp", "gdp"),
        lambda d: [ApproximateDP(d.random() / 10, 1e-8 * d.random()) for _ in range(30)],
    ),
    "all kinds": (
        Adjacency.ADD_REMOVE, 1e-6, ("pld",),
        lambda d: [sampled(d), laplace(d), PureDP(0.1), ZeroConcentrated(0.01), Gaussian(9.0), Gaussian(7.0),
                   Composed((laplace(d), Gaussian(20.0))), ApproximateDP(0.01, 1e-9), Repeated(laplace(d), 7)],
    ),
    "only gaussians": (Adjacency.ADD_REMOVE, 1e-5, ("pld", "gdp"), lambda d: [Gaussian(20 + k) for k in range(30)]),
    "only zero-concentrated": (
        Adjacency.ADD_REMOVE, 1e-5, ("pld", "rdp"), lambda d: [ZeroConcentrated(d.random() / 100) for _ in range(9)]
    ),
    "replaced": (
        Adjacency.REPLACE_ONE, 1e-5, ("pld",),
        lambda d: [Repeated(FixedSizeSampled(10, 900 + k, Gaussian(2.0)), 9) for k in range(8)] + [laplace(d)],
    ),
    "beyond any budget": (Adjacency.ADD_REMOVE, 1e-5, ("pld",), lambda d: [PureDP(50 * d.random()) for _ in range(9)]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "judge"), [(name, judge) for name, past in PASTS.items() for judge in past[2]])
def test_a_kept_past_costs_what_it_costs_from_scratch_and_never_less(name, judge):
    adjacency, delta, _, make = PASTS[name]
    events = make(random.Random(1))
    question = Question(judge, delta, adjacency)
    past = kept(events[0], question)
    for event in events[1:]:
        past = past.joined([kept(event, question)], question)
    whole = accountant(judge).epsilon(Composed(tuple(events)), delta, adjacency)
    for found in (
        past.epsilon([], question),
        kept(events[0], question).epsilon([kept(e, question) for e in events[1:]], question),
    ):
        assert whole * (1 - 3e-5) <= found <= whole * (1 + ROUNDING)  # from scratch is itself exact to 2e-5


def test_what_has_no_noise_stays_exposed():
    for judge in ("pld", "rdp", "gdp"):
        question = Question(judge, 1e-5, Adjacency.ADD_REMOVE)
        past = kept(Gaussian(0.0), question).joined([kept(Laplace(3.0), question)], question)
        assert past.epsilon([kept(PureDP(0.1), question)], question) == float("inf")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A ledger with 30 distinct spends: 15 settled as reserved, 5 for less, 3 released, 7 open."""
    path = tmp_path_factory.mktemp("original") / "ledger.db"
    draw = random.Random(2)
    ledger = Ledger(path)
    ledger.create("patients", Budget(10, 1e-5))
    for number in range(30):
        reservation = ledger.reserve("patients", laplace(draw), what=f"run {number}")
        if number < 15:
            reservation.settle()
        elif number < 20:
            reservation.settle(Laplace(100.0 + number))
        elif number < 23:
            ledger.release(reservation.id, why="never ran")
    return path


@pytest.fixture
def path(original, tmp_path):
    return shutil.copy(original, tmp_path / "ledger.db")


def from_scratch(ledger, name="patients"):
    statement = ledger.statement(name)
    counted = [spend.event for spend in statement.spends if spend.status is not Status.RELEASED]
    return statement.dataset.epsilon(compose(counted))


def stored(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT composed FROM sordina_pasts").fetchone()[0]


def test_the_statement_of_a_long_past_agrees_with_from_scratch(path):
    ledger = Ledger(path)
    assert ledger.spent("patients") == pytest.approx(from_scratch(ledger), rel=ROUNDING)
    assert ledger.spent("patients") >= from_scratch(ledger) * (1 - 3e-5)
    ledger.verify(recompose=True)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_reserved_settled_and_released_the_past_stays_right(path, seed):
    draw = random.Random(seed)
    for turn in range(7):
        ledger = Ledger(path)
        waiting = ledger.statement("patients").having(Status.OPEN)
        act = draw.randrange(5)
        if act == 0 and waiting:
            ledger.settle(draw.choice(waiting).id)
        elif act == 1 and waiting:
            ledger.settle(draw.choice(waiting).id, Laplace(90.0 + turn))
        elif act == 2 and waiting:
            ledger.release(draw.choice(waiting).id, why="never ran")
        else:
            for _ in range(3):
                ledger.reserve("patients", laplace(draw), what=f"turn {turn}")
        whole = from_scratch(ledger)
        assert whole * (1 - 3e-5) <= Ledger(path).spent("patients") <= whole * (1 + ROUNDING)


def test_only_the_new_event_is_composed(path, monkeypatch):
    Ledger(path).spent("patients")
    made = []
    monkeypatch.setattr(costs, "kept", lambda event, question: made.append(event) or kept(event, question))
    Ledger(path).reserve("patients", Laplace(77.7), what="new")
    assert set(made) == {Laplace(77.7)}


ALTERED = {
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "empty": lambda data: b"",
    "of nothing": lambda data: ComposedSpends("patients", 39).to_bytes(),
    "a program": lambda data: b"cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("altered", ALTERED.values(), ids=ALTERED.keys())
def test_an_altered_composition_is_not_believed(path, altered):
    right = Ledger(path).spent("patients")
    forged = altered(stored(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE sordina_pasts SET composed = ?", (forged,))
    assert Ledger(path).spent("patients") == pytest.approx(right, rel=1e-3)
    Ledger(path).reserve("patients", Laplace(50.0), what="heals it")
    assert Ledger(path).spent("patients") > right
    assert stored(path) != forged


def test_a_lost_composition_is_made_again(path):
    right = Ledger(path).spent("patients")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE sordina_pasts")
    assert Ledger(path).spent("patients") == pytest.approx(right, rel=1e-3)
    Ledger(path).reserve("patients", Laplace(50.0), what="heals it")
    assert stored(path)


def test_a_composition_forged_together_with_its_entry_is_found_by_composing_again(path):
    """Who may rewrite the end of the chain may forge entries too; `verify --recompose` still shows this forgery."""
    forged = ComposedSpends("patients", 54).to_bytes()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TRIGGER sordina_no_update")
        rows = database.execute("SELECT id, entry FROM sordina_entries ORDER BY id").fetchall()
        assert len(rows) == 54
        last = json.loads(rows[-1][1]) | {"past": costs.digest(forged)}
        text = json.dumps(last, sort_keys=True, separators=(",", ":"))
        previous = GENESIS
        for _, entry in rows[:-1]:
            previous = link(previous, entry)
        database.execute("UPDATE sordina_entries SET entry = ?, hash = ? WHERE id = 54", (text, link(previous, text)))
        database.execute("UPDATE sordina_head SET hash = ?", (link(previous, text),))
        database.execute("UPDATE sordina_pasts SET composed = ?", (forged,))
    Ledger(path).verify()
    with pytest.raises(LedgerCorrupt, match="forged"):
        Ledger(path).verify(recompose=True)


def test_a_budget_of_many_small_spends_is_filled_and_not_passed(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("patients", Budget(1, 1e-5))
    draw = random.Random(4)

    def fill():
        while True:
            ledger.reserve("patients", Laplace(15 + draw.random()), what="one more").settle()

    with pytest.raises(BudgetRefused):
        fill()
    assert 0.9 < from_scratch(ledger) <= 1
    assert len(ledger.statement("patients").spends) > 13


def test_others_reserve_while_one_decides(path, monkeypatch):
    """The decision is made without the lock: a slow one does not hold the others up, and is made again after them."""
    real, others = costs.epsilon, []

    def slow(terms, spends, past=None):
        if not others:
            others.append(None)
            others.append(Ledger(path, timeout=0.5).reserve("patients", Laplace(60.0), what="quick"))
        return real(terms, spends, past)

    monkeypatch.setattr(costs, "epsilon", slow)
    slow_one = Ledger(path).reserve("patients", Laplace(61.0), what="slow")
    assert slow_one.id == others[1].id + 1
    ledger = Ledger(path)
    ledger.verify()
    assert {spend.what for spend in ledger.statement("patients").having(Status.OPEN)} >= {"quick", "slow"}


@pytest.mark.parametrize("judge", ["pld", "rdp", "gdp", "zcdp", "basic"])
def test_hundreds_of_distinct_events_do_not_slow_a_reservation(tmp_path, judge):
    from benchmarks.ledger import filled

    path = tmp_path / "ledger.db"
    draw = random.Random(5)
    events = [laplace(draw) if judge == "pld" else Gaussian(3000 * (1 + draw.random())) for _ in range(601)]
    filled(path, 600, judge, make=lambda number: events[number], epsilon=1000.0)
    Ledger(path).reserve("patients", events[-1], what="composes the past")
    begun = time.process_time()
    Ledger(path).reserve("patients", events[0], what="composes one event")
    assert time.process_time() - begun < 0.5
