"""`sordina federate` end to end: JSON, run folder, figures, guarantees in words, refusals."""

import json
import os
import subprocess
import sys

import pytest

from sordina.cli import main


def call(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sordina", "federate", *arguments])
    with pytest.raises(SystemExit) as stop:
        main.main()
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def facts(capsys, monkeypatch, *arguments):
    code, out, err = call(capsys, monkeypatch, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_example_of_the_documentation(capsys, monkeypatch, tmp_path):
    folder = tmp_path / "f"
    told = facts(
        capsys, monkeypatch, "synthetic", "--strategy", "metric-pfl", "--hypotheses", "2", "--noise-multiplier", "5",
        "--clients-per-round", "7", "--seed", "0", "--out", str(folder),
    )  # fmt: skip
    assert told["leakage"]["per_participation"] == 0.4
    assert told["leakage"]["max"] >= told["leakage"]["median"]
    assert len(told["hypotheses"]) == 2
    assert told["rounds"] >= 7
    assert told["validation_loss"] > 0
    assert told["sound"] is False
    assert "HEURISTIC" in told["guarantee"]
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "result.json", "privacy.json", "recipe.json", "metrics.jsonl", "models.npz", "validation.png", "parameters.png",
        "leakage.png", "leakage_histogram.png",
    }  # fmt: skip
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["radius_mode"] == "heuristic"
    assert len(privacy["leakage_per_client"]) == 100
    assert privacy["releasable"] is False
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, told["rounds"] + 1))
    assert sum(line["answered"] for line in lines) * 0.4 == pytest.approx(sum(privacy["leakage_per_client"]))


def test_a_limit_is_kept_and_a_public_radius_is_sound(capsys, monkeypatch, tmp_path):
    told = facts(
        capsys, monkeypatch, "synthetic", "--strategy", "metric-pfl-steady", "--leakage-limit", "0.8", "--radius",
        "public:0.5", "--seed", "1", "--out", str(tmp_path / "g"),
    )  # fmt: skip
    assert told["sound"] is True
    assert told["leakage"]["max"] == 0.8
    assert json.loads((tmp_path / "g" / "privacy.json").read_text())["radius_mode"] == "sound"


@pytest.mark.parametrize("clipping", ["fixed", "quantile", "online", "automatic", "trailing", "sector"])
def test_central_privacy_with_every_clipping_policy(capsys, monkeypatch, clipping):
    told = facts(
        capsys, monkeypatch, "synthetic", "--strategy", "fedavg", "--privacy", "central", "--clipping", clipping,
        "--rounds", "5", "--clients-per-round", "20", "--seed", "0",
    )  # fmt: skip
    assert 2.97 <= told["epsilon"] <= 3.0
    assert told["delta"] == 1e-5
    assert "leakage" not in told
    expected = "replace-one" if clipping == "sector" else "add-remove"
    assert expected in told["guarantee"]


@pytest.mark.parametrize("strategy", ["fedsgd", "fedavg", "fedprox", "scaffold", "ifca", "metric-pfl"])
@pytest.mark.parametrize("privacy", ["none", "metric", "local"])
def test_any_strategy_runs_under_any_privacy_it_is_compatible_with(capsys, monkeypatch, strategy, privacy):
    told = facts(
        capsys, monkeypatch, "synthetic", "--strategy", strategy, "--privacy", privacy, "--rounds", "3", "--seed", "0"
    )
    assert told["rounds"] == 3
    assert ("leakage" in told) == (privacy == "metric")
    assert ("epsilon" in told) == (privacy == "local")


@pytest.mark.parametrize("strategy", ["fedsgd", "fedprox", "scaffold", "ifca"])
def test_central_privacy_with_every_strategy_that_needs_a_mean(capsys, monkeypatch, strategy):
    told = facts(
        capsys, monkeypatch, "synthetic", "--strategy", strategy, "--privacy", "central", "--rounds", "3", "--seed", "0"
    )
    assert told["epsilon"] <= 3.0


