"""Releases from a table: the faces of the issue, what is refused, what cannot be seen."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys

import numpy as np
import pandas
import pytest

import sordina as sd
from sordina.accounting import accountant
from sordina.accounting.ledger import Status
from sordina.errors import BudgetRefused, InvalidInput
from sordina.statistics.noise import UNIT, Choice, Family, TotalsNoise
from sordina.statistics.release import ask, write_release
from sordina.statistics.totals import bernstein

SCHEMA = {
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 110},
        "charge": {"kind": "number", "low": 0, "high": 100_000, "scale": "log"},
        "ward": {"kind": "category", "values": ["A", "B", "C"]},
        "sex": {"kind": "category", "values": ["F", "M"]},
        "drug": {"kind": "text"},
        "admitted": {"kind": "date", "low": "2020-01-01", "high": "2021-01-01"},
    }
}


def people(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame({
        "patient": rng.integers(0, rows // 2, rows),
        "age": rng.integers(18, 90, rows),
        "charge": np.exp(rng.normal(7, 1, rows)),
        "ward": rng.choice(["A", "B", "C"], rows, p=[0.6, 0.3, 0.1]),
        "sex": rng.choice(["F", "M"], rows),
        "drug": rng.choice(["x", "y", "z"], rows, p=[0.5, 0.3, 0.2]),
        "admitted": np.datetime64("2020-01-01") + rng.integers(0, 366, rows),
    })  # fmt: skip


FRAME = people()


def table(frame=FRAME, epsilon=50.0, **options):
    options = {"schema": SCHEMA, "budget": sd.Budget(epsilon, 1e-6), "rows": len(frame), "seed": 0} | options
    return sd.statistics.Table(frame, **options)


def test_answers_are_near_the_truth_and_inside_their_intervals_about_always():
    truths = {
        "count where ward == 'A'": (FRAME.ward == "A").sum(),
        "sum(age)": FRAME.age.sum(),
        "mean(age) where sex == 'F'": FRAME.age[FRAME.sex == "F"].mean(),
        "variance(age)": FRAME.age.var(ddof=0),
        "median(charge)": FRAME.charge.median(),
    }
    for text, truth in truths.items():
        answer = ask(table(epsilon=5), text).release(0.9999)
        low, high = answer.interval
        assert low <= truth <= high
        assert low <= answer.value <= high
        assert high - low < 0.2 * abs(truth)


def test_groups_known_and_unknown():
    asked = table(epsilon=10)
    known = asked.count(by="ward", epsilon=1).release()
    assert known.groups == ("A", "B", "C")
    assert abs(known.value["A"] - (FRAME.ward == "A").sum()) < 30
    unknown = asked.count(by="drug", epsilon=1).release()
    assert set(unknown.groups) == {"x", "y", "z"}
    assert any("not known beforehand" in note for note in unknown.notes)
    assert "1e-07" in " ".join(unknown.notes)
    cross = asked.crosstab("sex", "ward", epsilon=1).release()
    assert len(cross.value) == 6
    assert ("F", "A") in cross.value
    bins = asked.histogram("age", [0, 50, 110], epsilon=1).release()
    assert bins.groups == ("[0, 50)", "[50, 110]")
    top = asked.most_common("ward", 2, epsilon=1).release()
    assert top.groups == ("A", "B")
    quarters = asked.quantiles("charge", [0.25, 0.5, 0.75], by="sex", epsilon=1).release()
    assert quarters.groups[0] == ("F", 0.25)


def test_a_rare_unlisted_value_stays_hidden():
    frame = pandas.concat([FRAME, FRAME.iloc[:1].assign(drug="secret")])
    for seed in range(20):
        assert "secret" not in table(frame, epsilon=1, seed=seed).count(by="drug").release().groups


def test_unlisted_groups_come_in_the_order_of_their_names_not_of_the_rows():
    turned = FRAME.sort_values("drug", ascending=False)
    assert list(table(turned).count(by="drug").release().groups) == ["x", "y", "z"]


def test_error_and_cost_before_spending():
    question = table(epsilon=1).mean("age", by="ward")
    assert question.cost.epsilon <= 1
    assert question.error(0.95) == pytest.approx(110 * 3 / 3000 * math.log(20), rel=1e-3)
    assert question.table.spent.epsilon == 0
    assert question.table._reader._size is None  # nothing was read
    answer = question.release()
    assert answer.error == pytest.approx(110 * 3 / 3000 * math.log(20), rel=1e-3)
    assert not answer.releasable
    with pytest.raises(InvalidInput, match="rows="):
        table(rows=None).mean("age").error()


def test_several_questions_share_the_budget_and_leave_nothing():
    asked = table(epsilon=1)
    questions = [asked.count(), asked.mean("age"), asked.quantiles("charge", [0.5])]
    answers = asked.release(*questions)
    assert 0.99 < asked.spent.epsilon <= 1
    assert sum(answer.cost.epsilon for answer in answers) <= 1.01
    with pytest.raises(BudgetRefused, match="is spent"):
        asked.count().release()


def test_many_questions_get_gaussian_noise_for_it_composes_better():
    asked = table(epsilon=1)
    choices = asked.choices([asked.mean("age")] * 60)
    assert {choice.family for choice in choices} == {Family.CONCENTRATED}
    spent = accountant("pld").epsilon(
        sd.accounting.Composed(tuple(asked.mean("age").statistic.event(one, asked.terms) for one in choices)), 1e-6
    )
    assert 0.99 < spent <= 1


def test_weights_and_equal_error():
    asked = table(epsilon=1)
    questions = [asked.count(), asked.quantiles("age", [0.1, 0.5, 0.9])]
    plain, heavy = asked.choices(questions), asked.choices(questions, weights=[100, 1])
    assert heavy[0].multiplier < plain[0].multiplier
    alike = asked.choices(questions, equal_error=True)
    errors = [one.statistic.rows_error(0.95, choice, asked.terms) for one, choice in zip(questions, alike, strict=True)]
    assert errors[0] == pytest.approx(errors[1], rel=0.15)
    with pytest.raises(InvalidInput, match="not both"):
        asked.choices(questions, weights=[1, 1], equal_error=True)


def test_asking_again_is_refused_when_the_budget_is_gone(tmp_path):
    ledger = sd.Ledger(tmp_path / "book.db")
    ledger.create("patients", sd.Budget(1, 1e-6))
    refused = 0
    for _ in range(6):
        asked = table(epsilon=0.25, ledger=ledger, dataset_budget="patients")
        with contextlib.suppress(BudgetRefused):
            asked.count().release()
            continue
        refused += 1
    assert refused == 2
    assert ledger.spent("patients") <= 1


def test_a_release_that_dies_counts_as_spent(tmp_path, monkeypatch):
    ledger = sd.Ledger(tmp_path / "book.db")
    ledger.create("patients", sd.Budget(1, 1e-6))
    asked = table(epsilon=1, ledger=ledger, dataset_budget="patients")

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(TotalsNoise, "release", dies)
    with pytest.raises(KeyboardInterrupt):
        asked.count().release()
    assert [spend.status for spend in ledger.spends().values()] == [Status.OPEN]
    assert ledger.spent("patients") > 0.99
    assert asked.spent.epsilon > 0.99
    with pytest.raises(BudgetRefused):
        asked.count().release()


def test_a_release_killed_by_the_system_counts_as_spent(tmp_path):
    code = """
