"""Attacks on releases: each succeeds on the naive release and fails on ours, and a report shows both."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sordina.auditing.releases import (
    aggregates_study,
    averaging_study,
    differencing_study,
    linkage_study,
    reconstruct_bits_study,
    write_study,
)
from sordina.datasets import adult
from sordina.datasets.data import find
from sordina.errors import InvalidInput
from sordina.reports import reading
from sordina.reports.rendering import render


@pytest.fixture(scope="module")
def people():
    """A table without names: 4000 rows, many of them alone with their values."""
    rng = np.random.default_rng(0)
    table = {name: rng.integers(0, 12, size=4000).tolist() for name in ("a", "b", "c", "d")}
    return table | {"ill": (rng.random(4000) < 0.1).tolist()}


def test_rows_are_linked_in_a_table_without_names_and_not_in_ours(people):
    found = linkage_study(people, columns=("a", "b", "c", "d"), secret="ill", seed=0)
    joined = found.line("rows joined to one name")
    assert joined.naive > 0.5
    assert joined.ours == 0
    assert found.line("ill known from a 5-anonymous table").naive > 0.01


def test_without_a_threshold_ours_would_be_linked(people, monkeypatch):
    """The planted fault: every cell is shown."""
    from sordina.statistics import rows

    monkeypatch.setattr(rows.Grouping, "threshold", lambda *given: 0.0)
    found = linkage_study(people, columns=("a", "b", "c", "d"), secret="ill", seed=0)
    assert found.line("rows joined to one name").ours > 0.3


@pytest.mark.skipif(find(adult.FILES["train"].path, "adult/train.csv") is None, reason="adult is not in SORDINA_DATA")
def test_half_of_adult_is_linked_by_five_columns():
    found = linkage_study(seed=0).line("rows joined to one name")
    assert found.naive >= 0.5
    assert found.ours == 0


def test_two_exact_means_give_a_value_away():
    ages = np.random.default_rng(1).integers(17, 91, size=900)
    found = differencing_study(ages, people=500, targets=300, seed=0).lines[0]
    assert found.naive == 1
    assert found.ours <= found.chance + 0.03


def test_bits_are_reconstructed_from_exact_counts_and_not_from_ours():
    found = reconstruct_bits_study(people=400, questions=1600, noises=(0.0, 3.0, 100.0), repeats=8, seed=0)
    assert found.lines[0].naive >= 0.95
    assert abs(found.lines[0].ours - 0.5) <= 0.03
    falling = found.curves[0].y
    assert falling[0] >= falling[1] > falling[2]


def test_a_linear_program_reconstructs_too():
    found = reconstruct_bits_study(people=60, questions=240, noises=(1.0,), repeats=1, method="linear-program", seed=0)
    assert found.lines[0].naive >= 0.95


def test_members_are_found_in_exact_means_and_not_in_ours():
    found = aggregates_study(members=100, others=400, attributes=2000, seed=0)
    area = found.line("area under the curve")
    assert area.naive > 0.95
    assert area.ours < 0.62


def test_the_ledger_ends_averaging():
    found = averaging_study(asked=2000, seed=0)
    assert found.line("answers given").ours == 10
    assert found.line("error of their average").naive < 1.5
    assert "would bring" in found.verdict


@pytest.mark.parametrize(
    "study",
    [
        lambda: linkage_study({"a": [1]}, columns=("b",), secret="a"),
        lambda: differencing_study([1, 2, 3], people=10, targets=10),
        lambda: reconstruct_bits_study(people=0),
        lambda: reconstruct_bits_study(people=500, method="linear-program"),
        lambda: reconstruct_bits_study(method="guess"),
        lambda: aggregates_study(members=0),
        lambda: averaging_study(epsilon=-1.0),
        lambda: averaging_study(asked=0),
    ],
)
def test_bad_studies_are_refused(study):
    with pytest.raises(InvalidInput):
        study()


def test_a_report_shows_the_naive_release_beside_ours(tmp_path):
    folder = write_study(averaging_study(asked=200, seed=0), tmp_path / "averaging")
    assert (folder / "release.png").exists()
    page = render(reading.report([folder]))
    assert "Attacks on releases of statistics" in page
    assert "answers given" in page
    facts = json.loads((folder / "release.json").read_text())
    (folder / "release.json").write_text(json.dumps({**facts, "lines": 3}))
    with pytest.raises(InvalidInput):
        reading.report([folder])
