"""What the ledger promises: composed spending never passes the budget, and everything that happened is on record."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import sordina as sd
from sordina.accounting import NOTHING, ApproximateDP, Composed, Gaussian, PoissonSampled, PureDP, Repeated, accountant
from sordina.accounting.ledger import Kind, Status
from sordina.errors import BudgetRefused, InvalidInput
from sordina.privacy import Adjacency, Budget, Unit

BUDGET = Budget(10, 1e-5)


@pytest.fixture
def ledger(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("patients", BUDGET, accountant="basic")
    return ledger


def test_a_new_account_is_unspent(ledger):
    statement = ledger.statement("patients")
    assert (ledger.spent("patients"), ledger.remaining("patients"), statement.spends) == (0.0, 10.0, ())
    [terms] = ledger.budgets()
    assert (terms.name, terms.budget, terms.adjacency, terms.unit, terms.accountant) == (
        "patients", BUDGET, Adjacency.ADD_REMOVE, Unit.RECORD, "basic",
    )  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_a_path_and_a_url_name_the_same_ledger(ledger, tmp_path, form):
    assert sd.Ledger(form.format(tmp_path / "ledger.db")).budgets() == ledger.budgets()


def test_a_relative_path_stays_where_it_was_when_the_process_moves(ledger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = sd.Ledger("ledger.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    relative.reserve("patients", PureDP(1.0), what="a")
    assert ledger.spent("patients") == pytest.approx(1)


def test_a_reservation_counts_as_spent_and_the_next_that_does_not_fit_is_refused(ledger):
    ledger.reserve("patients", PureDP(6.0), what="a")
    assert ledger.spent("patients") == pytest.approx(6)
    before = ledger.verify()
    with pytest.raises(BudgetRefused, match=r"'b' would bring 'patients' to epsilon 12 of 10 .* 1 open reservation\."):
        ledger.reserve("patients", PureDP(6.0), what="b")
    assert ledger.verify() == before, "a refusal writes nothing"
    ledger.reserve("patients", PureDP(3.9), what="c")


def test_composition_is_over_events_and_not_over_epsilons(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("patients", Budget(2, 1e-5))
    pld = accountant("pld")
    step = PoissonSampled(0.01, Gaussian(1.0))
    for run in range(3):
        ledger.reserve("patients", Repeated(step, 200), what=f"run {run}")
    together = pld.epsilon(Repeated(step, 600), 1e-5)
    assert ledger.spent("patients") == pytest.approx(together, rel=1e-6)
    assert together < 0.9 * 3 * pld.epsilon(Repeated(step, 200), 1e-5)


def test_settling_less_gives_the_rest_back(ledger):
    with ledger.reserve("patients", Repeated(PureDP(1.0), 9), what="nine steps") as reservation:
        reservation.settle(Repeated(PureDP(1.0), 2))
    assert ledger.spent("patients") == pytest.approx(2)
    ledger.reserve("patients", PureDP(7.5), what="uses what came back")


def test_settling_nothing_gives_all_back(ledger):
    ledger.reserve("patients", PureDP(9.0), what="never started").settle(NOTHING)
    assert ledger.spent("patients") == 0


def test_leaving_in_peace_settles_in_full(ledger):
    with ledger.reserve("patients", PureDP(4.0), what="simple"):
        pass
    [spend] = ledger.statement("patients").spends
    assert (spend.status, spend.event) == (Status.SETTLED, PureDP(4.0))


def test_leaving_by_an_exception_keeps_the_reservation(ledger):
    with pytest.raises(ZeroDivisionError), ledger.reserve("patients", PureDP(4.0), what="breaks"):
        raise ZeroDivisionError
    [spend] = ledger.statement("patients").spends
    assert spend.status is Status.OPEN
    assert ledger.spent("patients") == pytest.approx(4)


def test_a_crash_leaves_a_reservation_that_another_process_can_finish(ledger):
    script = (
        "import os, sordina as sd; from sordina.accounting import PureDP\n"
        f"with sd.Ledger({ledger.name!r}).reserve('patients', PureDP(4.0), what='crash'): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 9
    [spend] = ledger.statement("patients").having(Status.OPEN)
    assert ledger.spent("patients") == pytest.approx(4)
    with ledger.reservation(spend.id) as resumed:
        resumed.settle(PureDP(1.0))
    assert ledger.spent("patients") == pytest.approx(1)


def test_a_release_frees_the_budget_and_is_recorded(ledger):
    stale = ledger.reserve("patients", PureDP(9.0), what="stale", who="ada@lab")
    ledger.release(stale.id, why="the machine died before the data was mounted", who="grace@lab")
    assert ledger.spent("patients") == 0
    last = ledger.history("patients")[-1]
    assert (last.kind, last.reservation, last.who, last.what) == (Kind.RELEASE, stale.id, "grace@lab", "stale")
    assert "died" in last.note
    ledger.reserve("patients", PureDP(9.0), what="again")


def test_a_run_that_was_released_but_did_happen_counts_again(ledger):
    late = ledger.reserve("patients", PureDP(3.0), what="late")
    ledger.release(late.id, why="believed dead")
    with pytest.warns(UserWarning, match="after it had been released"):
        late.settle()
    assert ledger.spent("patients") == pytest.approx(3)


def test_spending_more_than_reserved_is_recorded_and_flagged(ledger):
    greedy = ledger.reserve("patients", PureDP(3.0), what="greedy")
    with pytest.warns(UserWarning, match="spent more than it had reserved"):
        greedy.settle(PureDP(5.0))
    assert ledger.spent("patients") == pytest.approx(5)
    assert "more than" in ledger.history()[-1].note


def test_spending_over_the_budget_is_recorded_and_its_result_refused(ledger):
    with (
        pytest.raises(BudgetRefused, match="recorded; do not release"),
        ledger.reserve("patients", PureDP(3.0), what="greedy") as reservation,
    ):
        reservation.settle(PureDP(50.0))
    assert ledger.spent("patients") == pytest.approx(50)
    assert ledger.remaining("patients") == 0
    with pytest.raises(BudgetRefused):
        ledger.reserve("patients", PureDP(0.1), what="next")


def test_an_overrun_caught_inside_the_block_is_not_settled_twice(ledger):
    with ledger.reserve("patients", PureDP(3.0), what="greedy") as reservation, pytest.raises(BudgetRefused):
        reservation.settle(PureDP(50.0))
    assert [entry.kind for entry in ledger.history()][-1] is Kind.SETTLE


def test_two_data_sets_are_independent(ledger):
    ledger.create("images", Budget(1, 1e-6), accountant="basic", adjacency="replace-one", unit="user")
    ledger.reserve("patients", PureDP(9.0), what="a")
    assert ledger.spent("images") == 0
    ledger.reserve("images", PureDP(0.9), what="b", adjacency=Adjacency.REPLACE_ONE, unit=Unit.USER)
    assert ledger.spent("patients") == pytest.approx(9)
    assert [entry.dataset for entry in ledger.history("images")] == ["images", "images"]
    assert len(ledger.history()) == 4


@pytest.mark.parametrize("stated", [{"adjacency": "replace-one"}, {"unit": "user"}])
def test_other_neighbours_or_another_unit_do_not_add_up(ledger, stated):
    with pytest.raises(InvalidInput, match="do not add up"):
        ledger.reserve("patients", PureDP(1.0), what="a", **stated)
    assert len(ledger.history()) == 1


def test_every_entry_says_who_when_what_and_under_which_terms(ledger):
    ledger.reserve("patients", Composed((PureDP(1.0), ApproximateDP(0.5, 1e-7))), what="a").settle()
    for number, entry in enumerate(ledger.history(), start=1):
        assert entry.id == number
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry.time)
        assert re.fullmatch(r"[^@/]+@[^@/]+", entry.who)
        assert entry.what
        assert (entry.adjacency, entry.unit, entry.accountant) == (Adjacency.ADD_REMOVE, Unit.RECORD, "basic")
    assert ledger.history()[1].event == Composed((PureDP(1.0), ApproximateDP(0.5, 1e-7)))


def test_numbers_from_numpy_are_recorded_as_numbers(ledger):
    reservation = ledger.reserve("patients", Repeated(PureDP(np.float32(0.5)), np.int64(4)), what="numpy")
    assert reservation.spend.event == Repeated(PureDP(0.5), 4)
    assert ledger.history()[-1].event == Repeated(PureDP(0.5), 4)


def test_a_spend_that_gives_no_guarantee_is_refused(ledger):
    with pytest.raises((BudgetRefused, InvalidInput)):
        ledger.reserve("patients", Gaussian(0.0), what="no noise")
    assert len(ledger.history()) == 1


def test_a_password_in_the_url_is_shown_nowhere():
    with pytest.raises(InvalidInput, match=r"ada:\*\*\*@127\.0\.0\.1") as caught:
        sd.Ledger("postgresql+pg8000://ada:s3cret@127.0.0.1:1/none").budgets()
    assert "s3cret" not in str(caught.value)


def test_the_ledger_never_loads_torch():
    script = "import sys, sordina as sd; sd.Ledger; import sordina.cli.ledger; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
