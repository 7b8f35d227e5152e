"""Releases of neighbouring tables, told apart from outputs alone: never better than the claim, and faults are caught.

The tables differ by one person who has forty rows of extreme values, of which two may count.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas
import pytest
from tests.audits.test_mechanisms_blackbox import epsilon_lower

import sordina as sd
from sordina.random import seeded
from sordina.statistics import rows as rows_module
from sordina.statistics.release import ask
from sordina.statistics.rows import BoundedRows, RowReader

EPSILON, KEPT, RUNS = 2.0, 2, 700
SCHEMA = {
    "person": "id",
    "rows_per_person": KEPT,
    "columns": {
        "id": {"kind": "person"},
        "x": {"kind": "number", "low": 0, "high": 10},
        "g": {"kind": "category", "values": ["a", "b", "c"]},
        "y": {"kind": "number", "low": 0, "high": 10},
        "h": {"kind": "category", "values": ["u", "v"]},
        "t": {"kind": "text"},
    },
}
BASE = pandas.DataFrame({
    "id": [f"p{row // 2}" for row in range(24)],
    "x": ["0"] * 24,
    "g": (["a", "b"] * 12),
    "y": [str(10 * row / 24) for row in range(24)],
    "h": ["u"] * 24,
    "t": ["u"] * 24,
})  # fmt: skip
INTRUDER = pandas.DataFrame({
    "id": ["new"] * 40, "x": ["1e308", "inf"] * 20, "g": ["a"] * 40, "y": ["inf"] * 40,
    "h": ["v"] * 40, "t": ["secret"] * 40,
})  # fmt: skip


def first(answer):
    return answer.values[0]


KINDS = {
    # question, delta, what is looked at, share of epsilon that must be found for the measurement to mean anything
    "count": ("count", 0.0, first, 0.6),
    "persons": ("count(persons)", 0.0, first, 0.6),
    "sum": ("sum(x)", 0.0, lambda found: np.floor(first(found) / 5), 0.6),
    "mean": ("mean(x)", 0.0, lambda found: np.floor(first(found) * 4), 0.3),
    "variance": ("variance(x)", 0.0, lambda found: np.floor(first(found)), 0.2),
    "median": ("median(y)", 0.0, lambda found: np.floor(first(found)), 0.0),
    "quantiles": ("quantiles(y, 0.5, 0.9)", 0.0, lambda found: np.floor(found.values[1] * 2), 0.0),
    "histogram": ("histogram(g)", 0.0, first, 0.6),
    "crosstab": ("crosstab(g, h)", 0.0, lambda found: found.values[1], 0.3),
    "most common": ("most_common(g, 2)", 0.0, lambda found: (found.groups[0] == "a") + 2 * first(found), 0.0),
    "unknown groups": ("count by t", 1e-2, lambda found: ("secret" in found.groups) * 1000 + sum(found.values), 0.0),
    "unknown means": ("mean(x) by t", 1e-2, lambda found: len(found.groups) * 100 + np.floor(sum(found.values)), 0.0),
}  # fmt: skip


def outputs(kind, *, loudness=1.0, runs=RUNS):
    """What is looked at, for releases without and with the intruder; quieter noise with ``loudness`` below 1."""
    text, delta, look, _ = KINDS[kind]
    rng = seeded(7)
    table = sd.statistics.Table(BASE, schema=SCHEMA, budget=(EPSILON, delta), rows=24, seed=rng)
    question = ask(table, text)
    choice = replace(question.choice, multiplier=question.choice.multiplier * loudness)
    seen = []
    for frame in (BASE, pandas.concat([BASE, INTRUDER])):
        everything = RowReader(frame, replace(table.schema, rows_per_person=10**6), rng).rows(
            question.statistic.names()
        )
        cells = []
        for _ in range(runs):
            kept = rows_module.kept_rows(everything.persons, KEPT, rng)
            columns = {name: data[kept] for name, data in everything.columns.items()}
            rows = BoundedRows(columns, everything.persons[kept], len(kept))
            cells.append(look(question.statistic.answer(rows, choice, table.terms, 0.95, rng)))
        seen.append(np.clip(np.array(cells, float), -1e6, 1e6))
    return seen, delta


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_learns_more_than_is_claimed(kind):
    seen, delta = outputs(kind)
    found = epsilon_lower(*seen, delta)
    assert KINDS[kind][3] * EPSILON <= found <= EPSILON


@pytest.mark.parametrize("kind", ["count", "sum", "mean", "variance", "histogram", "median", "crosstab"])
def test_rows_that_are_not_cut_are_caught(kind, monkeypatch):
    monkeypatch.setattr(rows_module, "kept_rows", lambda persons, most, rng: np.arange(len(persons)))
    seen, delta = outputs(kind, runs=300)
    assert epsilon_lower(*seen, delta) > EPSILON


@pytest.mark.parametrize(
    "kind", ["count", "persons", "sum", "mean", "variance", "histogram", "most common", "crosstab"]
)
def test_quieter_noise_is_caught(kind):
    seen, delta = outputs(kind, loudness=0.1 if kind == "most common" else 0.25)
    assert epsilon_lower(*seen, delta) > EPSILON


def test_a_sensitivity_of_one_row_for_persons_of_two_is_caught():
    """As half of the noise: what a release forgets that does not multiply by the rows of a person."""
    seen, delta = outputs("count", loudness=0.5, runs=3000)
    assert epsilon_lower(*seen, delta) > EPSILON


def test_a_threshold_that_ignores_a_persons_second_row_is_caught(monkeypatch):
    from sordina.statistics.rows import Grouping

    honest = Grouping.threshold
    monkeypatch.setattr(Grouping, "threshold", lambda self, noise, most, terms: honest(self, noise, most, terms) - 6)
    seen, delta = outputs("unknown groups", runs=1000)
    shown = (seen[1] >= 1000).mean()
    assert shown > 3 * delta
    assert epsilon_lower(*seen, delta) > EPSILON
