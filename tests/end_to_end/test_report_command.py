"""`sordina report` and `sordina compare` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
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
        "import sys; from sordina.reports import reading, writing; "
        f"writing.write(reading.report([{str(run)!r}]), {str(run)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
