"""Calibration spends between 99 % and 100 % of the budget, never more, whoever judges."""

from __future__ import annotations

import math
import os

import dp_accounting as dp
import pytest
from dp_accounting import pld

from sordina.accounting import (
    NAMES,
    Composed,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Repeated,
    accountant,
    noise_multiplier,
)
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Budget

LONG = pytest.mark.skipif(not os.environ.get("SORDINA_LONG"), reason="with SORDINA_LONG=1: 13 s of processor time")


def training(rate, steps):
    return lambda noise: Repeated(PoissonSampled(rate, Gaussian(noise)), steps)


def spent_share(make, budget, adjacency=Adjacency.ADD_REMOVE, name="pld"):
    noise = noise_multiplier(make, budget, adjacency, name)
    return accountant(name).epsilon(make(noise), budget.delta, adjacency) / budget.epsilon


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [0.1, 3.0])
def test_every_accountant_spends_nearly_all(name, epsilon):
    assert 0.99 <= spent_share(training(0.01, 300), Budget(epsilon, 1e-5), name=name) <= 1


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "delta"),
    [
        (512 / 60000, 1170, 3.0, 1e-5),
        (1.0, 1, 1.0, 1e-5),
        (0.5, 10, 0.01, 1e-9),
        (1e-3, 10_000, 1.0, 1e-12),
        pytest.param(1e-4, 100_000, 1.0, 1e-12, marks=LONG),
        (0.02, 200, 60.0, 1e-6),
        (0.1, 5, 1e-3, 1e-5),
    ],
)
def test_pld_spends_nearly_all(rate, steps, epsilon, delta):
    assert 0.999 <= spent_share(training(rate, steps), Budget(epsilon, delta)) <= 1


def test_replace_one():
    def make(noise):
        return Repeated(FixedSizeSampled(50, 5000, Gaussian(noise)), 300)

    assert 0.99 <= spent_share(make, Budget(2.0, 1e-6), Adjacency.REPLACE_ONE) <= 1


def test_laplace_needs_no_delta():
    assert 0.99 <= spent_share(lambda noise: Repeated(Laplace(noise), 10), Budget(1.0, 0.0)) <= 1


def test_as_tight_as_dp_accounting():
    """The bench prints the same with the time it takes; here dp-accounting runs on a coarser grid, error below 1e-4."""
    ours = noise_multiplier(training(512 / 60000, 1170), Budget(3.0, 1e-5))
    theirs = dp.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=5e-4),
        lambda noise: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(512 / 60000, dp.GaussianDpEvent(noise)), 1170),
        3.0,
        1e-5,
        dp.ExplicitBracketInterval(0.7, 0.9),
        tol=1e-4,
    )
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_what_costs_nothing_needs_no_noise():
    assert noise_multiplier(training(0.0, 100), Budget(1.0, 1e-5)) == 0
    assert noise_multiplier(training(0.1, 0), Budget(1.0, 1e-5)) == 0
    assert noise_multiplier(training(0.1, 10), Budget(math.inf, 1e-5)) == 0


def test_a_fixed_part_leaves_less_for_noise():
    def with_selection(noise):
        return Composed((training(0.01, 100)(noise), PureDP(0.5)))

    budget = Budget(1.0, 1e-5)
    assert noise_multiplier(with_selection, budget) > noise_multiplier(training(0.01, 100), budget)
    with pytest.raises(InvalidInput, match="does not shrink"):
        noise_multiplier(lambda noise: Composed((Gaussian(noise), PureDP(2.0))), budget)


def test_gaussian_noise_cannot_reach_delta_zero():
    with pytest.raises(InvalidInput, match="delta is 0"):
        noise_multiplier(training(0.1, 10), Budget(1.0, 0.0))
