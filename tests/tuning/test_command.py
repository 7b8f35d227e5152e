"""`sordina tune` and what stands behind it."""

import io
import json
import math

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from sordina.cli.main import app
from sordina.datasets import Data, Task
from sordina.errors import InvalidInput
from sordina.reports import reading
from sordina.tuning.comparison import ComparisonPlan, NamedTask, coins, compare, table
from sordina.tuning.selection import Selection
from sordina.tuning.space import Between, PartOfGrid

TINY = NamedTask("digits", "mlp", batch_size=200, epochs=0.5, hold_out=0.2)


class TestHoldingOut:
    def test_a_row_stays_where_it_is_when_another_goes(self):
        rows = TINY.data().train
        fates = coins(rows, 3)
        keep = torch.arange(len(rows)) != 17
        without = TensorDataset(*(tensor[keep] for tensor in rows.tensors))
        assert np.array_equal(np.delete(fates, 17), coins(without, 3))

    def test_the_share_is_kept_and_the_key_matters(self):
        train, held_out = TINY.source()
        total = len(train) + len(held_out)
        assert total == len(TINY.data().train)
        assert abs(len(held_out) / total - 0.2) < 4 * math.sqrt(0.2 * 0.8 / total)
        assert not np.array_equal(coins(TINY.data().train, 0), coins(TINY.data().train, 1))

    def test_the_population_is_a_public_number_not_the_number_drawn(self):
        assert TINY.trainer(0).population == round(0.8 * len(TINY.data().train))

    def test_without_a_share_the_test_part_validates(self):
        train, validation = NamedTask("digits", rows=50, test_rows=20).source()
        assert (len(train), len(validation)) == (50, 20)

    def test_refusals(self, monkeypatch):
        with pytest.raises(InvalidInput, match="share"):
            NamedTask("digits", hold_out=1.0)
        rows = TensorDataset(torch.zeros(2, 1), torch.zeros(2))
        monkeypatch.setattr(
            "sordina.tuning.comparison._load", lambda name, form: Data(name, rows, rows, Task.REGRESSION)
        )
        with pytest.raises(InvalidInput, match="regression task"):
            NamedTask("rents").data()


def test_every_technique_goes_into_a_search(tmp_path):
    options = (("optimizer", "momentum"), ("averaging", "tail"), ("views", 2), ("noise", "banded"), ("bands", 2))
    task = NamedTask("digits", "digits-cnn-ws", batch_size=100, epochs=0.2, hold_out=0.2, rows=500, options=options)
    made = task.trainer(3)
    assert (made.optimizer, made.averaging, made.views, made.seed) == ("momentum", "tail", 2, None)
    assert made.noise.bands == 2
    assert made.augment is not None
    plan = ComparisonPlan(
        task, ["fixed-threshold"], [6.0], granularity=1, selection=Selection("public", metric="log_loss"), seed=1
    )
    (entry,) = compare(plan, tmp_path).entries
    assert entry.metric == "log_loss"
    assert entry.outcome.guarantee.epsilon <= 6
    assert json.loads((tmp_path / "results.json").read_text())["task"]["options"]["views"] == 2
    assert "options" not in TINY.facts()  # searches of earlier versions go on
    with pytest.raises(InvalidInput, match="number of bands"):
        NamedTask("digits", options=(("noise", "banded"),))


def test_principal_components_go_into_a_search_by_name(tmp_path):
    options = ["tune", "digits", "--model", "pca-mlp", "--epsilon", "20", "--granularity", "1", "--batch-size", "300"]
    options += [
        "--epochs",
        "1",
        "--rows",
        "600",
        "--strategy",
        "automatic",
        "--method",
        "composition",
        "--workers",
        "1",
    ]
    options += ["--seed", "1", "--json", "--out"]
    refused = CliRunner().invoke(app, [*options, str(tmp_path / "no")])
    assert "--components-noise 20" in str(refused.exception)
    found = CliRunner().invoke(app, [*options, str(tmp_path / "yes"), "--components-noise", "20"])
    assert found.exit_code == 0, found.output
    with pytest.raises(InvalidInput, match=r"is no run itself but holds some: give one of .*automatic-20"):
        reading.run(tmp_path / "yes")
    assert reading.run(tmp_path / "yes" / "automatic-20")
    with pytest.raises(InvalidInput, match="goes with the model pca-mlp"):
        NamedTask("digits", options=(("components_noise", 20.0),))


