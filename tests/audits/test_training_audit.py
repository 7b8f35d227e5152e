"""The library audits itself: a canary through the real private step, honest and with planted faults."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

import sordina as sd
from sordina.auditing.bounds import TwoRates
from sordina.auditing.canaries import audit_training
from sordina.auditing.scores import Scores
from sordina.privacy import Guarantee

LONG = pytest.mark.skipif(
    not os.environ.get("SORDINA_LONG"),
    reason="with SORDINA_LONG=1: test_self_audit and test_library_audit plant the same fault",
)


@pytest.mark.slow
def test_an_honest_run_is_never_audited_above_its_claim_and_the_audit_is_tight():
    result = audit_training(3.0, 1e-5, runs=3000 if os.environ.get("SORDINA_LONG") else 1500, seed=2)
    best = max(bound.epsilon for bound in result.bounds)
    assert 0.6 * 3 <= best <= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "options"),
    [
        ("no-noise", {"runs": 600}),
        ("half-noise", {"runs": 1500}),
        ("no-clipping", {"runs": 600}),
        ("raw-threshold", {"runs": 600}),
        pytest.param("sticky-sampler", {"runs": 600, "rate": 0.1}, marks=LONG),
    ],
)
def test_a_planted_fault_is_caught(plant, options):
    result = audit_training(3.0, 1e-5, seed=2, plant=plant, confidence=0.95, **options)
    assert max(bound.epsilon for bound in result.bounds) > 3


def test_a_lower_bound_fails_no_more_often_than_its_confidence_allows():
    """Randomised response at epsilon 1: in 200 audits at 90 %, at most 33 may exceed it (binomial, 1 in 1000)."""
    rng, right = np.random.default_rng(0), np.e / (1 + np.e)
    exceeded = 0
    for _ in range(200):
        inside, outside = rng.random(400) < right, rng.random(400) < 1 - right
        halves = Scores(inside.astype(float), outside.astype(float)).split(0.3, rng)
        exceeded += TwoRates().epsilon_lower(*halves, 0.0, 0.9).epsilon > 1
    assert exceeded <= 33


@pytest.mark.slow
def test_an_overfitted_model_is_found_out_and_a_private_one_is_not():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=draw)
    y = torch.randint(0, 2, (400,), generator=draw)
    members, others = (x[:200], y[:200]), (x[200:], y[200:])

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))

    loss = nn.functional.cross_entropy
    plain = sd.Trainer(
        model(), loss, sd.Budget(float("inf"), 0.0), batch_size=50, epochs=200, learning_rate=0.5, seed=0
    )
    found = sd.audit(plain.fit(members).model, members, others, attacks=["loss"], seed=0)
    assert found.results[0].auc.value > 0.75
    private = sd.Trainer(model(), loss, sd.Budget(3.0, 1e-5), batch_size=50, epochs=20, seed=0)
    claim = Guarantee(3.0, 1e-5)
    clean = sd.audit(private.fit(members).model, members, others, attacks=["loss"], claim=claim, seed=0)
    assert abs(clean.results[0].auc.value - 0.5) < 0.15
    assert max(bound.epsilon for bound in clean.results[0].bounds) <= 3
