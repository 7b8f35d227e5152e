"""`sordina train` the way a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FAST = ["--epochs", "2", "--batch-size", "128", "--seed", "0"]


def sordina(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from sordina.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.mark.slow
def test_train_writes_a_folder_and_prints_json(tmp_path):
    done = sordina("train", "digits", *FAST, "--out", str(tmp_path / "a"), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert {"test_accuracy", "epsilon", "delta", "noise_multiplier", "steps", "seconds"} <= set(facts)
    assert 2.97 <= facts["epsilon"] <= 3
    for name in ("model.pt", "metrics.jsonl", "privacy.json", "recipe.json", "tensorboard"):
        assert (tmp_path / "a" / name).exists()


@pytest.mark.slow
def test_a_budget_that_is_used_up_refuses_with_exit_code_3_and_writes_nothing(tmp_path):
    assert sordina("ledger", "create", "people", "--epsilon", "1", "--delta", "1e-5", cwd=tmp_path).returncode == 0
    book = ["--ledger", "sordina-ledger.db", "--dataset-budget", "people"]
    done = sordina("train", "digits", *FAST, "--out", "b", *book, cwd=tmp_path)
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "b").exists()


BAD = {
    "data set": ["train", "imagenet"],
    "clipping": ["train", "digits", "--clipping", "median"],
    "epsilon": ["train", "digits", "--epsilon", "-1"],
    "epsilon nan": ["train", "digits", "--epsilon", "nan"],
    "delta": ["train", "digits", "--delta", "1"],
    "batch": ["train", "digits", "--batch-size", "0"],
    "batch beyond data": ["train", "digits", "--batch-size", "5000"],
    "epochs": ["train", "digits", "--epochs", "0"],
    "learning rate": ["train", "digits", "--learning-rate", "-1"],
    "model": ["train", "digits", "--model", "resnet"],
    "threshold": ["train", "digits", "--clipping", "fixed", "--threshold", "0"],
    "sector with poisson": ["train", "digits", "--clipping", "sector", "--sampling", "poisson"],
    "sampling": ["train", "digits", "--sampling", "shuffle"],
    "resume without folder": ["train", "digits", "--resume"],
    "budget without ledger": ["train", "digits", "--dataset-budget", "people"],
    "unknown option": ["train", "digits", "--clip", "1"],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(name, capsys, monkeypatch):
    from sordina.cli.main import main

    monkeypatch.setattr(sys, "argv", ["sordina", *BAD[name]])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert "Traceback" not in errors[0]
