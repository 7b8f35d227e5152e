"""When an audit may call a claim refuted: several attacks share the error, and chance decided who was in."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sordina as sd
from sordina.auditing.audit import audit_scores
from sordina.auditing.bounds import shared_confidences
from sordina.auditing.one_run import OneRun
from sordina.auditing.runs import audit_run
from sordina.training.recipe import TrainingRecipe, train

ROWS = 200
CLAIM = sd.Guarantee(0.7, 0.0)


class Told:
    """An attack that is told the answer for a share ``right`` of the rows and guesses on the others."""

    def __init__(self, right, seed=0, name="told"):
        self.right, self.seed, self.name = right, seed, name

    def scores(self, target, samples):
        rng = np.random.default_rng(self.seed)
        member = samples.inputs[:, 0].numpy() > 0
        known = rng.random(len(member)) < self.right
        sure = np.where(member, 1.0, -1.0) * (2 + rng.random(len(member)))
        return np.where(known, sure, rng.normal(size=len(member)))


def sides(shift=0.0):
    inside, outside = torch.ones(ROWS, 3), -torch.ones(ROWS, 3)
    labels = torch.zeros(ROWS, dtype=torch.long)
    return (inside + shift, labels), (outside, labels)


def verdicts(attacks, **rest):
    model = nn.Linear(3, 2)
    return sd.audit(model, *sides(), attacks, seed=0, **{"claim": CLAIM, "membership": "fixed", **rest})


def test_several_attacks_share_the_error():
    lucky = Told(0.6)
    alone, strict = (verdicts([lucky], confidence=level).epsilon_lower for level in (0.95, 0.975))
    assert strict < alone
    claim = sd.Guarantee((alone + strict) / 2, 0.0)
    assert verdicts([lucky], claim=claim).exceeds_claim
    companions = [Told(0.0, seed=number, name=f"blind {number}") for number in range(1, 10)]
    found = verdicts([lucky, *companions], claim=claim)
    assert not found.exceeds_claim, "one of ten attacks may not decide at the error of one"
    assert sorted(1 - one.bound.confidence for one in found.results) == pytest.approx([0.025 / 9] * 9 + [0.025])
    assert "The 10 attacks together: confidence 0.95" in found.verdict
    assert "confidence 97.5 %" in found.verdict


def test_blind_attacks_refute_no_more_often_together_than_the_confidence_says():
    """Guarantee (almost) 0 is true of a model that saw nothing; 20 blind attacks a time."""
    nothing, wrong, audits = sd.Guarantee(1e-9, 0.0), 0, 30
    model = nn.Linear(3, 2)
    for audit in range(audits):
        attacks = [Told(0.0, seed=1000 * audit + number) for number in range(20)]
        wrong += sd.audit(model, *sides(), attacks, claim=nothing, membership="fixed", seed=audit).exceeds_claim
    assert wrong <= 0.15 * audits


def test_a_difference_that_chance_did_not_make_refutes_nothing():
    found = verdicts([Told(0.9)], membership="own")
    assert not found.exceeds_claim
    assert found.results[0].suspicious
    assert found.verdict.startswith("NOT A REFUTATION")
    assert "not decided by chance" in found.verdict
    assert json.loads(json.dumps(found.to_dict()))["results"][0]["suspicious"] is True


def test_chance_has_to_be_declared():
    model = nn.Linear(3, 2)
    assert not sd.audit(model, *sides(), [Told(0.9)], claim=CLAIM, seed=0).exceeds_claim


def test_a_run_against_the_test_file_cannot_be_refuted_and_one_with_rows_left_out_can(tmp_path):
    """Labels drawn at random are in the training file only: the loss tells the files apart, without any leak."""
    shifted = TrainingRecipe("digits", "mlp", epsilon=0.5, epochs=1, batch_size=300, random_labels=1.0, seed=0)
    train(shifted, tmp_path / "shifted")
    found = audit_run(tmp_path / "shifted", ["loss"], seed=0)
    assert not found.results[0].random_split
    assert not found.exceeds_claim
    split = TrainingRecipe("digits", "mlp", epsilon=0.5, epochs=1, batch_size=300, rows=700, seed=0)
    train(split, tmp_path / "split")
    assert audit_run(tmp_path / "split", ["loss"], seed=0).results[0].random_split


def test_words_say_what_is_known_and_no_more():
    claims = {"REFUTED": CLAIM, "NOT PRIVATE": None, "CLAIMED, NOT VERIFIED": sd.Guarantee(50.0, 0.0)}
    for word, claim in claims.items():
        found = verdicts([Told(0.0, name="blind"), Told(0.9)], claim=claim)
        assert found.word == word
        assert found.ranked[0].name == "told"
        assert found.to_dict()["results"][0]["knows"]
    assert "proves nothing" in found.verdict
    assert replace(found, proved=True).word == "PRIVATE"
    assert verdicts([Told(0.9)], membership="own").word == "CLAIMED, NOT VERIFIED"


def test_what_was_once_called_a_random_split_still_works():
    with pytest.warns(DeprecationWarning, match="membership"):
        assert verdicts([Told(0.9)], membership="own", random_split=True).exceeds_claim
    with pytest.warns(DeprecationWarning, match="Membership"):
        assert OneRun(coins=True).membership.drawn == "coins"
    with pytest.raises(sd.errors.InvalidInput, match=r"coins:0\.2"):
        verdicts([Told(0.9)], membership="chance")


def test_scores_from_elsewhere_meet_the_same_bounds():
    rng = np.random.default_rng(0)
    member = rng.random(2000) < 0.2
    scores = {"good": member + 0.3 * rng.normal(size=2000), "blind": rng.normal(size=2000)}
    found = audit_scores(scores, member, membership="coins:0.2", claim=CLAIM, seed=0)
    assert found.exceeds_claim
    assert found.ranked[0].name == "good"
    assert not found["blind"].exceeds_claim
    with pytest.raises(sd.errors.InvalidInput, match="3 scores for 2000 records"):
        audit_scores({"short": [1, 2, 3]}, member)


def test_shared_confidences():
    assert shared_confidences(0.95, 1) == (0.95,)
    assert shared_confidences(0.9, 2, favourite=1) == pytest.approx((0.95, 0.95))
    assert sum(1 - one for one in shared_confidences(0.9, 17, favourite=3)) == pytest.approx(0.1)
    with pytest.raises(sd.errors.InvalidInput, match="at least one attack"):
        verdicts([])
