"""The numbers behind the noise: calibration, constants, probabilities, against independent computations."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from sordina.errors import InvalidInput
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
from sordina.mechanisms.discrete import zcdp_log_delta
from sordina.mechanisms.exact import DyadicGrid
from sordina.mechanisms.gaussian import analytic_multiplier, gaussian_delta
from sordina.random.generators import seeded


def true_delta(epsilon, multiplier):
    """Balle and Wang 2018, Theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = 1 / mpmath.mpf(multiplier), mpmath.mpf(epsilon)

        def phi(x):
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 1.0, 3.0, 20.0, 300.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-200, 1e-12, 1e-9, 1e-5, 0.01, 0.5, 0.99])
def test_analytic_calibration_never_overspends_and_wastes_nothing(epsilon, delta):
    multiplier = analytic_multiplier(epsilon, delta)
    spent = float(true_delta(epsilon, multiplier) / delta)
    assert 1 - 1e-6 < spent <= 1
    assert gaussian_delta(epsilon, multiplier) == pytest.approx(delta, rel=1e-6)


def test_a_delta_too_small_to_write_down_is_not_called_zero():
    assert 0 < gaussian_delta(100.0, 10.0) < 1e-300
    assert gaussian_delta(100.0, 1e-3) == 1.0


def test_analytic_beats_classical_and_classical_is_the_formula():
    classical = GaussianMechanism(2.0, 0.5, 1e-5, calibration="classical")
    assert classical.sigma == pytest.approx(math.sqrt(2 * math.log(1.25e5)) * 2 / 0.5)
    assert GaussianMechanism(2.0, 0.5, 1e-5).sigma < classical.sigma
    assert float(true_delta(0.5, classical.noise_multiplier)) < 1e-5


def test_histogram_of_names():
    """10 000 names at (1, 1e-9), one name per person: no count is off by more than 34 with probability 0.99.

    The slide of 002 prints the bound with a sum where it needs a product (errata 11).
    """
    slide = math.sqrt(4 * math.log(1.25e9) * math.log(10_000 / 0.01))
    assert round(slide) == 34
    mechanism = GaussianMechanism(sensitivity=1, epsilon=1, delta=1e-9)
    bound = mechanism.error_bound(0.99, size=10_000)
    assert bound < 34
    counts = np.arange(10_000) % 500
    rng = seeded(8)
    worst = [np.abs(mechanism.release(counts, rng) - counts).max() for _ in range(40)]
    assert (np.array(worst) > bound).sum() <= 3
    assert max(worst) < 34


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("rho", [0.02, 0.05, 0.5])
def test_zcdp_conversion_is_above_the_truth_for_the_gaussian_it_must_cover(epsilon, rho):
    """Gaussian noise of multiplier ``1/sqrt(2 rho)`` is rho-zCDP: no conversion may promise less than its delta."""
    truth = math.log(gaussian_delta(epsilon, 1 / math.sqrt(2 * rho)))
    assert truth <= zcdp_log_delta(rho, epsilon) <= truth + 4


def test_discrete_gaussian_meets_its_delta_exactly_in_one_dimension():
    """``delta = sum_k max(0, P(k) - e^epsilon P(k - 1))`` of the pmf itself."""
    mechanism = DiscreteGaussian(1, 1.0, 1e-5)
    p = np.array([mechanism.probability(k) for k in range(-200, 201)])
    assert np.maximum(p[1:] - math.e * p[:-1], 0).sum() <= 1e-5
    assert math.exp(zcdp_log_delta(mechanism.rho, 1.0)) <= 1e-5


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 7.7, 1e6])
def test_discrete_laplace_probabilities(scale):
    mechanism = DiscreteLaplace(1, 1 / scale)
    assert scale <= mechanism.scale * (1 + 1e-15) <= scale * (1 + 2.0**-37)
    assert mechanism.probability(5, 2) == mechanism.probability(-3)
    if scale < 10:
        assert sum(mechanism.probability(k) for k in range(-1000, 1001)) == pytest.approx(1)
    ratio = mechanism.probability(0) / mechanism.probability(1) if scale > 0.01 else 1
    assert math.log(ratio) <= 1 / scale * (1 + 1e-12)
    m = mechanism.error_bound(0.95)
    beyond = 2 * math.exp(-(m + 1) / mechanism.scale) / (1 + math.exp(-1 / mechanism.scale))
    assert beyond <= 0.05 * (1 + 1e-9)


def test_densities_integrate_to_one():
    laplace, gaussian = LaplaceMechanism(2, 0.5), GaussianMechanism(2, 0.5, 1e-5)
    for mechanism, far in ((laplace, 200), (gaussian, 200)):
        total = quad(lambda x, m=mechanism: m.density(x, 3.0), -far, 3.0)[0]
        assert 2 * total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 11])
def test_metric_density_integrates_to_one(n):
    """Over spheres: ``surface(n) r^(n-1) K e^(-epsilon r)``; for n = 1 it is Laplace's density."""
    mechanism = MetricLaplace(0.7)
    surface = 2 * math.pi ** (n / 2) / math.gamma(n / 2)
    total = quad(
        lambda r: surface * r ** (n - 1) * math.exp(mechanism.log_density([r] + [0] * (n - 1), [0] * n)), 0, 200
    )
    assert total[0] == pytest.approx(1, abs=1e-7)
    assert mechanism.log_density([2.0], [5.0]) == pytest.approx(math.log(LaplaceMechanism(1, 0.7).density(2.0, 5.0)))


