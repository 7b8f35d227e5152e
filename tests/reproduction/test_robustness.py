"""The short form of the matrix is green, its judge sees every kind of fault, and finished cells are not run again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sordina.reproduction import robustness
from sordina.reproduction.experiment import Job, load
from sordina.reproduction.robustness import SOURCES, Cell, CellResult

CELL = Cell("balanced", "linear", 256, 2.0, 1.0)
GRID = {"C 1, step 1": [[0.9, 0.2], [0.9, 0.2]]}


def result(*runs, epsilon: float = 1.0) -> CellResult:
    return CellResult(replace(CELL, epsilon=epsilon), runs, GRID, (0.5, 0.69))


def test_the_judge_sees_what_is_wrong():
    good = result([0.9, 0.2], [0.89, 0.21])
    assert good.faults(None) == []
    assert result([0.91, 0.5], [0.91, 0.5]).faults(None) == []
    assert "behind Fixed" in result([0.8, 0.4], [0.81, 0.4]).faults(None)[0]
    assert any("constant" in fault for fault in result([0.7, 0.9], [0.7, 0.9]).faults(None))
    assert any(
        "worse than at epsilon 1" in fault for fault in result([0.85, 0.25], [0.85, 0.25], epsilon=3.0).faults(good)
    )
    assert result([float("-inf"), float("inf")]).faults(None) == ["diverged"]


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_rows_of_its_kind(name):
    if name == "100000-rows":
        pytest.skip("large")
    source = SOURCES[name]()
    assert len(source.train[0]) == len(source.train[1])
    wanted = source.test[1][:2].shape if name == "pictures" else (2, max(1, source.classes))
    assert source.model("mlp", 0)(source.test[0][:2]).shape == wanted


def test_the_short_form_is_green_and_resumes(tmp_path, monkeypatch):
    job = Job(load("robustness"), "smoke", tmp_path)
    found = robustness.robustness(job)
    assert {value.note for value in found.values} == {"green"}, json.dumps([value.note for value in found.values])
    monkeypatch.setattr(robustness, "trained", None)
    assert robustness.robustness(job).values == found.values


def test_a_new_default_is_trained_again_and_the_grid_is_not(tmp_path, monkeypatch):
    asked = []

    def trained(source, cell, seed, setting):
        asked.append(setting)
        return [0.9, 0.2]

    monkeypatch.setattr(robustness, "trained", trained)
    job = Job(load("robustness"), "smoke", tmp_path)
    robustness.robustness(job)
    assert None in asked
    asked.clear()
    monkeypatch.setattr(robustness, "rule", lambda: "another")
    robustness.robustness(job)
    assert set(asked) == {None}
