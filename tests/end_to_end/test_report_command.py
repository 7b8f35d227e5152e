"""`sordina report` and `sordina compare` as a user types them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from sordina.cli.main import app

PRIVACY = {"epsilon": 1.0, "delta": 1e-5, "private": True, "statement": "(1, 1e-05)-DP", "releasable": True}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "privacy.json").write_text(json.dumps(PRIVACY))
    (folder / "metrics.jsonl").write_text('{"step": 1, "epsilon": 1.0, "threshold": 0.5}\n')
    return folder


def test_a_report_is_written_beside_the_run(run):
    said = CliRunner().invoke(app, ["report", str(run)])
    assert said.exit_code == 0
    assert f"Report: {run / 'report.html'}" in said.stdout
    assert (run / "report.json").exists()


def test_json_is_all_that_stdout_gets(run, tmp_path):
    report = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "page.html"), "--json"])
    assert json.loads(report.stdout)["runs"][0]["claim"]["epsilon"] == 1.0
    compared = CliRunner().invoke(app, ["compare", str(run), str(run), "--out", str(tmp_path / "both.html"), "--json"])
    facts = json.loads(compared.stdout)
    assert facts["facts"]["epsilon"] == {"one": "1.00", "one (2)": "1.00"}
    assert (tmp_path / "both.html").exists()


def test_compare_prints_a_table(run):
    said = CliRunner().invoke(app, ["compare", str(run), str(run)])
    assert said.exit_code == 0
    assert "odds grow at most" in said.stdout


def test_what_is_no_run_is_refused_in_a_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from sordina.cli.main import main; main()", "report", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "is not a run" in done.stderr


def test_reporting_needs_no_torch(run):
    code = (
        "import sys; from sordina.reports import reading, rendering; "
        f"rendering.write(reading.report([{str(run)!r}]), {str(run)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def call(*words):
    said = CliRunner().invoke(app, [str(word) for word in words])
    assert said.exit_code == 0, said.output
    return said.stdout


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A trained and audited run and a federation, as the commands leave them, and the facts of their report."""
    folder = tmp_path_factory.mktemp("real")
    trained, federated = folder / "trained", folder / "federated"
    call("train", "digits", "--epochs", 1, "--batch-size", 256, "--seed", 0, "--out", trained, "--json")
    call("audit", "membership", trained, "--attacks", "loss,noisy", "--rows", 100, "--seed", 0, "--json")
    call("federate", "synthetic", "--rounds", 2, "--radius", "public:1", "--seed", 0, "--out", federated, "--json")
    return json.loads(call("report", trained, federated, "--json"))


@pytest.mark.slow
def test_a_real_audit_is_in_the_report(real):
    audited = real["runs"][0]
    assert [attack["name"] for attack in audited["attacks"]] == ["loss", "noisy"]
    assert audited["claim"]["epsilon"] == pytest.approx(3, rel=0.01)
    assert all(attack["measured"] < 3 and not attack["refuted"] for attack in audited["attacks"])


@pytest.mark.slow
def test_both_kinds_of_runs_state_their_versions(real):
    for one in real["runs"]:
        assert {"sordina", "torch", "python"} <= dict(one["versions"]).keys()


@pytest.mark.slow
def test_the_commands_in_a_report_are_commands(real):
    for one in real["runs"]:
        name, *words = shlex.split(one["command"].removeprefix("sordina "))
        context = typer.main.get_command(app).commands[name].make_context(name, words)
        assert context.params["seed"] == 0
