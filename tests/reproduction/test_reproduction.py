import json

import pytest
from typer.testing import CliRunner

from sordina.cli.main import app
from sordina.errors import InvalidInput
from sordina.reproduction import Experiment, ExperimentFindings, Job, Panel, PlottedCurve, Value, load, names, searches
from sordina.reproduction.experiment import cells, columns, markdown, number, plain, write
from sordina.reproduction.searches import search_table
from sordina.tuning import STRATEGIES

CHAPTER_3 = [f"table-3.{number}" for number in (8, 9, 10, 11, 12, 13)]


def test_everything_that_was_promised_is_listed_in_order():
    known = names()
    assert {*CHAPTER_3, "figure-3.1", "figure-3.2", "search-noise"} <= set(known)
    assert known.index("table-3.9") < known.index("table-3.10")


@pytest.mark.parametrize("name", names())
def test_every_file_loads_and_names_a_function(name):
    made = load(name)
    assert callable(made.function())
    for scale in ("smoke", "short", "full"):
        assert Job(made, scale, None).settings, f"{scale} says nothing"


@pytest.mark.parametrize("name", CHAPTER_3)
def test_the_tables_of_chapter_3_follow_its_protocol(name):
    full = Job(load(name), "full", None).settings
    assert (full["batch_size"], full["epochs"], full["seeds"], full["validate_every"]) == (512, 10.0, 5, 50)
    assert full["delta"] == 1e-5
    assert full["granularity"] in (5, 9)
    assert set(full["strategies"]) <= set(STRATEGIES)
    assert "cells" not in full
    reported = {(row["strategy"], row["epsilon"]) for row in load(name).reference}
    theirs = [strategy for strategy in full["strategies"] if strategy != "automatic"]
    missing = {(s, e) for s in theirs for e in full["epsilons"]} - reported
    assert missing <= {("fixed-quantile", 1.0)}  # diverges, 000 table 3.3


def tiny(tmp_path, **settings):
    made = Experiment("tiny", "Tiny", "nowhere", "x:y", {"smoke": settings}, reference=(
        {"strategy": "online", "epsilon": 3.0, "value": 90.0, "spread": 1.0, "best": "rho = 1"},
    ))  # fmt: skip
    return Job(made, "smoke", tmp_path)


