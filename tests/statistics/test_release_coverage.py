"""Intervals of releases cover at their level; narrower ones are rejected. The long run is `benchmarks.statistics`."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from scipy.stats import binom

import sordina as sd
from sordina.statistics import noise, quantiles
from sordina.statistics.noise import TotalsNoise
from sordina.statistics.release import ask

RUNS = 250
SCHEMA = {
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 110},
        "ward": {"kind": "category", "values": ["A", "B"]},
        "drug": {"kind": "text"},
    }
}
RNG = np.random.default_rng(5)
FRAME = pandas.DataFrame({
    "age": RNG.normal(50, 15, 1500).clip(0, 110), "ward": RNG.choice(["A", "B"], 1500, p=[0.8, 0.2]),
    "drug": ["x"] * 1380 + ["y"] * 120,
})  # fmt: skip
TRUTHS = {
    "count where ward == 'A'": (FRAME.ward == "A").sum(),
    "sum(age)": FRAME.age.sum(),
    "mean(age) where ward == 'B'": FRAME.age[FRAME.ward == "B"].mean(),
    "variance(age)": FRAME.age.var(ddof=0),
    "histogram(ward)": (FRAME.ward == "A").sum(),
    "most_common(ward, 1)": (FRAME.ward == "A").sum(),
    "count by drug": (FRAME.drug == "x").sum(),
}


def covered(text, truth, runs=RUNS):
    rng = np.random.default_rng(6)
    hits, reader = 0, None
    for _ in range(runs):
        table = sd.statistics.Table(FRAME, schema=SCHEMA, budget=(0.5, 1e-6), seed=rng)
        reader = table._reader = reader or table._reader
        low, high = ask(table, text).release().findings.intervals[0]
        hits += bool(low <= truth <= high)
    return hits


def medians_covered(runs=RUNS):
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(runs):
        frame = pandas.DataFrame({"age": rng.uniform(10, 90, 800)})
        table = sd.statistics.Table(frame, schema=SCHEMA, budget=(0.5, 1e-6), seed=rng)
        low, high = table.median("age").release().interval
        hits += bool(low <= frame.age.median() <= high)
    return hits


def plausible(hits, runs=RUNS):
    """Whether so many hits are what 95 % (96.5 %, for whole steps) give, but for one case in a thousand either way."""
    return binom.ppf(0.001, runs, 0.95) <= hits <= binom.ppf(0.999, runs, 0.965)


@pytest.mark.parametrize("text", TRUTHS)
def test_intervals_cover_at_their_level(text):
    assert plausible(covered(text, TRUTHS[text]))


def test_intervals_of_medians_cover_at_their_level():
    assert plausible(medians_covered())


def test_intervals_that_are_too_narrow_are_rejected(monkeypatch):
    honest = TotalsNoise.bounds
    monkeypatch.setattr(TotalsNoise, "bounds", lambda self, level: tuple(far / 2 for far in honest(self, level)))
    assert not plausible(covered("sum(age)", TRUTHS["sum(age)"]))
    wide, ends = noise.linear_bounds, quantiles._ends
    monkeypatch.setattr("sordina.statistics.totals.linear_bounds", lambda *given: wide(*given) / 2)
    assert not plausible(covered("variance(age)", TRUTHS["variance(age)"]))
    monkeypatch.setattr(quantiles, "_ends", lambda *given: tuple(one / 3 for one in ends(*given)))
    assert not plausible(medians_covered())
