"""What every mechanism keeps: kinds in and out, seeds, guarantees, events, error bounds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from sordina.accounting import events
from sordina.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    GaussianMechanism,
    LaplaceMechanism,
    MetricLaplace,
    RandomizedResponse,
    SparseVector,
)
from sordina.privacy import Adjacency, Guarantee, Trust, Unit
from sordina.random.generators import seeded

REAL = [LaplaceMechanism(1, 1.0), GaussianMechanism(1, 1.0, 1e-5), MetricLaplace(1.0)]
INTEGER = [DiscreteLaplace(1, 1.0), DiscreteGaussian(1, 1.0, 1e-5), RandomizedResponse(1.0, 10)]
CHOOSING = [Exponential(1.0, 1.0), SparseVector(1.0, 1.0, threshold=2.0)]
EVERY = REAL + INTEGER + CHOOSING


def name(mechanism):
    return type(mechanism).__name__


@pytest.mark.parametrize("mechanism", REAL, ids=name)
@pytest.mark.parametrize("rng", [None, 1], ids=["secure", "seeded"])
def test_real_values_come_back_as_they_went(mechanism, rng):
    def release(value):
        return mechanism.release(value, None if rng is None else seeded(rng))

    assert type(release(2.5)) is float
    assert type(release(3)) is float
    assert type(release(np.float32(2.5))) is np.float32
    table = release(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    assert type(table) is np.ndarray
    assert table.dtype == np.float32
    assert table.shape == (2, 3)
    assert release(np.arange(4)).dtype == np.float64
    assert release(np.array(1.5)).shape == ()
    assert release([1.0, 2.0]).shape == (2,)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        tensor = release(torch.ones(2, 3, dtype=dtype, requires_grad=True))
        assert tensor.dtype == dtype
        assert tensor.shape == (2, 3)
        assert not tensor.requires_grad
    assert release(torch.arange(3)).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("mechanism", INTEGER, ids=name)
@pytest.mark.parametrize("rng", [None, 1], ids=["secure", "seeded"])
def test_integers_come_back_as_they_went(mechanism, rng):
    def release(value):
        return mechanism.release(value, None if rng is None else seeded(rng))

    assert type(release(2)) is int
    assert type(release(np.int32(2))) is np.int64
    table = release(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert table.dtype == np.int64
    assert table.shape == (2, 3)
    tensor = release(torch.ones(2, 3, dtype=torch.int32))
    assert tensor.dtype == torch.int64
    assert tensor.shape == (2, 3)


def test_two_answers_may_be_booleans():
    mechanism = RandomizedResponse(1.0)
    assert type(mechanism.release(True)) is bool
    assert mechanism.release(np.array([True, False])).dtype == np.bool_
    assert mechanism.release(torch.tensor([True, False])).dtype == torch.bool


@pytest.mark.parametrize("mechanism", [LaplaceMechanism(1, 1.0), GaussianMechanism(1, 1.0, 1e-5)], ids=name)
def test_nothing_is_nothing_and_the_largest_float_stays_finite(mechanism):
    assert mechanism.release(np.zeros((0, 3))).shape == (0, 3)
    assert np.isfinite(mechanism.release(1.7e308))
    assert np.isfinite(LaplaceMechanism(1e4, 0.1).release(np.zeros(100, np.float16))).all()


@pytest.mark.parametrize("mechanism", EVERY, ids=name)
def test_a_seed_repeats_and_no_seed_does_not(mechanism):
    value = np.zeros(200, dtype=int)
    first, again = (np.asarray(mechanism.release(value, seeded(5))) for _ in range(2))
    assert np.array_equal(first, again)
    if not isinstance(mechanism, (Exponential, SparseVector)):
        assert not np.array_equal(mechanism.release(value), mechanism.release(value))


def test_the_value_is_not_changed_in_place():
    for mechanism in REAL:
        for value in (np.ones(5), torch.ones(5, dtype=torch.float64)):
            mechanism.release(value)
            assert (value == 1).all()


@pytest.mark.parametrize("mechanism", EVERY, ids=name)
def test_parameters_are_public_and_frozen(mechanism):
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.epsilon = 2.0
    assert dataclasses.replace(mechanism, unit="user").guarantee.unit is Unit.USER


def test_guarantees():
    terms = {"adjacency": "replace-one", "unit": "user", "trust": "local"}
    assert LaplaceMechanism(1, 2, **terms).guarantee == Guarantee(
        2.0, 0.0, Adjacency.REPLACE_ONE, Unit.USER, Trust.LOCAL
    )
    assert GaussianMechanism(1, 2, 1e-6).guarantee == Guarantee(2.0, 1e-6)
    assert DiscreteGaussian(1, 2, 1e-6).guarantee == Guarantee(2.0, 1e-6)
    assert RandomizedResponse(2).guarantee == Guarantee(2.0, 0.0, Adjacency.REPLACE_ONE, Unit.RECORD, Trust.LOCAL)
    assert MetricLaplace(2).guarantee == Guarantee(2.0, 0.0, Adjacency.REPLACE_ONE, Unit.RECORD, Trust.METRIC)


def test_events():
    assert LaplaceMechanism(3, 0.5).event() == events.Laplace(2.0)
    assert GaussianMechanism(3, 0.5, 1e-5).event() == events.Gaussian(GaussianMechanism(1, 0.5, 1e-5).noise_multiplier)
    for mechanism in (DiscreteLaplace(3, 0.5), Exponential(3, 0.5), SparseVector(3, 0.5, 0), RandomizedResponse(0.5)):
        assert mechanism.event() == events.PureDP(0.5)
    discrete = DiscreteGaussian(3, 0.5, 1e-5)
    assert discrete.event() == events.ZeroConcentrated(9 / (2 * discrete.sigma**2))
    assert MetricLaplace(0.5).event(distance=4) == events.PureDP(2.0)


def failures(mechanism, confidence, runs=400, size=50):
    """How often a release of ``size`` components breaks its bound."""
    rng, bound = seeded(6), mechanism.error_bound(confidence, size)
    zeros = np.zeros(size, dtype=int)
    if isinstance(mechanism, MetricLaplace):
        errors = np.linalg.norm(mechanism.release_rows(np.zeros((runs, size)), rng), axis=1)
    else:
        noise = np.concatenate([mechanism.release(zeros, rng) for _ in range(runs)])
        errors = np.abs(noise).reshape(runs, size).max(axis=1)
    return int((errors > bound).sum())


@pytest.mark.parametrize("mechanism", [m for m in REAL + INTEGER if not isinstance(m, RandomizedResponse)], ids=name)
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_error_bounds_hold_at_their_confidence(mechanism, confidence):
    """The failures of 400 runs are binomial: the mean plus 4.5 standard deviations is not passed."""
    expected = 400 * (1 - confidence)
    observed = failures(mechanism, confidence)
    assert observed <= expected + 4.5 * (expected * confidence) ** 0.5
    if not isinstance(mechanism, (DiscreteLaplace, DiscreteGaussian)):
        assert observed >= expected - 4.5 * (expected * confidence) ** 0.5, "the bound is looser than it need be"


def test_error_bounds_of_choices_and_surveys_hold():
    rng = seeded(7)
    chooser = Exponential(1.0, 1.0)
    scores = np.linspace(0, 20, 30)
    worst = chooser.error_bound(0.9, 30)
    assert sum(20 - scores[chooser.release(scores, rng)] > worst for _ in range(500)) <= 50
    watcher = SparseVector(1.0, 1.0, threshold=100.0, limit=2)
    margin = watcher.error_bound(0.9, 40)
    queries = np.where(np.arange(40) == 20, 100 + margin, 100 - margin)
    wrong = sum(watcher.release(queries, rng).tolist() != [False] * 20 + [True] + [False] * 19 for _ in range(200))
    assert wrong <= 20
    survey, truth = RandomizedResponse(1.0, 4), np.repeat([0, 1, 3], [500, 300, 200])
    bound = survey.error_bound(0.9, 1000)
    off = [np.abs(survey.estimate(survey.release(truth, rng)) - [0.5, 0.3, 0, 0.2]).max() for _ in range(300)]
    assert (np.array(off) > bound).sum() <= 30


def test_neither_torch_nor_opendp_is_imported_before_it_is_needed():
    code = (
        "import sys, sordina.mechanisms as m; m.Laplace(1, 1.0).release([1.0]); "
        "sys.exit(any(name.split('.')[0] in ('torch', 'opendp') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
