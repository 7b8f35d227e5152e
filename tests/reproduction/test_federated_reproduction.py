"""The federated reproductions, in the small: ours beside the reference, and figures that exist."""

import os

import pytest

from sordina.reproduction import Experiment, Job, bounded, federated
from sordina.reproduction import bounded as experiments

needs_data = pytest.mark.skipif("SORDINA_DATA" not in os.environ, reason="needs the real data")


def job(folder, reference=(), **settings):
    return Job(Experiment("tiny", "Tiny", "nowhere", "x:y", {"smoke": settings}, reference=reference), "smoke", folder)


def by(found, **what):
    return [value for value in found.values if what.items() <= value.what.items()]


def test_figure_2_1_counts_what_both_servers_find(tmp_path):
    found = federated.figure_2_1(
        job(tmp_path, seed=0, noise=5.0, noises=[5.0], participations=6, leakage={"5": 2.4}, seeds=2)
    )
    counts = {
        (value.what["server"], value.what["run"]): value.ours
        for value in by(found, quantity="runs that find both optima")
    }
    assert counts["as printed", "one hypothesis, no noise, 2 seeds"] == 0
    assert counts["as printed", "two hypotheses, no noise, 2 seeds"] == 2
    assert counts["steady server", "two hypotheses, nu = 5, 2 seeds"] == 2
    (steady,) = by(found, server="steady server", quantity="largest leakage")
    assert (steady.ours, steady.reference) == (2.4, 2.4)
    assert {"row3/parameters.png", "row4/leakage.png"} <= set(found.files)
    assert all((tmp_path / file).stat().st_size for file in found.files)


def test_figure_2_2_rises_by_n_over_nu(tmp_path):
    found = federated.figure_2_2(job(tmp_path, run={"seed": 1, "noise": 5.0, "rounds": 8}, leakage=2.4))
    assert len(found.panels[0].curves) == 4
    for curve in found.panels[0].curves:
        steps = [after - before for before, after in zip(curve.y, curve.y[1:], strict=False)]
        assert all(step == pytest.approx(0) or step == pytest.approx(0.4) for step in steps)


def test_fairness_says_which_is_smaller(tmp_path):
    settings = {"data": "synthetic-fairness", "noises": [1.0], "seeds": 1, "recipe": {"rounds": 3}}
    found = federated.fairness_differences(job(tmp_path, **settings))
    assert len(found.values) == 3
    assert all("smaller" in value.note for value in found.values)
    assert (tmp_path / "fairness.png").stat().st_size > 0


def test_every_arm_of_chapter_5_gets_its_best_threshold(tmp_path, monkeypatch):
    def pretend(arms, seeds, *, budget, **options):
        best = {"unbounded ball": 1.0}
        return [
            {
                "arm": name,
                "accuracy": [0.9 if policy.current_threshold(policy.init(1)) == best.get(name, 0.5) else 0.1] * 2,
                "mean": 0.9 if policy.current_threshold(policy.init(1)) == best.get(name, 0.5) else 0.1,
                "epsilon": budget.epsilon,
            }
            for name, policy in arms.items()
        ]

    monkeypatch.setattr(experiments, "utility", pretend)
    settings = {
        "epsilon": 3.0,
        "delta": 1e-4,
        "angles": [30.0],
        "lows": [0.0],
        "seeds": 2,
        "rates": [1.0],
        "options": {},
    }
    found = bounded.sector_against_ball(job(tmp_path, thresholds=[0.5, 1.0], **settings))
    assert {value.ours for value in found.values} == {0.9}
    notes = {value.what["clipping"]: value.note for value in found.values}
    assert notes["unbounded ball"].startswith("C = 1,")
    assert notes["bounded sector 30 deg, c = 0 C"].startswith("C = 0.5,")
    assert len(notes) == 4


@needs_data
def test_table_2_3_and_figure_2_3_stand_beside_the_printed_leakage(tmp_path):
    printed = {"nu": 3.0, "hypotheses": 5, "median": 8.4, "largest": 36.7}
    settings = {"noises": [3.0], "hypotheses": [5, 1], "seeds": 1, "recipe": {"rounds": 4}}
    found = federated.table_2_3(job(tmp_path, (printed,), **settings))
    assert len(by(found, quantity="RMSE")) == 2
    (equal,) = by(found, quantity="largest leakage at equal rounds")
    assert equal.ours == pytest.approx(equal.reference, rel=0.2)
    run = {"seed": 3, "hypotheses": 5, "noise": 3.0}
    histogram = federated.figure_2_3(
        job(tmp_path, run=run, recipe={"rounds": 4}, clients=2062, median=8.4, largest=36.7)
    )
    assert histogram.values[0].ours == histogram.values[0].reference == 2062
    assert (tmp_path / "histogram.png").stat().st_size > 0
