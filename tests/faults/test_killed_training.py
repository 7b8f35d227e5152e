"""kill -9 at any moment, resume, and the account is the same: what may have been seen is on record."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_training.py")


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(output)


def kill_after_journal(process: subprocess.Popen[str], journal: Path, lines: int, moment: float) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_text().count("\n") >= lines:
            break
        time.sleep(0.002)
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def claimed(journal: Path) -> int:
    return max(json.loads(line)["claimed"] for line in journal.read_text().splitlines() if line.endswith("}"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1] if os.environ.get("SORDINA_LONG") else [1])
def test_a_killed_secure_run_resumes_to_the_planned_epsilon(tmp_path, seed):
    dice, folder = random.Random(seed), tmp_path / "run"
    journal = folder / "journal.jsonl"
    kill_after_journal(start(folder), journal, dice.randint(1, 5), dice.random() * 0.05)
    first = claimed(journal)
    kill_after_journal(start(folder, "--resume"), journal, dice.randint(3, 12), dice.random() * 0.05)
    assert claimed(journal) >= first
    result = finish(start(folder, "--resume"))
    assert result["steps"] == 400
    facts = json.loads((folder / "privacy.json").read_text())
    assert facts["steps"] == 400
    assert facts["epsilon"] == pytest.approx(result["epsilon"])


@pytest.mark.slow
def test_a_killed_seeded_run_resumes_to_the_same_model(tmp_path):
    whole = finish(start(tmp_path / "whole", "--seed", "7"))
    folder = tmp_path / "killed"
    kill_after_journal(start(folder, "--seed", "7"), folder / "journal.jsonl", 5, 0.01)
    assert not (folder / "privacy.json").exists()
    resumed = finish(start(folder, "--seed", "7", "--resume"))
    assert resumed["weights"] == whole["weights"]
    assert resumed["epsilon"] == whole["epsilon"]


def test_a_folder_is_not_run_over(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "journal.jsonl").write_text('{"claimed": 25}\n')
    process = start(folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "holds a run already" in errors
