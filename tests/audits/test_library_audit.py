"""The audit of the library: nothing it trains may be audited above its claim; everything spoilt must be."""

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from sordina.auditing.canaries import (
    FAULTS,
    CanaryTrial,
    audit_one_run,
    audit_runs,
    audit_training,
    blind_split,
    fault,
    likelihood,
)
from sordina.auditing.one_run import Membership, OneRun
from sordina.auditing.self_audit import soundness_study
from sordina.clipping import Automatic, FallingNorm, Fixed, Online, Quantile, TypicalNorm
from sordina.errors import InvalidInput
from sordina.privacy import Budget
from sordina.sampling import FixedSize, Poisson
from sordina.training import make_plan

CONFIDENCE = 0.95


def plan(epsilon=4.0, rate=1.0, steps=1, delta=1e-5):
    return make_plan(Budget(epsilon, delta), Poisson(100 * rate, 100), steps)


SHAPES = {name: plan(epsilon=4.0) for name in FAULTS} | {"sticky-sampler": plan(epsilon=3.0, rate=0.1, steps=10)}
RUNS = dict.fromkeys(FAULTS, 400) | {"sticky-sampler": 60}
"""A record that is always drawn shows after a few runs, and the bound of so clear a leak takes long to compute."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    found = audit_runs(CanaryTrial(SHAPES[name], fault=fault(name)), RUNS[name], np.random.default_rng(1))
    assert found.exceeds_claim, found.verdict
    assert "CLAIM REFUTED" in found.verdict
    assert found.confidence == CONFIDENCE


@pytest.mark.parametrize("shape", [plan(epsilon=4.0), plan(epsilon=3.0, rate=0.1, steps=10)], ids=["full", "sampled"])
def test_without_a_fault_nothing_is_refuted(shape):
    found = audit_runs(CanaryTrial(shape), 400, np.random.default_rng(2))
    assert not found.exceeds_claim, found.verdict


def test_a_hundred_audited_runs_keep_their_claims_as_often_as_the_confidence_says():
    audits = 200 if os.environ.get("SORDINA_LONG") else 100
    found = soundness_study(audits, canaries=300, confidence=CONFIDENCE, seed=3)
    assert {tally.audits for tally in found.tallies} == {audits}
    assert len(found.tallies) == 3
    assert found.sound, found
    assert all(tally.share > 0.05 for tally in found.tallies)


@pytest.mark.parametrize("shape", [plan(epsilon=4.0), plan(epsilon=8.0, rate=0.25, steps=6)], ids=["full", "sampled"])
def test_the_audit_is_tight(shape):
    found = audit_one_run(CanaryTrial(shape, canaries=2000), np.random.default_rng(4), repeats=3)
    assert 0.8 * found.claim.epsilon <= found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_one_run_with_many_canaries_shows_four_fifths(epsilon):
    found = audit_one_run(CanaryTrial(plan(epsilon=epsilon), canaries=40_000), np.random.default_rng(8))
    assert 0.8 * found.claim.epsilon <= found.bound.epsilon <= found.claim.epsilon


def test_canaries_by_their_coordinate_are_those_written_out(monkeypatch):
    trial, included = CanaryTrial(plan(epsilon=4.0, steps=2), canaries=50), np.arange(50) % 3 == 0
    dense = trial(included, np.random.default_rng(1))
    monkeypatch.setattr("sordina.auditing.canaries._DENSE", 0)
    indexed = replace(trial)(included, np.random.default_rng(1))  # a trial keeps its model
    assert np.allclose(dense.projections, indexed.projections, atol=1e-5)


POLICIES = [
    Fixed(0.3),
    TypicalNorm(50.0, multiple=0.5, share=0.05),
    Online(),
    Quantile(),
    Automatic(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: type(one).__name__)
def test_every_policy_shows_most_of_its_epsilon_and_no_more(policy):
    found = audit_one_run(CanaryTrial(plan(epsilon=6.0, steps=2), policy, canaries=1500), np.random.default_rng(5))
    assert 0.7 * found.claim.epsilon <= found.bound.epsilon <= found.claim.epsilon


def test_a_policy_that_searches_in_the_first_steps_shows_less_there_and_no_more():
    """Half of the precision of these two steps goes to the search for the typical norm, which no canary sees."""
    trial = CanaryTrial(plan(epsilon=6.0, steps=2), FallingNorm(50.0), canaries=1500)
    found = audit_one_run(trial, np.random.default_rng(5))
    assert 0.1 * found.claim.epsilon <= found.bound.epsilon <= found.claim.epsilon


def test_replace_one_is_audited_with_the_opposite_in_the_canarys_place():
    shape = make_plan(Budget(4.0, 1e-5), FixedSize(9, 9), 1)
    found = audit_runs(CanaryTrial(shape, background=8), 400, np.random.default_rng(6))
    assert 0.2 * found.claim.epsilon <= found.bound.epsilon <= found.claim.epsilon
    spoilt = audit_runs(CanaryTrial(shape, background=8, fault=fault("half-noise")), 400, np.random.default_rng(7))
    assert spoilt.exceeds_claim


def test_scores_that_know_nothing_prove_nothing_more_often_than_they_may():
    """What is tuned on must not tell how many of the others fell on "in", or which side to bet on would be known."""
    rng, audits, above = np.random.default_rng(9), 1500, 0
    for _ in range(audits):
        halves = blind_split(rng.normal(size=200), rng.random(200) < 0.5, rng)
        above += OneRun(Membership("coins")).epsilon_lower(*halves, 0.0, CONFIDENCE).epsilon > 0
    assert above <= binom.ppf(0.999, audits, 1 - CONFIDENCE)


def test_the_likelihood_is_that_of_the_mixture():
    trial = CanaryTrial(plan(epsilon=3.0, rate=0.3, steps=5), canaries=50)
    trace = trial(np.arange(50) < 25, np.random.default_rng(8))
    nu, seen = trial.plan.noise_multiplier, trace.projections
    inside = 0.7 * np.exp(-(seen**2) / (2 * nu**2)) + 0.3 * np.exp(-((seen - 1) ** 2) / (2 * nu**2))
    expected = np.log(inside / np.exp(-(seen**2) / (2 * nu**2))).sum(axis=0)
    assert np.allclose(likelihood(trace, trial.plan), expected)


def test_jobs_by_name():
    found = audit_training(4.0, one_run=400, seed=0)
    assert found.name == "one run"
    assert found.claim.epsilon == pytest.approx(4.0, rel=0.01)
    with pytest.raises(InvalidInput, match="no fault is called 'rust'"):
        audit_training(4.0, plant="rust")
    with pytest.raises(InvalidInput, match="at least 8 runs"):
        audit_training(4.0, runs=2)
    with pytest.raises(InvalidInput, match="many canaries"):
        audit_training(4.0, one_run=3)
