"""Who may be called PRIVATE: a run whose claim was checked against its own model and events."""

import json
from pathlib import Path

import pytest
from tests.reports.conftest import PRIVACY, audited, finish, write
from typer.testing import CliRunner

import sordina as sd
from sordina.cli.main import app
from sordina.reports import reading, rendering, words

CLAIMED = ("CLAIMED, NOT VERIFIED", "care")


def judged(folder):
    run = reading.run(folder)
    return words.badge(run), run


def test_a_run_of_ours_is_private(private):
    badge, run = judged(private)
    assert badge == ("PRIVATE", "good")
    assert run.claim.verified


def test_a_foreign_model_with_a_number_beside_it_is_a_claim_and_no_more(tmp_path):
    write(tmp_path / "foreign", "privacy.json", PRIVACY | {"epsilon": 0.5})
    (tmp_path / "foreign/model.pt").write_bytes(b"anything")
    badge, run = judged(tmp_path / "foreign")
    assert badge == CLAIMED
    assert "Nobody checked this claim" in words.answer(run)[0]
    page = rendering.write(reading.report([tmp_path / "foreign"]), tmp_path / "out.html").read_text()
    assert "CLAIMED, NOT VERIFIED" in page
    assert 'class="badge good"' not in page


def test_nor_is_an_audited_model_whose_run_is_elsewhere(tmp_path):
    audited(tmp_path / "audit", 1.0, 0.0)
    badge, _ = judged(tmp_path / "audit")
    assert badge == CLAIMED


def test_another_model_beside_the_claim_is_found(private):
    (private / "model.pt").write_bytes(b"other weights")
    badge, run = judged(private)
    assert badge == ("CLAIM OF ANOTHER MODEL", "bad")
    assert "another model" in words.answer(run)[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epsilon": 1.0}, "cost more than it claims"),
        ({"event": {"kind": "Nothing at all"}}, "cannot be read"),
        ({"event": None}, "lists no events"),
        ({"accountant": "astrology"}, "cannot be read"),
    ],
)
def test_a_claim_that_does_not_follow_from_its_events_is_not_verified(tmp_path, change, why):
    finish(tmp_path / "run", PRIVACY | change)
    badge, run = judged(tmp_path / "run")
    assert badge == CLAIMED
    assert why in run.claim.unverified


def test_a_run_that_has_not_ended_is_not_verified(private):
    record = json.loads((private / "run.json").read_text())
    (private / "run.json").write_text(json.dumps(record | {"state": "open"}))
    assert judged(private)[0] == CLAIMED


def test_searches_and_runs_that_were_really_made_verify(tmp_path):
    """From the command to the badge, for a model of `train` and one of `tune` by each method."""
    common = ["digits", "--model", "mlp", "--batch-size", "200", "--epochs", "0.5"]
    train = CliRunner().invoke(app, ["train", *common, "--out", str(tmp_path / "train")])
    assert train.exit_code == 0, train.output
    folders = [tmp_path / "train"]
    for method in ("composition", "random-stopping"):
        out = tmp_path / method
        arguments = ["tune", *common, "--granularity", "2", "--method", method, "--workers", "1", "--out", str(out)]
        for _ in range(20):  # a random number of runs may be 0
            result = CliRunner().invoke(app, arguments)
            if result.exit_code == 0:
                break
            out = Path(f"{out}x")
            arguments[-1] = str(out)
        assert result.exit_code == 0, result.output
        folders.append(out / "online-3")
    for folder in folders:
        badge, run = judged(folder)
        assert badge == ("PRIVATE", "good"), (folder, run.claim.unverified)


def test_a_delta_of_one_in_n_is_warned_of_in_the_answer_and_the_limits(tmp_path):
    finish(tmp_path / "run", PRIVACY | {"delta": 1e-3})
    run = reading.run(tmp_path / "run")
    assert any("WARNING: delta 0.001 is not below 1/1,437" in sentence for sentence in words.answer(run))
    page = rendering.write(reading.report([tmp_path / "run"]), tmp_path / "out.html").read_text()
    assert page.count("WARNING: delta 0.001") >= 2


def test_training_and_searching_warn_too(tmp_path):
    common = ["digits", "--model", "mlp", "--batch-size", "200", "--epochs", "0.3", "--delta", "0.01", "--seed", "1"]
    for command in (["train"], ["tune", "--granularity", "1", "--workers", "1"]):
        out = tmp_path / command[0]
        result = CliRunner().invoke(app, [*command[:1], *common, *command[1:], "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert "WARNING: delta 0.01" in result.output
        (privacy,) = out.rglob("privacy.json")
        assert any("WARNING: delta" in caveat for caveat in json.loads(privacy.read_text())["caveats"])
    assert sd.privacy.delta_warning(1e-5, 1437) is None