def test_a_table_shows_ours_beside_theirs(tmp_path):
    settings = {
        "dataset": "digits", "model": "mlp", "strategies": ["online", "adam-wosm"], "epsilons": [3.0],
        "granularity": 2, "delta": 1e-5, "batch_size": 200, "epochs": 1.0, "validate_every": 3, "seeds": 2,
        "rows": 600, "test_rows": 100, "cells": {"adam-wosm": [{"C": 0.02}]},
    }  # fmt: skip
    found = search_table(tiny(tmp_path, **settings))
    online, wosm = found.values
    assert (online.reference, online.reference_spread) == (90.0, 1.0)
    assert wosm.reference is None
    assert 0 <= online.ours <= 100
    assert online.spread is not None
    assert "rho = 1" in online.note
    assert "2 runs paid for; 1 of them made; 2 seeds" in wosm.note
    assert "of them made" not in online.note
    assert "C = 0.01" in wosm.note
    assert any("TEST SET" in remark for remark in found.remarks)
    write({"name": "tiny", "title": "Tiny", "source": "nowhere", "scale": "smoke", "seconds": 1.0}, found, tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 0
    assert "| 3 | Online |" in (tmp_path / "result.md").read_text()


def test_the_sanitised_gradient_points_best_somewhere_between(tmp_path):
    """Figure 3.1's claim, on digits: small thresholds bias, large ones drown the gradient in noise."""
    settings = {
        "dataset": "digits", "model": "mlp", "batch_size": 128, "learning_rate": 0.5, "noise_multiplier": 1.0,
        "lowest": 1e-2,
        "highest": 1e3, "draws": 10, "iterations": [20], "thresholds": 11,
    }  # fmt: skip
    (curve,) = searches.cosine(tiny(tmp_path, **settings)).panels[0].curves
    assert all(-1 <= value <= 1 for value in curve.y)
    assert max(curve.y) > 0.3
    assert abs(curve.y[-1]) < 0.2


def test_pareto_fronts_cost_the_same_everywhere(tmp_path):
    settings = {
        "batch_size": 10, "population": 1000, "steps": 20, "delta": 1e-5, "runs": 2, "inflation": 0.01, "ratio": 7.124,
        "epsilons": [3.0],
    }  # fmt: skip
    found = searches.pareto(tiny(tmp_path, **settings))
    assert found.values[0].ours == pytest.approx(7.124, abs=5e-4)
    front = found.panels[0].curves[0]
    costs = [x**-2 + y**-2 for x, y in zip(front.x, front.y, strict=True)]
    assert max(costs) == pytest.approx(min(costs))


class TestWriting:
    FOUND = ExperimentFindings(
        "data",
        [Value({"a": "1"}, 2.0, 0.5, 1.5, None, "note"), Value({"b": "2"}, None)],
        [
            Panel(
                "t",
                "x",
                "y",
                [PlottedCurve("one", [1, 2], [3, 4], [0.1, 0.1]), PlottedCurve("one", [1, 2], [3, 5], reference=True)],
            )
        ],
        ["remark"],
    )
    FACTS = {"name": "n", "title": "t", "source": "s", "scale": "smoke", "seconds": 2.0}  # noqa: RUF012

    def test_rows_have_the_difference(self):
        assert columns(self.FOUND.values) == ["a", "b"]
        assert cells(self.FOUND.values[0], ["a", "b"]) == ["1", "", "2.000 (0.500)", "1.500", "+0.50", "note"]
        assert cells(self.FOUND.values[1], ["a", "b"]) == ["", "2", "-", "-", "", ""]

    def test_markdown(self):
        text = markdown(self.FACTS, self.FOUND)
        assert "- remark" in text
        assert "| 1 |  | 2.000 (0.500) | 1.500 | +0.50 | note |" in text

    def test_json_is_pure(self, tmp_path):
        write(self.FACTS | {"odd": float("nan"), "values": [float("inf")]}, self.FOUND, tmp_path)
        assert json.loads((tmp_path / "result.json").read_text()) == self.FACTS | {"odd": "nan", "values": ["inf"]}
        assert plain((1, {"a": float("inf")})) == [1, {"a": "inf"}]

    def test_numbers(self):
        assert [number(value) for value in (94.111, 1.2345, 0.5, 1e-5, 0.0, float("inf"))] == [
            "94.11", "1.234", "0.5000", "1e-05", "0.0000", "inf",
        ]  # fmt: skip


class TestCommand:
    def test_the_list_is_json_when_asked(self):
        result = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
        assert result.exit_code == 0
        assert {"table-3.8", "figure-3.1"} <= {entry["name"] for entry in json.loads(result.stdout)}

    def test_the_list_names_everything(self):
        result = CliRunner().invoke(app, ["reproduce", "--list"], env={"COLUMNS": "200"})
        assert all(name in result.stdout for name in names())

    @pytest.mark.parametrize(
        "arguments", [["reproduce"], ["reproduce", "table-9.9"], ["reproduce", "figure-3.2", "--scale", "huge"]]
    )
    def test_refusals(self, arguments, tmp_path):
        result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
        assert isinstance(result.exception, InvalidInput)

    def test_a_reproduction_prints_and_writes_all_three(self, tmp_path):
        result = CliRunner().invoke(app, ["reproduce", "figure-3.2", "--out", str(tmp_path), "--json"])
        assert result.exit_code == 0, result.output
        facts = json.loads(result.stdout)
        assert facts["values"][0]["reference"] == 7.124
        folder = tmp_path / "figure-3.2" / "smoke"
        assert sorted(path.name for path in folder.iterdir()) == ["figure.png", "result.json", "result.md"]
