"""Ranges and categories found privately: what is found, what it costs, and that one person cannot be seen."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

import sordina as sd
from sordina.errors import BudgetRefused, InvalidInput
from sordina.privacy import Guarantee, Unit
from sordina.tables import ColumnKind, Prepare, Schema, complete_privately, draft_schema, plan_discovery
from sordina.tables.discover import advice, stability_threshold


def table(rows=20000):
    rng = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "age": np.clip(rng.normal(50, 15, rows), 18, 95).round(),
            "pay": np.exp(rng.normal(8, 1, rows)),
            "ward": rng.choice(["A", "B", "C"], rows),
            "seen": pandas.Timestamp("2019-01-01") + pandas.to_timedelta(rng.integers(0, 700, rows), unit="D"),
        }
    )


def test_draft_names_kinds_and_leaves_ranges_open():
    drafted = draft_schema(table(50), target="ward")
    assert [str(column.kind) for column in drafted.columns] == ["number", "number", "category", "date"]
    assert set(drafted.unfilled) == {"age", "pay", "ward", "seen"}
    assert "# low = ?" in drafted.to_toml()


def test_ranges_and_categories_are_found_within_the_budget():
    budget = sd.Budget(1, 1e-6)
    found, guarantee = complete_privately(draft_schema(table()), table(), budget=budget)
    assert guarantee.epsilon <= 1
    assert 0 <= found["age"].low <= 20
    assert 90 <= found["age"].high <= 200
    assert set(found["ward"].values) == {"A", "B", "C"}
    assert found["pay"].high >= 10_000
    assert not found.unfilled
    dates = [column for column in found.to_dict()["columns"].values() if column["kind"] == "date"]
    assert dates[0]["low"] in ("2018-01-01", "2019-01-01")


def test_a_rare_value_is_not_listed():
    frame = pd_with_rare()
    seen = 0
    for _ in range(200):
        found, _ = complete_privately(draft_schema(frame), frame, budget=sd.Budget(1, 1e-6))
        seen += "only-me" in found["ward"].values
    assert seen == 0


def pd_with_rare():
    return pandas.DataFrame({"ward": ["A"] * 500 + ["only-me"]})


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_the_threshold_keeps_delta_and_is_the_least(epsilon, delta):
    odds = np.exp(-epsilon)

    def chance(threshold):
        return odds ** (threshold - 1) / (1 + odds)

    least = stability_threshold(epsilon, delta)
    assert chance(least) <= delta * (1 + 1e-9)
    assert least == 1 or chance(least - 1) > delta * (1 - 1e-9)


def test_a_planted_lower_threshold_is_caught(monkeypatch):
    """With a threshold of 5 at epsilon 0.5 a value only one person has shows far too often."""
    monkeypatch.setattr("sordina.tables.discover.stability_threshold", lambda epsilon, delta: 5)
    frame = pd_with_rare()
    seen = sum(
        "only-me" in complete_privately(draft_schema(frame), frame, budget=sd.Budget(0.5, 1e-6))[0]["ward"].values
        for _ in range(200)
    )
    assert seen > 0


def test_one_person_counts_once():
    """A person with a thousand rows of a rare ward moves its count by one."""
    frame = pandas.DataFrame(
        {"who": ["p"] * 1000 + [f"q{i}" for i in range(300)], "ward": ["rare"] * 1000 + ["A"] * 300}
    )
    drafted = draft_schema(frame, person="who")
    plan = plan_discovery(drafted, sd.Budget(1, 1e-6))
    assert plan.unit is Unit.USER
    for _ in range(20):
        assert plan.release(frame)["ward"].values == ("A",)


def test_the_ledger_books_before_reading(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("patients", sd.Budget(1, 1e-5))
    frame = table(2000)
    complete_privately(
        draft_schema(frame), frame, budget=sd.Budget(0.4, 1e-6), ledger=ledger, dataset_budget="patients"
    )
    assert 0.3 < ledger.spent("patients") <= 0.41
    with pytest.raises(BudgetRefused):
        complete_privately(
            draft_schema(frame),
            tmp_path / "never-read.csv",
            budget=sd.Budget(0.9, 1e-6),
            ledger=ledger,
            dataset_budget="patients",
        )
    with pytest.raises(InvalidInput, match="go together"):
        complete_privately(draft_schema(frame), frame, budget=sd.Budget(0.1, 1e-6), ledger=ledger)


def test_a_table_that_cannot_be_read_costs_nothing(tmp_path):
    """It had locked the whole epsilon, without naming the cure."""
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("patients", sd.Budget(1, 1e-5))
    frame = table(100)
    torn = tmp_path / "torn.csv"
    frame.to_csv(torn, index=False)
    torn.write_text(torn.read_text() + "1\n")
    with pytest.raises(InvalidInput, match="fields"):
        complete_privately(
            draft_schema(frame), torn, budget=sd.Budget(0.4, 1e-6), ledger=ledger, dataset_budget="patients"
        )
    assert ledger.spends() == {}


def test_refusals():
    complete = Schema.load({"columns": {"a": {"kind": "number", "low": 0, "high": 1}}})
    with pytest.raises(InvalidInput, match="nothing open"):
        plan_discovery(complete, sd.Budget(1, 1e-6))
    opened = Schema.load({"columns": {"a": {"kind": "category"}}})
    with pytest.raises(InvalidInput, match="delta"):
        plan_discovery(opened, sd.Budget(1, 0))
    with pytest.raises(InvalidInput, match="finite"):
        plan_discovery(opened, sd.Budget(float("inf"), 1e-5))


def test_nothing_is_spent_where_nothing_could_be_found_and_nothing_is_made_up(tmp_path):
    ledger = sd.Ledger(tmp_path / "ledger.db")
    ledger.create("people", sd.Budget(5, 1e-4))
    frame = pandas.DataFrame({"ward": [f"w{n}" for n in range(60)], "age": np.arange(60)})
    schema = draft_schema(frame)
    booked = {"ledger": ledger, "dataset_budget": "people"}
    with pytest.raises(InvalidInput, match="Nothing was spent"):
        complete_privately(schema, frame, budget=sd.Budget(0.1, 1e-6), **booked)
    assert ledger.spent("people") == 0
    found, _ = complete_privately(schema, frame, budget=sd.Budget(2, 1e-6), **booked)
    assert found["ward"].values == ()
    assert any("nothing stood out" in line for line in advice(found, Guarantee(2, 1e-6)))


def test_a_few_gaps_do_not_make_numbers_categories_and_the_separator_is_asked_about(tmp_path):
    costs = ["12.5"] * 20 + ["-", "n/a", "1e400"]
    (tmp_path / "costs.csv").write_text("cost;day\n" + "".join(f"{one};2024-01-02\n" for one in costs))
    with pytest.raises(InvalidInput, match="--separator ';'"):
        draft_schema(tmp_path / "costs.csv", target="cost")
    schema = draft_schema(tmp_path / "costs.csv", separator=";")
    assert schema["cost"].kind is ColumnKind.NUMBER
    assert "n/a" in schema["cost"].missing
    assert schema["day"].kind is ColumnKind.DATE
    assert schema["day"].missing is None


def test_for_how_many_a_delta_is_meant_is_said():
    """How many there are is not public here, so it is said for how many the delta would be too large."""
    frame = pd_with_rare()
    found, guarantee = complete_privately(draft_schema(frame), frame, budget=sd.Budget(1, 0.01))
    assert any("far fewer than 100 records" in line for line in advice(found, guarantee))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1,234", "12", "1,000,000"], {"kind": "number", "thousands": ","}),
        (["1.234,5", "12,25"], {"kind": "number", "thousands": ".", "decimal": ","}),
        (["12,5", "3,25"], {"kind": "number", "thousands": ".", "decimal": ","}),
        (["3.5 kg", "70 kg", ""], {"kind": "number", "unit": "kg"}),
        (["$1,200", "$3"], {"kind": "number", "thousands": ",", "unit": "$"}),
        (["31.12.2020", "01.02.2021"], {"kind": "date", "format": "%d.%m.%Y"}),
        (["12/31/2020", "01/02/2021"], {"kind": "date", "format": "%m/%d/%Y"}),
        (["P001", "P002"], {"kind": "category"}),
        (["1a", "2b"], {"kind": "category"}),
    ],
)
def test_how_numbers_and_dates_are_written_is_seen(texts, expected):
    frame = pandas.DataFrame({"x": texts})
    assert draft_schema(frame).to_dict()["columns"]["x"] == expected


def test_numbers_are_read_as_they_are_written():
    column = {"kind": "number", "low": 0, "high": 10_000, "thousands": ".", "decimal": ",", "unit": "EUR"}
    schema = Schema.load({"columns": {"x": column}})
    assert Schema.load(schema.to_dict()) == schema
    frame = pandas.DataFrame({"x": ["1.234,5 EUR", "EUR 7", "-3", "NA", "10.000"]})
    np.testing.assert_allclose(Prepare(schema).transform(frame)[:, 0], [0.12345, 0.0007, 0, 0.5, 1], atol=1e-7)
    for wrong in ("1,234.5", "12.34", "1.2345 EUR", "7 USD"):
        with pytest.raises(InvalidInput, match="row 1, column 'x' does not hold a number"):
            Prepare(schema).transform(pandas.DataFrame({"x": [wrong]}))


@pytest.mark.parametrize("fields", [{"decimal": ",", "thousands": ","}, {"decimal": ".."}, {"thousands": "xx"}])
def test_marks_that_are_none(fields):
    with pytest.raises(InvalidInput, match="two different marks"):
        Schema.load({"columns": {"x": {"kind": "number", **fields}}})
