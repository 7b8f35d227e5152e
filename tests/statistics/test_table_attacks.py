"""What a hostile reader tried against tables: thresholds, booking, labels, values that stop a release."""

from __future__ import annotations

import copy
import math

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

import sordina as sd
from sordina.errors import BudgetRefused, InvalidInput
from sordina.statistics.noise import Choice, Family, TotalsNoise
from sordina.statistics.release import ask
from sordina.statistics.rows import Divider, Grouping
from sordina.tables.schema import ColumnKind, ColumnSchema

_SCHEMA = {
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "charge": {"kind": "number", "low": 0, "high": 1e7},
        "drug": {"kind": "category"},
        "day": {"kind": "date", "low": "2020-01-01", "high": "2020-01-03"},
    }
}


def _frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"age": [50.0] * rows, "charge": [1e6] * rows, "drug": ["x"] * rows, "day": ["2020-01-02"] * rows}
    )


def _table(frame: pd.DataFrame, epsilon: float = 1.0) -> sd.statistics.Table:
    return sd.statistics.Table(frame, schema=_SCHEMA, budget=sd.Budget(epsilon, 1e-6), seed=1)


def test_a_lone_persons_group_is_shown_at_most_with_the_stated_delta_though_counts_are_rounded() -> None:
    grouping = Grouping((Divider(ColumnSchema("drug", ColumnKind.CATEGORY)),), 1e-7)
    for multiplier in np.linspace(0.5, 30, 500).tolist():
        noise = TotalsNoise(Choice(Family.CONCENTRATED, multiplier), 1, 1, counts=True)
        least_shown = math.ceil(grouping.threshold(noise, 1, 1)) - 0.5  # before rounding
        assert ndtr(-(least_shown - 1) / noise.scale) <= 1e-7


@pytest.mark.parametrize("chance", [0.3, 1e-3, 1e-7, 1e-12])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("family", list(Family))
def test_a_tail_point_keeps_its_chance(family: Family, counts: bool, chance: float) -> None:
    for multiplier in np.geomspace(0.005, 300, 100).tolist():
        noise = TotalsNoise(Choice(family, multiplier), 1, 1, counts=counts)
        assert noise.tail(noise.tail_point(chance)) <= chance


def test_a_group_of_one_person_is_shown_as_rarely_as_stated() -> None:
    shown = 0
    for seed in range(400):
        lone = pd.DataFrame({"drug": ["me"]})
        table = sd.statistics.Table(lone, schema=_SCHEMA, budget=sd.Budget(3, 0.05), seed=seed)
        shown += bool(table.count(by="drug").release().groups)
    assert shown <= 8  # of 400 at 0.005: 2 expected; it was 21


def test_a_release_inside_progress_cannot_spend_the_budget_twice() -> None:
    table = _table(_frame(100))

    def progress(done: int, total: int) -> None:
        if done == 1 and not table.spent.epsilon:
            table.count().release()

    with pytest.raises(BudgetRefused):
        table.release(table.count(), progress=progress)
    assert table.spent.epsilon <= 1 + 1e-6


def test_a_table_cannot_be_copied() -> None:
    with pytest.raises(InvalidInput, match="copied"):
        copy.copy(_table(_frame(1)))


def test_narrow_bins_keep_cells_apart() -> None:
    table = _table(_frame(1000), 100)
    found = table.histogram("charge", [1e6, 1e6 + 1, 1e6 + 2], epsilon=40).release().value
    assert list(found) == ["[1000000, 1000001)", "[1000001, 1000002]"]
    assert abs(found["[1000000, 1000001)"] - 1000) < 5
    assert len(table.histogram("day", 8, epsilon=40).release().value) == 8


@pytest.mark.parametrize("question", ["count where drug == 'x'", "mean(day)", "most_common(drug, 2)", "median(age)"])
def test_a_table_without_rows_is_answered_like_any_other(question: str) -> None:
    ask(_table(_frame(0)), question).release()


@pytest.mark.parametrize("question", ["count by drug", "count where drug == 'x'"])
def test_no_value_stops_a_release(question: str) -> None:
    frame = _frame(3).astype(object)
    frame["drug"] = pd.Series(["x", 10**5000, "y"], dtype=object)
    ask(_table(frame), question).release()


def test_rows_that_changed_hands_since_the_first_release_are_refused() -> None:
    frame = _frame(100).assign(person=range(100))
    table = sd.statistics.Table(frame, schema=_SCHEMA, budget=sd.Budget(1, 1e-6), person="person", seed=1)
    table.count(epsilon=0.1).release()
    frame["person"] = 7
    with pytest.raises(InvalidInput, match="changed"):
        table.sum("age", epsilon=0.1).release()
