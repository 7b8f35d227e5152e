"""Facts from folders: of every kind, tolerant of what is missing, strict about what is no run."""

from __future__ import annotations

import json

import pytest

from sordina.accounting import Gaussian, Repeated
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput
from sordina.privacy import Budget
from sordina.reports import reading, rendering
from sordina.reports.facts import Report


def test_a_private_training_run(private):
    run = reading.run(private)
    assert (run.kind, run.name, run.dataset, run.population) == ("train", "online", "digits", 1437)
    assert run.private
    assert run.claim.epsilon == 2.9999
    assert run.history[0].step == 0
    assert run.history[0].threshold == 100.0
    assert run.accuracy == pytest.approx(0.8)
    assert run.command == "sordina train digits --epsilon 3.0 --clipping online --threshold 100.0"
    assert run.attacks[0].members == 150
    assert len(run.attacks[0].fpr) == len(run.attacks[0].tpr) > 100
    assert dict(run.versions)["torch"] == "2.13.0"


def test_a_run_without_privacy_claims_none(plain):
    run = reading.run(plain)
    assert run.claim.private is False
    assert run.claim.epsilon is None
    assert [case.psnr for case in run.reconstructions] == [None, 6.4]
    assert len(run.reconstructions[0].original) == 8


def test_a_federation(federation):
    run = reading.run(federation)
    assert (run.kind, run.dataset, run.population) == ("federate", "synthetic", 4)
    assert run.claim.trust == "metric"
    assert run.leakage == (0.6, 1.2, 1.2, 0.0)
    assert run.loss == 0.5
    assert run.fairness is not None
    assert run.fairness.groups[1].selection_rate == 0.4
    assert any("radius" in caveat for caveat in run.caveats)


@pytest.mark.parametrize(
    ("placement", "details", "adjacency"),
    [
        ("central", {"adjacency": "replace-one", "noise_multiplier": 1.5}, "replace-one"),
        ("central", {"adjacency": "add-remove"}, "add-remove"),
        ("local", {}, "replace-one"),
        ("record", {}, "add-remove"),
    ],
)
def test_a_federations_neighbours_are_its_own(federation, placement, details, adjacency):
    privacy = json.loads((federation / "privacy.json").read_text())
    changed = privacy | {"placement": placement, "details": details, "epsilon": 2.0, "delta": 1e-5}
    (federation / "privacy.json").write_text(json.dumps(changed))
    claim = reading.run(federation).claim
    assert (claim.private, claim.trust, claim.adjacency) == (True, placement, adjacency)
    assert claim.noise_multiplier == details.get("noise_multiplier")


def test_a_federation_without_privacy_claims_none(federation):
    privacy = json.loads((federation / "privacy.json").read_text())
    del privacy["leakage_per_client"]
    (federation / "privacy.json").write_text(json.dumps(privacy | {"placement": "none"}))
    assert reading.run(federation).claim.private is False


def test_an_audit_by_itself_keeps_its_claim(private):
    for name in ("privacy.json", "recipe.json", "metrics.jsonl"):
        (private / name).unlink()
    run = reading.run(private)
    assert (run.kind, run.claim.epsilon, run.claim.delta) == ("audit", 2.9999, 1e-5)


def test_an_unfinished_run_has_no_guarantee(private):
    (private / "privacy.json").unlink()
    run = reading.run(private)
    assert not run.finished
    assert run.claim.private is None
    assert "did not finish" in run.caveats[0]


@pytest.mark.parametrize("content", [None, {"notes.txt": "hello"}])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    for name, text in (content or {}).items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match="is not a run"):
        reading.run(tmp_path)
    with pytest.raises(InvalidInput, match="is not a run"):
        reading.run(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("privacy.json", "{"),
        ("privacy.json", "[1]"),
        ("metrics.jsonl", '{"epsilon": 1}\n'),
        ("metrics.jsonl", "half a li"),
        ("audit.json", '{"results": [{"attack": "loss", "bounds": []}]}'),
        ("inversion.json", '{"cases": [{"attack": "dlg"}]}'),
    ],
)
def test_a_damaged_file_is_named(private, name, text):
    (private / name).write_text(text)
    with pytest.raises(InvalidInput, match=name.partition(".")[0]):
        reading.run(private)


def test_runs_of_one_name_are_told_apart(private):
    facts = reading.report([private, private])
    assert [run.name for run in facts.runs] == ["online", "online (2)"]


def test_a_report_needs_a_run():
    with pytest.raises(InvalidInput, match="at least one run"):
        Report("nothing", "2026-01-01T00:00:00", ())


def test_the_ledger_is_priced(tmp_path, private):
    where = tmp_path / "ledger.db"
    ledger = Ledger(where)
    ledger.create("patients", Budget(3, 1e-5))
    for _ in range(2):
        ledger.reserve("patients", Repeated(Gaussian(8.0), 3), what="a query").settle()
    (account,) = reading.report([private], ledger=where).accounts
    alone = [booking.epsilon for booking in account.bookings]
    assert account.spent == pytest.approx(ledger.spent("patients"))
    assert max(alone) < account.spent < sum(alone)


def test_the_facts_are_plain_json(private, plain, federation):
    facts = reading.report([private, plain, federation])
    again = json.loads(json.dumps(facts.to_dict(), allow_nan=False))
    assert [run["name"] for run in again["runs"]] == ["online", "plain", "federation"]


def test_scores_beyond_accuracy_stand_beside_the_best_constant_answer(private):
    scores = {"loss": 0.4, "accuracy": 0.93, "balanced_accuracy": 0.5, "auc": 0.61, "log_loss": 0.4,
              "calibration_error": 0.02, "constant_accuracy": 0.93, "constant_log_loss": 0.25}  # fmt: skip
    path = private / "metrics.jsonl"
    path.write_text(path.read_text() + json.dumps({"step": 1000, "epsilon": 2.9, "validation": scores}) + "\n")
    run = reading.run(private)
    assert dict(run.scores)["auc"] == 0.61
    page = rendering.render(reading.report([private]))
    for words in ("93.0% (best constant answer: 93.0%)", "AUC", "0.610", "0.4 (best constant answer: 0.25)"):
        assert words in page