def test_groups_are_reported_and_drawn(capsys, monkeypatch, tmp_path):
    told = facts(
        capsys,
        monkeypatch,
        "synthetic-fairness",
        "--noise-multiplier",
        "1",
        "--rounds",
        "20",
        "--seed",
        "0",
        "--out",
        str(tmp_path),
    )
    differences = told["fairness"]["group"]
    assert 0 <= differences["equalized_odds_difference"] <= 1
    assert len(differences["groups"]) == 2
    assert (tmp_path / "fairness.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "unknown federation"),
        (["synthetic", "--strategy", "magic"], "unknown strategy"),
        (["synthetic", "--privacy", "hope"], "unknown privacy"),
        (["synthetic", "--radius", "public:-1"], "radius"),
        (["synthetic", "--hypotheses", "0"], "hypothesis"),
        (["synthetic", "--noise-multiplier", "0"], "noise multiplier nu"),
        (["synthetic", "--leakage-limit", "-1"], "leakage limit"),
        (["synthetic", "--privacy", "central"], "IFCA"),
        (["synthetic", "--strategy", "fedavg", "--leakage-limit", "1"], "metric"),
        (["synthetic", "--strategy", "fedavg", "--privacy", "record"], "public number of records"),
        (["synthetic", "--strategy", "feddyn", "--privacy", "record"], "fedsgd, fedavg or fedprox"),
        (["synthetic", "--strategy", "fedavg", "--privacy", "central", "--epsilon", "inf"], "finite epsilon"),
        (["synthetic", "--strategy", "fedavg", "--privacy", "central", "--clipping", "scissors"], "clipping"),
        (["synthetic", "--rounds", "0"], "rounds must be at least 1"),
        (["synthetic", "--batch-size", "0"], "batch size must be at least 1"),
        (["synthetic", "--window", "0"], "window must be at least 1"),
        (["synthetic", "--clients-per-round", "0"], "clients per round must be at least 1"),
        (["synthetic", "--clients-per-round", "101"], "must lie in [1, 100]"),
        (["synthetic", "--learning-rate", "0"], "learning rate"),
        (["synthetic", "--server-learning-rate", "nan"], "server learning rate"),
        (["synthetic", "--seed", "-1"], "seed"),
        (["synthetic", "--out", "/dev/null/run"], "cannot make the folder"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(capsys, monkeypatch, arguments, message):
    code, out, err = call(capsys, monkeypatch, *([] if "--seed" in arguments else ["--seed", "0"]), *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


def test_a_limit_below_one_participation_is_refused(capsys, monkeypatch):
    code, out, err = call(
        capsys, monkeypatch, "synthetic", "--noise-multiplier", "5", "--leakage-limit", "0.3", "--seed", "0"
    )
    assert (code, out) == (3, "")
    assert "one participation leaks 0.4" in err
    assert len(err.strip().splitlines()) == 1


def test_without_json_a_person_reads_the_guarantee(capsys, monkeypatch):
    code, out, _ = call(capsys, monkeypatch, "synthetic", "--rounds", "3", "--seed", "0")
    assert code == 0
    assert "HEURISTIC" in out
    assert "per participation" in out
    assert "of the time, a coin 50 %" in out, "leakage in words"


def test_help_has_an_example(capsys, monkeypatch):
    _, out, _ = call(capsys, monkeypatch, "--help")
    assert "sordina federate synthetic" in " ".join(out.split())


@pytest.mark.skipif("SORDINA_DATA" not in os.environ, reason="needs the real data")
def test_a_federated_svm_beats_003_with_a_guarantee_that_holds(capsys, monkeypatch):
    told = facts(
        capsys, monkeypatch, "adult", "--strategy", "fedsgd", "--privacy", "record", "--epsilon", "0.8",
        "--delta", "1e-5", "--threshold", "3", "--rounds", "12", "--learning-rate", "1", "--seed", "0",
    )  # fmt: skip
    assert told["epsilon"] <= 0.8
    assert told["validation_accuracy"] > 0.7494
    assert "every record" in told["guarantee"]


def test_the_command_line_starts_without_torch():
    code = "import sys, sordina.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
