import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import sordina as sd
from sordina.auditing import findings
from sordina.auditing.findings import thinned
from sordina.auditing.membership.shadows import PlainTraining, train
from sordina.auditing.membership.target import Samples
from sordina.auditing.runs import write_audit
from sordina.errors import InvalidInput
from sordina.reproduction.attacks import membership_study

RECIPE = PlainTraining(epochs=60, batch_size=32, learning_rate=4e-3)


@pytest.fixture(scope="module")
def study():
    """Digits, one label in five at random: without privacy all is memorised; at epsilon 3 nothing may show."""
    attacks = ("loss", "lira-online", "attack-model")
    return membership_study(rows=600, recipe=RECIPE, attacks=attacks, shadows=8, seed=3)


def test_an_overfitted_model_is_seen_through(study):
    found = study.overfitted.audit
    assert study.overfitted.train_accuracy - study.overfitted.test_accuracy > 0.15
    assert found["loss"].auc.low > 0.55
    assert found["lira-online"].auc.value >= found["loss"].auc.value
    assert found["lira-online"].tpr[0.01].value > 0.05
    assert found["lira-online"].bound.epsilon > 0.5
    assert found["attack-model"].auc.low > 0.5


def test_the_same_model_at_epsilon_three_hides_its_rows(study):
    found = study.private.audit
    assert found.claim.epsilon <= 3
    for result in found.results:
        assert abs(result.auc.value - 0.5) < 0.05
        assert all(bound.epsilon <= 3 for bound in result.bounds)
    assert not found.exceeds_claim
    assert "not above the claimed epsilon 3" in found.verdict


def test_what_was_found_is_plain_data(study):
    facts = json.loads(json.dumps(study.to_dict()))
    first = facts["private"]["results"][0]
    assert first["attack"] == study.private.audit.ranked[0].name
    assert 0 <= first["auc"]["low"] <= first["auc"]["value"] <= first["auc"]["high"] <= 1
    shares = [1 - one["bounds"][0]["confidence"] for one in facts["private"]["results"]]
    assert sorted(shares) == pytest.approx([0.0125, 0.0125, 0.025])
    assert len(first["roc"]["fpr"]) <= 200


def rows(count, seed):
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(2, size=count))
    return torch.from_numpy(rng.normal(size=(count, 40))).float(), labels


@pytest.fixture(scope="module")
def parrot():
    """A model that has learnt 200 coin flips by heart."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 2))
    return train(model, Samples(*rows(200, 0)), PlainTraining(epochs=100, learning_rate=0.01), np.random.default_rng(0))


def test_a_claim_that_is_not_true_is_refuted_loudly(parrot):
    claim = sd.Guarantee(0.5, 1e-5)
    found = sd.audit(parrot, rows(200, 0), rows(200, 1), claim=claim, membership="fixed", seed=0)
    assert found.exceeds_claim
    assert found.verdict.startswith("CLAIM REFUTED")
    assert "epsilon 0.5 was claimed" in found.verdict
    assert found.epsilon_lower > 1


def test_a_model_that_claims_nothing_is_only_measured(parrot):
    honest = sd.Guarantee(math.inf, 1e-5)
    found = sd.audit(parrot, rows(200, 0), rows(200, 1), ["loss"], claim=honest, seed=0)
    assert not found.exceeds_claim
    assert "claims no privacy" in found.verdict
    assert found.to_dict()["claimed_epsilon"] == "inf"


def test_replace_one_claims_meet_their_own_bound(parrot):
    claim = sd.Guarantee(0.5, 1e-5, sd.Adjacency.REPLACE_ONE)
    found = sd.audit(parrot, rows(200, 0), rows(200, 1), ["loss"], claim=claim, membership="fixed", seed=0)
    assert "replace-one" in found["loss"].bound.assumes
    assert found.exceeds_claim


def test_an_untrained_model_proves_nothing():
    torch.manual_seed(0)
    found = sd.audit(nn.Linear(40, 2), rows(300, 0), rows(300, 1), seed=0)
    for result in found.results:
        assert result.bound.epsilon == 0
        assert result.auc.low < 0.5 < result.auc.high + 0.02


def test_bad_requests_are_refused_in_words(parrot):
    with pytest.raises(InvalidInput, match="no attack is called 'magic'"):
        sd.audit(parrot, rows(20, 0), rows(20, 1), ["magic"])
    with pytest.raises(InvalidInput, match="at least 10 members"):
        sd.audit(parrot, rows(5, 0), rows(20, 1))
    with pytest.raises(InvalidInput, match="confidence"):
        sd.audit(parrot, rows(20, 0), rows(20, 1), confidence=1.0)
    with pytest.raises(InvalidInput, match="cannot attack a str"):
        sd.audit("model", rows(20, 0), rows(20, 1))
    with pytest.raises(KeyError, match="no attack called"):
        sd.audit(parrot, rows(20, 0), rows(20, 1), ["loss"])["noisy"]


def test_findings_and_figures_are_written(study, tmp_path):
    folder = write_audit(study.private.audit, tmp_path / "audit")
    assert json.loads((folder / "audit.json").read_text())["claimed_epsilon"] <= 3
    findings.sigma_figure([[0.1, 0.6], [1.0, 0.7]], folder / "sigma.png")
    pictures = torch.rand(2, 1, 8, 8)
    findings.reconstruction_figure(pictures, [("none", pictures)], folder / "grid.png", [["1 dB", "2 dB"]])
    for name in ("roc", "epsilon", "sigma", "grid"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_thinned_curve_keeps_its_ends_and_its_low_rates(study):
    curve = study.private.audit["loss"].roc
    few = thinned(curve, 40)
    assert len(few.fpr) <= 40
    assert (few.fpr[0], few.tpr[0], few.fpr[-1], few.tpr[-1]) == (0, 0, 1, 1)