import os, signal, sys
import sordina as sd, pandas
from sordina.statistics.noise import TotalsNoise
TotalsNoise.release = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
frame = pandas.DataFrame({"age": [1, 2, 3]})
schema = {"columns": {"age": {"kind": "number", "low": 0, "high": 110}}}
sd.statistics.Table(frame, schema=schema, budget=(1, 1e-6), ledger=sys.argv[1], dataset_budget="p").count().release()
"""
    ledger = sd.Ledger(tmp_path / "book.db")
    ledger.create("p", sd.Budget(1, 1e-6))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "book.db")], env=os.environ, check=False)
    assert done.returncode == -9
    assert ledger.spent("p") > 0.99


def test_a_file_that_cannot_be_read_costs_nothing(tmp_path):
    ledger = sd.Ledger(tmp_path / "book.db")
    ledger.create("patients", sd.Budget(1, 1e-6))
    path = tmp_path / "broken.csv"
    path.write_text("age,ward\n1,A\n2\n")
    asked = sd.statistics.Table(path, schema=SCHEMA, budget=(1, 1e-6), ledger=ledger, dataset_budget="patients")
    with pytest.raises(InvalidInput):
        asked.count().release()
    assert ledger.spent("patients") == 0


def test_persons_are_cut_to_their_rows_and_nobody_learns_whose():
    frame = pandas.concat([FRAME] + [FRAME.iloc[:1].assign(patient=99999)] * 500)
    asked = table(frame, person="patient", rows_per_person=2, epsilon=30)
    assert asked.unit is sd.Unit.USER
    answer = asked.count(persons=True, epsilon=10).release()
    assert abs(answer.value - frame.patient.nunique()) <= 3
    rows = asked.count(epsilon=10).release()
    assert abs(rows.value - frame.groupby("patient").size().clip(upper=2).sum()) <= 6
    alone = table(person="patient", rows_per_person=2, epsilon=30)
    assert alone.count(epsilon=10).release().notes == rows.notes  # the notes do not tell that rows were left out


def test_the_same_rows_are_kept_for_every_question():
    asked = table(person="patient", rows_per_person=1, epsilon=200)
    first = asked._reader.rows(["age"])
    second = asked._reader.rows(["ward"])
    assert (first.columns["age"] == second.columns["age"]).all()
    assert len(second.columns["ward"]) == FRAME.patient.nunique()


EXTREME = [float("inf"), float("-inf"), float("nan"), 1e308, -1e308, "1e400", "oops", None, "", "9" * 400]


@pytest.mark.parametrize("value", EXTREME, ids=str)
def test_an_extreme_value_moves_an_answer_no_more_than_any_other(value):
    """With the same seed the noise is the same: what is left is the row's own effect, at most one row's worth."""
    frame = FRAME.astype({"age": object})
    frame.loc[len(frame)] = dict(FRAME.iloc[0]) | {"age": value}
    for text, most in (
        ("sum(age)", 110.1), ("mean(age)", 0.2), ("variance(age)", 5.0), ("count", 1.5), ("histogram(age)", 1.5),
        ("median(age)", 2.0),
    ):  # fmt: skip
        with_it, without = (ask(table(one, epsilon=1), text).release() for one in (frame, FRAME))
        for key in with_it.groups or (None,):
            pair = [one.value if key is None else one.value[key] for one in (with_it, without)]
            assert math.isfinite(pair[0])
            assert abs(pair[0] - pair[1]) <= most
        json.dumps(with_it.to_dict(), allow_nan=False)


def test_bernstein_parts_are_not_negative_and_add_up():
    steps = np.concatenate([np.arange(100), UNIT - np.arange(100), np.random.default_rng(0).integers(0, UNIT, 10_000)])
    for degree in (1, 2):
        parts = bernstein(steps, degree)
        assert (parts >= 0).all()
        assert (parts.sum(axis=1) == UNIT).all()


def test_a_public_count_is_divided_by():
    schema = SCHEMA | {"rows": 3000}
    schema["columns"] = SCHEMA["columns"] | {"age": {"kind": "number", "low": 0, "high": 110, "optional": False}}
    asked = sd.statistics.Table(FRAME, schema=schema, budget=(1, 1e-6), seed=0)
    secret = table(epsilon=1).mean("age")
    assert asked.mean("age").error() == pytest.approx(secret.error() / 2)
    assert abs(asked.mean("age").release().value - FRAME.age.mean()) < 0.3


def test_noise_bounds_of_discrete_noise_are_exact():
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        noise = TotalsNoise(Choice(Family.PURE, 1 / epsilon), 1, 1, counts=True)
        below, above = noise.bounds(0.95)
        a = math.exp(-epsilon)
        missed = (a ** (below + 1) + a ** (above + 1)) / (1 + a)
        assert missed <= 0.05
        assert (a ** (below + 1) + a**above) / (1 + a) > 0.05 or below != above


def test_ten_thousand_first_names():
    """002, errata 11: 10 000 names at (1, 1e-9), no count off by more than 34 with probability 0.99."""
    names = [f"name{number}" for number in range(10_000)]
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"name": np.array(names, object)[rng.zipf(1.3, 50_000) % 10_000]})
    schema = {"columns": {"name": {"kind": "category", "values": names}}}
    truth = frame.name.value_counts().reindex(names, fill_value=0).to_numpy()
    worst = []
    for seed in range(20):
        answer = sd.statistics.Table(frame, schema=schema, budget=(1, 1e-9), seed=seed).histogram("name").release()
        worst.append(np.abs(np.array(list(answer.value.values())) - truth).max())
    assert max(worst) <= 34


def test_a_record_that_a_report_shows(tmp_path):
    from sordina.reports import reading

    asked = table(epsilon=1)
    record = write_release(tmp_path / "out", asked, asked.release(asked.count(), asked.mean("age", by="ward")))
    kept = json.loads((tmp_path / "out" / "answers.json").read_text())
    assert kept["answers"] == json.loads(json.dumps(record["answers"]))
    found = reading.report([tmp_path / "out"])
    assert found.runs[0].claim.epsilon == record["epsilon"]
    with pytest.raises(InvalidInput, match="not empty"):
        write_release(tmp_path / "out", asked, ())


def test_a_release_needs_no_torch_and_finds_its_neighbours():
    code = """
import sys, sordina as sd
sd.statistics.Table, sd.statistics.local.Frequency, sd.statistics.shuffle
import sordina.cli.tables
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