def test_searches_are_compared_and_paid_for_together(tmp_path):
    plan = ComparisonPlan(
        TINY, ["online", "automatic"], [3.0], granularity=2, selection=Selection(), method="composition", seed=1
    )
    found = compare(plan, tmp_path)
    facts = json.loads((tmp_path / "results.json").read_text())
    assert [entry.strategy for entry in found.entries] == ["online", "automatic"]
    assert all(entry.outcome.guarantee.epsilon <= 3 for entry in found.entries)
    assert 3 < found.together <= 6
    assert facts["epsilon_of_all_searches"] == pytest.approx(found.together)
    assert facts["selection"]["label"].startswith("private selection")
    assert (tmp_path / "utility.png").stat().st_size > 0
    again = compare(plan, tmp_path, resume=True)
    assert again.facts() == found.facts()


def test_spaces_of_a_plan():
    plan = ComparisonPlan(TINY, [], [], runs=6, cells={"adam-wosm": [{"C": 1.0}]})
    assert isinstance(plan.space("adam-wosm"), PartOfGrid)
    assert plan.space("online").runs == 6
    assert isinstance(plan.space("online").axes["rho"], Between)
    assert plan.space("automatic").runs == 1


def test_the_live_table_shows_no_hidden_score(tmp_path):
    from rich.console import Console

    plan = ComparisonPlan(TINY, ["online"], [3.0], granularity=2, method="composition", seed=1)
    shown = []
    compare(plan, tmp_path, watch=lambda folder: _peek(folder, shown))
    console = Console(width=160, record=True, file=io.StringIO())
    for view in shown:
        console.print(view)
    text = console.export_text()
    assert "composition" in text
    assert "rho=0.003162" in text
    assert "0 of 2 runs" in text
    assert "2 of 2 runs" in text


class _peek:
    def __init__(self, folder, shown):
        self.folder, self.shown = folder, shown

    def _look(self):
        self.shown.append(table(self.folder, json.loads((self.folder / "plan.json").read_text())))

    def __enter__(self):
        self._look()

    def __exit__(self, *_):
        self._look()


class TestCommand:
    ARGUMENTS = ("tune", "digits", "--model", "mlp", "--granularity", "2", "--batch-size", "200", "--epochs", "0.5",
                 "--workers", "1", "--seed", "1")  # fmt: skip

    def test_json_is_all_there_is_on_standard_output(self, tmp_path):
        result = CliRunner().invoke(app, [*self.ARGUMENTS, "--out", str(tmp_path), "--json"])
        assert result.exit_code == 0, result.output
        (found,) = json.loads(result.stdout)["searches"]
        assert found["epsilon"] <= 3
        assert found["releasable"] is False
        assert found["selection"]["kind"] == "private"
        assert found["score"] is None

    def test_people_read_the_guarantee_and_the_label(self, tmp_path):
        arguments = [*self.ARGUMENTS, "--selection", "thesis-test-set", "--seeds", "2", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        assert "TEST SET, AS IN THE THESIS" in result.stdout
        assert "NOT FOR RELEASE" in result.stdout
        assert "composition" in result.stdout

    def test_refusals(self, tmp_path):
        for bad in (["--strategy", "offline"], ["--selection", "peek"], ["--epsilon", "0"]):
            result = CliRunner().invoke(app, [*self.ARGUMENTS, *bad, "--out", str(tmp_path / "x")])
            assert isinstance(result.exception, InvalidInput)

    def test_bad_numbers_and_missing_folders_are_refused_before_anything_is_made(self, tmp_path):
        bad = (["--rows=-1"], ["--rows", "0"], ["--seed=-1"], ["--granularity", "9223372036854775808"], ["--resume"])
        for options in bad:
            out = tmp_path / "missing"
            result = CliRunner().invoke(app, [*self.ARGUMENTS, *options, "--out", str(out)])
            assert isinstance(result.exception, InvalidInput), options
            assert result.exception.exit_code == 2
            assert not out.exists(), options