def test_metric_constants_in_high_dimension():
    """In log space up to the largest model of the documents, against 40 digits."""
    n, epsilon = 1_206_590, 1234.5
    with mpmath.workdps(40):
        half = mpmath.mpf(n) / 2
        exact = n * mpmath.log(epsilon) + mpmath.loggamma(half) - mpmath.log(2) - half * mpmath.log(mpmath.pi)
        exact -= mpmath.loggamma(n)
        assert MetricLaplace(epsilon).log_constant(n) == pytest.approx(float(exact), rel=1e-13)
    bound = MetricLaplace(epsilon).error_bound(0.99, n) * epsilon
    assert bound == pytest.approx(n + 2.3263 * math.sqrt(n), rel=1e-5)


@pytest.mark.parametrize(("epsilon", "categories"), [(0.1, 2), (1.0, 2), (1.0, 7), (5.0, 100)])
def test_randomized_response_formulas(epsilon, categories):
    mechanism, e = RandomizedResponse(epsilon, categories), math.exp(epsilon)
    assert mechanism.probability(1, 1) == pytest.approx(e / (e + categories - 1))
    assert mechanism.probability(0, 1) == pytest.approx(1 / (e + categories - 1))
    for h in (0.0, 0.3, 1.0):
        printed = ((1 - h) * (e + categories - 2) + h * e * (categories - 1)) / (50 * (e - 1) ** 2)
        assert mechanism.mean_squared_error(50, h) == pytest.approx(printed)
    assert mechanism.mean_squared_error(50) == pytest.approx((categories - 2 + e) / (50 * (e - 1) ** 2))


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 3.0, 40.0, 60.0, 800.0])
@pytest.mark.parametrize("categories", [2, 3, 1000])
def test_the_odds_that_are_drawn_never_exceed_epsilon(epsilon, categories):
    """In rational arithmetic: truth against one other category, as the 63-bit draw has it."""
    mechanism = RandomizedResponse(epsilon, categories)
    lies = mechanism._last_lie + 1
    with mpmath.workdps(50):
        odds = mpmath.mpf((1 << 63) - lies) * (categories - 1) / lies
        assert 0 <= mpmath.log(odds) <= epsilon
    assert math.isfinite(mechanism.mean_squared_error(10, 0.5))


def test_exponential_mechanism_takes_huge_scores():
    mechanism = Exponential(1.0, 1.0)
    assert mechanism.probabilities([1e300, 0.0]).tolist() == [1.0, 0.0]
    assert mechanism.release([1e308, 0.0, -1e308], seeded(0)) == 0
    assert mechanism.probabilities([3.0, 3.0]).tolist() == [0.5, 0.5]
    assert Exponential(1.0, 1.0, monotonic=True).temperature == mechanism.temperature / 2


def test_sparse_vector_shares_add_up():
    for limit in (1, 2, 10):
        mechanism = SparseVector(2.0, 0.5, 0, limit=limit)
        spent = 2.0 / mechanism.threshold_scale + 2 * limit * 2.0 / mechanism.query_scale
        assert spent == pytest.approx(0.5)


def test_sparse_vector_gives_at_most_its_limit():
    answers = SparseVector(1, 1000.0, threshold=0.0, limit=3).release(np.full(100, 50.0), seeded(0))
    assert answers.tolist() == [True] * 3
    assert SparseVector(1, 1000.0, threshold=0.0).release(np.full(100, -50.0), seeded(0)).tolist() == [False] * 100


@pytest.mark.parametrize("size", [1, 1000, 10**6])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
def test_the_grid_pays_for_its_rounding(size, epsilon):
    """The scale drawn covers the sensitivity after rounding, and exceeds the nominal one by less than stated."""
    laplace = LaplaceMechanism(3.0, epsilon)
    grid = DyadicGrid.under(laplace.scale)
    drawn = laplace._units(grid, size) * grid.step
    assert (3.0 + size * grid.step) / drawn <= epsilon
    assert drawn / laplace.scale < 1 + 2.0**-39 * (size / epsilon + 1)
    gaussian = GaussianMechanism(3.0, epsilon, 1e-6)
    grid = DyadicGrid.under(gaussian.sigma)
    drawn = gaussian._units(grid, size) * grid.step
    assert drawn / (3.0 + math.sqrt(size) * grid.step) >= gaussian.noise_multiplier
    assert drawn / gaussian.sigma < 1 + 2.0**-39 * (math.sqrt(size) * gaussian.noise_multiplier + 1)


def test_rounding_moves_no_two_values_apart_by_more_than_a_step():
    grid, rng = DyadicGrid(2.0**-3), seeded(9)
    x = np.concatenate([rng.normal(size=1000) * 10.0**k for k in (-20, 0, 5, 40, 300)])
    y = x + rng.normal(size=x.size)
    assert (np.abs(grid.round(x) - grid.round(y)) * grid.step <= np.abs(x - y) + grid.step).all()
    with pytest.raises(InvalidInput):
        DyadicGrid.under(1e300)


def test_bounds_of_the_textbook():
    assert LaplaceMechanism(1, 0.5).error_bound(0.95) == pytest.approx(2 * math.log(20))
    assert GaussianMechanism(1, 1, 1e-5).error_bound(0.95) == pytest.approx(
        1.959964 * GaussianMechanism(1, 1, 1e-5).sigma, rel=1e-6
    )
    assert Exponential(1, 0.5).error_bound(0.95, 10) == pytest.approx(4 * math.log(200))
    assert MetricLaplace(0.5).error_bound(0.95, 2) == pytest.approx(stats.gamma(2, scale=2).ppf(0.95), rel=1e-5)
