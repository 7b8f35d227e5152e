"""Conditions and questions as text: what they mean, and that nonsense is refused in one line."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

import sordina as sd
from sordina.errors import InvalidInput
from sordina.statistics.filters import parse_condition
from sordina.statistics.release import ask
from sordina.statistics.rows import RowReader
from sordina.tables import Schema

SCHEMA = Schema.load(
    {
        "columns": {
            "age": {"kind": "number", "low": 0, "high": 110},
            "ward": {"kind": "category", "values": ["A", "B"]},
            "drug name": {"kind": "text"},
            "day": {"kind": "date", "low": "2020-01-01", "high": "2021-01-01"},
            "open": {"kind": "number"},
            "id": {"kind": "ignored"},
            "left out": {"kind": "ignored"},
        }
    }
)
FRAME = pandas.DataFrame(
    {
        "age": ["30", "65", "", "80", "200"],
        "ward": ["A", "B", "Z", "", "A"],
        "drug name": ["x", None, "y", "x", "it's"],
        "day": ["2020-02-01", "2020-12-31", "nonsense", "2020-07-01", ""],
        "open": [1, 2, 3, 4, 5],
        "id": [1, 2, 3, 4, 5],
        "left out": [0, 0, 0, 0, 0],
    }
)


def rows(text):
    condition = parse_condition(text, SCHEMA)
    found = RowReader(FRAME, SCHEMA, np.random.default_rng(0)).rows(condition.names())
    return found.where(condition).astype(int).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age >= 65", [0, 1, 0, 1, 1]),
        ("age > 65 or ward == 'A'", [1, 0, 0, 1, 1]),
        ("age > 65 and ward == 'A'", [0, 0, 0, 0, 1]),
        ("not age > 65", [1, 1, 1, 0, 0]),
        ("not not age > 65", [0, 0, 0, 1, 1]),
        ("18 <= age < 65", [1, 0, 0, 0, 0]),
        ("65 == age", [0, 1, 0, 0, 0]),
        ("age == 110", [0, 0, 0, 0, 1]),
        ("ward != 'A'", [0, 1, 1, 0, 0]),
        ("ward in ('A', 'B')", [1, 1, 0, 0, 1]),
        ("ward not in ['A']", [0, 1, 1, 0, 0]),
        ("age is missing", [0, 0, 1, 0, 0]),
        ("ward is not missing", [1, 1, 1, 0, 1]),
        ('`drug name` == "it\'s"', [0, 0, 0, 0, 1]),
        ("`drug name` is missing", [0, 1, 0, 0, 0]),
        ("day < '2020-07-01'", [1, 0, 0, 0, 0]),
        ("(age < 40 or age > 70) and (ward == 'A')", [1, 0, 0, 0, 1]),
        ("AGE is missing".lower(), [0, 0, 1, 0, 0]),
        ("age > -1e3", [1, 1, 0, 1, 1]),
    ],
)
def test_what_conditions_mean(text, expected):
    assert rows(text) == expected


BAD = [
    "",
    "age",
    "age >",
    "age = 3",
    "age >= 'x'",
    "age ~ 3",
    "> 3",
    "3 >",
    "age > 3 and",
    "(age > 3",
    "age > 3)",
    "unknown > 3",
    "ward > 'A'",
    "ward == 'Q'",
    "ward in ()",
    "ward in 'A'",
    "ward in ('A'",
    "id == '1'",
    "`left out` == 'x'",
    "day < 2020",
    "day < 'yesterday'",
    "open > 3",
    "age is",
    "age is not",
    "age not 3",
    "age > 3 or or age > 4",
    "__import__('os')",
    "age > (lambda: 3)()",
    "age > 3; drop",
    "age > 1_000",
    "age > 3 " * 400,
    "(" * 60 + "age > 3" + ")" * 60,
    "`` == 1",
    "'A' == 'A'",
    "1 < 2",
    "age > nan",
    "age > 3 where age > 2",
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_nonsense_in_a_condition_is_one_line(text):
    with pytest.raises(InvalidInput) as said:
        parse_condition(text, SCHEMA)
    assert "\n" not in str(said.value)


def table():
    return sd.statistics.Table(FRAME, schema=SCHEMA, budget=(1, 1e-6), rows=5, seed=0)


@pytest.mark.parametrize(
    "text",
    [
        "count",
        "count()",
        "count by ward",
        "count by ward, `drug name` where age > 3",
        "sum(age)",
        "mean(age, sampling)",
        "MEAN(age) BY ward WHERE age > 3",
        "variance(age)",
        "median(day)",
        "quantiles(age)",
        "quantiles(age, 0.1, 0.9) by ward",
        "histogram(age, 4)",
        "histogram(ward)",
        "crosstab(ward, `drug name`)",
        "most_common(ward, 1)",
        "most_common('drug name')",
    ],
)
def test_questions_that_are_understood(text):
    assert ask(table(), text).text


QUESTIONS = [
    "",
    "   ",
    "how many",
    "count(age)",
    "count by",
    "count by age",
    "count by id",
    "count by ward ward",
    "count by ward,",
    "count by ward, ward",
    "sum",
    "sum()",
    "sum(ward)",
    "sum(day)",
    "sum(age, 3)",
    "mean(3)",
    "mean(age",
    "mean age",
    "mean(age) where",
    "mean(open)",
    "mean(unknown)",
    "mean(id)",
    "mean(`left out`)",
    "quantiles(age, 0)",
    "quantiles(age, 1.5)",
    "quantiles(age, x)",
    "quantiles(age) by `drug name`",
    "histogram(age, 0)",
    "histogram(age, 2.5)",
    "histogram(age) by ward",
    "crosstab(ward)",
    "most_common(age)",
    "most_common(ward, 0)",
    "most_common(ward, 3)",
    "median(age,,)",
    "count(persons)",
    "import os",
    "mean(age) group by ward",
    "mean(age)) by ward",
    "count where ward == 'Q'",
    "count " * 400,
]


@pytest.mark.parametrize("text", QUESTIONS, ids=range(len(QUESTIONS)))
def test_questions_that_are_not(text):
    with pytest.raises(InvalidInput) as said:
        ask(table(), text)
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 600


ARGUMENTS = {
    "no budget": ({"budget": None}, "Budget"),
    "infinite budget": ({"budget": (float("inf"), 0)}, "finite"),
    "negative epsilon": ({"budget": (-1, 0)}, "epsilon"),
    "delta of one": ({"budget": (1, 1)}, "delta"),
    "ledger without name": ({"ledger": "x.db"}, "together"),
    "name without ledger": ({"dataset_budget": "x"}, "together"),
    "no such ledger": ({"ledger": "nowhere.db", "dataset_budget": "x"}, "ledger"),
    "no such schema": ({"schema": "nowhere.toml"}, "nowhere"),
    "person not there": ({"person": "nobody"}, "nobody"),
    "person no text": ({"person": 3}, "name of a column"),
    "rows without persons": ({"rows_per_person": 3}, "person="),
    "no rows of a person": ({"person": "id", "rows_per_person": 0}, "rows_per_person"),
    "rows not whole": ({"rows": 2.5}, "rows"),
    "rows below one": ({"rows": 0}, "rows"),
    "bad seed": ({"seed": -1}, "seed"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_table_refuses_what_cannot_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, word = ARGUMENTS[name]
    with pytest.raises(InvalidInput, match=word):
        sd.statistics.Table(FRAME, **({"schema": SCHEMA, "budget": (1, 1e-6)} | options))


def test_no_table_at_all():
    for source in (3, "nowhere.csv", [1, 2], None):
        with pytest.raises(InvalidInput):
            sd.statistics.Table(source, schema=SCHEMA, budget=(1, 1e-6))


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.count(epsilon=0),
        lambda t: t.count(epsilon="1"),
        lambda t: t.count(epsilon=True),
        lambda t: t.count(where=3),
        lambda t: t.count(by=3),
        lambda t: t.mean(3),
        lambda t: t.quantiles("age", []),
        lambda t: t.quantiles("age", "0.5"),
        lambda t: t.quantiles("age", [0.5, 1.0]),
        lambda t: t.histogram("age", [3, 1]),
        lambda t: t.histogram("age", "many"),
        lambda t: t.histogram("age", [1]),
        lambda t: t.most_common("ward", 1.5),
        lambda t: t.release(),
        lambda t: t.release(3),
        lambda t: t.release(table().count()),
        lambda t: t.release(t.count(), confidence=1),
        lambda t: t.release(t.count(), t.count(), weights=[1]),
        lambda t: t.release(t.count(), t.count(), weights=[1, -1]),
        lambda t: t.release(t.count(epsilon=1), t.count()),
        lambda t: t.count().error(2),
        lambda t: t.mean("age").error(rows=0),
        lambda t: t.release(t.count(), epsilon=-1),
    ],
    ids=range(23),
)
def test_questions_refuse_what_cannot_work(call):
    with pytest.raises(InvalidInput) as said:
        call(table())
    assert "\n" not in str(said.value)


def test_unknown_groups_need_a_delta():
    asked = sd.statistics.Table(FRAME, schema=SCHEMA, budget=(1, 0), seed=0)
    with pytest.raises(InvalidInput, match="delta above 0"):
        asked.count(by="drug name")
