"""Closed forms: analytic Gaussian, several queries as one, joint queries, and the special functions behind them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from sordina.accounting import (
    Gaussian,
    Repeated,
    accountant,
    combined_multiplier,
    gaussian_delta,
    gaussian_epsilon,
    joint,
)
from sordina.accounting._numerics import fast_length, log_ndtr, ndtr, ndtri


def exact_delta(noise, epsilon):
    with mpmath.workdps(60):
        s, e = mpmath.mpf(noise), mpmath.mpf(epsilon)
        return mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


@pytest.mark.parametrize("noise", [1e-3, 0.05, 0.4, 1.0, 4.0, 30.0, 1e4, 1e8])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-3, 0.1, 1.0, 8.0, 60.0])
def test_delta_is_the_analytic_one_rounded_up(noise, epsilon):
    exact = exact_delta(noise, epsilon)
    found = gaussian_delta(noise, epsilon)
    assert found > 0
    assert mpmath.mpf(found) >= exact
    if exact > 1e-300 and noise <= 30:
        assert mpmath.mpf(found) <= exact * (1 + mpmath.mpf(10) ** -9)


@pytest.mark.parametrize(
    ("noise", "delta", "epsilon"),
    [(1.0, 1e-5, 4.377170), (3.730632, 1e-5, 1.0), (0.5, 1e-6, 10.997), (10.0, 1e-3, 0.1975), (1.0, 1e-12, 7.2385)],
)
def test_fixed_values(noise, delta, epsilon):
    """Checked against mpmath at 60 digits below, and against Balle and Wang's calibration for the second."""
    found = gaussian_epsilon(noise, delta)
    assert found == pytest.approx(epsilon, rel=2e-3)
    assert exact_delta(noise, found) <= delta
    assert exact_delta(noise, found * (1 - 1e-9)) > delta


def test_extremes():
    assert gaussian_epsilon(0.0, 1e-5) == math.inf
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_epsilon(math.inf, 0.0) == 0
    assert gaussian_epsilon(1e9, 1e-5) == 0
    assert gaussian_epsilon(1e-5, 1e-5) == pytest.approx(5e9, rel=1e-3)


def test_a_million_gaussians_are_one():
    event = Repeated(Gaussian(1000.0), 10**6)
    assert accountant().epsilon(event, 1e-6) == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-12)


def test_joint_queries_cost_as_one():
    """000 Proposition 1: 1 % on the gradient gives a side query of 7.124 times the noise."""
    gradient, query = joint(1.0, 0.01)
    assert (gradient, round(query, 3)) == (1.01, 7.124)
    for noise, inflation in ((0.3, 1e-6), (2.5, 0.3), (1.0, 10.0)):
        assert combined_multiplier(joint(noise, inflation)) == pytest.approx(noise, rel=1e-12)


def test_combining():
    assert combined_multiplier([]) == math.inf
    assert combined_multiplier([math.inf, 3.0]) == 3.0
    assert combined_multiplier([0.0, 3.0]) == 0.0
    assert combined_multiplier([1e-200, 1e-200]) == pytest.approx(1e-200 / math.sqrt(2))


def test_the_normal_distribution_is_exact_enough():
    """`pairs.ROUNDING` promises a relative 1e-12 for every tail."""
    points = np.concatenate([np.random.default_rng(0).uniform(-37, 9, 400), np.linspace(-3, 3, 100)])
    with mpmath.workdps(40):
        worst = max(
            abs(mpmath.mpf(float(value)) / mpmath.ncdf(mpmath.mpf(float(x))) - 1)
            for x, value in zip(points, ndtr(points), strict=True)
        )
        logs = max(abs(mpmath.mpf(log_ndtr(float(x))) - mpmath.log(mpmath.ncdf(float(x)))) for x in points)
    assert worst < 5e-13
    assert logs < 5e-13


def test_quantiles():
    assert ndtri(0.0) == -math.inf
    assert ndtri(1.0) == math.inf
    for probability in (1e-300, 1e-20, 0.3, 0.5, 0.999):
        assert float(ndtr(np.array([ndtri(probability)]))[0]) == pytest.approx(probability, rel=1e-10)


@pytest.mark.parametrize("size", [1, 2, 7, 17, 97, 1025, 99_991, 1_000_003])
def test_fast_lengths(size):
    length = fast_length(size)
    rest = length
    for prime in (2, 3, 5):
        while rest % prime == 0:
            rest //= prime
    assert rest == 1
    assert size <= length <= 1.2 * size + 1
