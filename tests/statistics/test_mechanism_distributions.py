"""Every mechanism draws from the law it states, and a scale wrong by 3 % is noticed.

A law is tested by one p-value (the smallest of several, times their number). Seeded draws must not look suspicious
(p > 1e-4); draws of the secure stream must not look impossible (p > 1e-8, the rate of false alarms); draws at a scale
wrong by 3 % must (p < 1e-9), else the sizes below are too small for the test to mean anything.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

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
from sordina.mechanisms.discrete import VETTED_UP_TO
from sordina.random.generators import secure, seeded

SEEDED, SECURE, PLANTED = 1e-4, 1e-8, 1e-9


def smallest(*p_values):
    return min(1.0, len(p_values) * min(p_values))


def two_sided(law, value):
    return 2 * min(law.cdf(value), law.sf(value))


def against_pmf(draws, probability, support):
    """Chi-square over ``support``, everything outside it in one more cell; cells hold at least 20 expected draws."""
    expected = np.array([probability(int(k)) for k in support])
    support, expected = np.asarray(support)[expected * len(draws) >= 20], expected[expected * len(draws) >= 20]
    observed = np.array([(draws == k).sum() for k in support])
    rest = 1 - expected.sum()
    if rest * len(draws) >= 20:
        observed, expected = np.append(observed, len(draws) - observed.sum()), np.append(expected, rest)
    else:
        expected = expected * observed.sum() / len(draws) / expected.sum()
    return stats.chisquare(observed, expected * len(draws)).pvalue


def laplace_p(noise, scale):
    total = stats.gamma(len(noise))
    return smallest(
        stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue, two_sided(total, np.abs(noise).sum() / scale)
    )


def laplace(wrong, size, rng):
    noise = LaplaceMechanism(2.0, 0.7 / wrong).release(np.full(size, 3.25), rng) - 3.25
    return laplace_p(noise, LaplaceMechanism(2.0, 0.7).scale)


def gaussian(wrong, size, rng):
    right = GaussianMechanism(2.0, 0.7, 1e-6)
    noise = GaussianMechanism(2.0 * wrong, 0.7, 1e-6).release(np.full(size, -1e3), rng) + 1e3
    ks = stats.kstest(noise, stats.norm(scale=right.sigma).cdf).pvalue
    return smallest(ks, two_sided(stats.chi2(size), (noise**2).sum() / right.sigma**2))


def in_chunks(mechanism, size, rng):
    """Through OpenDP, when no generator is given."""
    return np.concatenate([mechanism.release(np.zeros(VETTED_UP_TO, int), rng) for _ in range(size // VETTED_UP_TO)])


def discrete_laplace(wrong, size, rng):
    draws = in_chunks(DiscreteLaplace(2, 0.5 / wrong), size, rng)
    return against_pmf(draws, DiscreteLaplace(2, 0.5).probability, range(-40, 41))


def discrete_gaussian(wrong, size, rng):
    right = DiscreteGaussian(1, 2.0, 1e-3)
    draws = in_chunks(DiscreteGaussian(wrong, 2.0, 1e-3), size, rng) if wrong >= 1 else None
    if draws is None:
        right = DiscreteGaussian(1 / wrong, 2.0, 1e-3)
        draws = in_chunks(DiscreteGaussian(1, 2.0, 1e-3), size, rng)
    return against_pmf(draws, right.probability, range(-20, 21))


def exponential(wrong, size, rng):
    """Level j holds (j + 1)^2 candidates of score -j: crowded where it is unlikely, which tells scales well apart."""
    scores = -np.repeat(np.arange(16.0), np.arange(1, 17) ** 2)
    mechanism = Exponential(wrong, 2.0)
    draws = -scores[[mechanism.release(scores, rng) for _ in range(size)]]
    chances = Exponential(1.0, 2.0).probabilities(scores)
    levels = np.bincount(-scores.astype(int), chances)
    mean = (levels * np.arange(16)).sum()
    spread = math.sqrt((levels * (np.arange(16) - mean) ** 2).sum() / size)
    mean_p = 2 * stats.norm.sf(abs(draws.mean() - mean) / spread)
    return smallest(mean_p, against_pmf(draws, lambda j: levels[j], range(16)))


def randomized_response(wrong, size, rng):
    right = RandomizedResponse(2.0, 4)
    draws = RandomizedResponse(2.0 / wrong, 4).release(np.full(size, 2), rng)
    return against_pmf(draws, lambda k: right.probability(k, 2), range(4))


def sparse_threshold(wrong, size, rng):
    right, mechanism = SparseVector(1, 1.0, 10, limit=3), SparseVector(1, 1.0 / wrong, 10, limit=3)
    noise = (mechanism.threshold_noise(size, rng or secure()) + 0.5) * mechanism.grid.step
    return laplace_p(noise, right.threshold_scale)


def sparse_query(wrong, size, rng):
    right, mechanism = SparseVector(1, 1.0, 10, limit=3), SparseVector(1, 1.0 / wrong, 10, limit=3)
    noise = (mechanism.query_noise(size, rng or secure()) + 0.5) * mechanism.grid.step
    return laplace_p(noise, right.query_scale)


def metric_laplace(dimension):
    def p_value(wrong, size, rng):
        epsilon = 0.8
        centre = np.linspace(-2, 2, dimension) + math.pi  # off the grid of releases, so that no noise is exactly 0
        noise = MetricLaplace(epsilon / wrong).release_rows(np.tile(centre, (size, 1)), rng) - centre
        radius = np.linalg.norm(noise, axis=1)
        along = noise.sum(axis=1) / math.sqrt(dimension) / radius
        return smallest(
            stats.kstest(radius, stats.gamma(dimension, scale=1 / epsilon).cdf).pvalue,
            two_sided(stats.gamma(dimension * size), radius.sum() * epsilon),
            variance_p(radius, dimension, MetricLaplace(epsilon).component_variance(dimension)),
            uniform_p(noise[:, 0] / radius, dimension),
            uniform_p(along, dimension),
            stats.spearmanr(radius, along).pvalue,
        )

    return p_value


def variance_p(radius, n, component_variance):
    """``|X|^2 = sum of n squared components`` has mean ``n v``; its variance follows from the moments of Gamma(n)."""
    squares = radius**2 / (n * component_variance)
    spread = math.sqrt((n + 2) * (n + 3) / (n * (n + 1)) - 1)
    return 2 * stats.norm.sf(abs(squares.mean() - 1) / spread * math.sqrt(len(radius)))


def uniform_p(cosine, n):
    """One coordinate of a uniform direction: a fair sign for n = 1, else ``(1 + c) / 2 ~ Beta((n-1)/2, (n-1)/2)``."""
    if n == 1:
        return stats.binomtest(int((cosine > 0).sum()), len(cosine)).pvalue
    return stats.kstest((1 + cosine) / 2, stats.beta((n - 1) / 2, (n - 1) / 2).cdf).pvalue


LAWS = {
    "laplace": (laplace, 200_000),
    "gaussian": (gaussian, 100_000),
    "discrete-laplace": (discrete_laplace, 200_000),
    "discrete-gaussian": (discrete_gaussian, 150_000),
    "exponential": (exponential, 25_000),
    "randomized-response": (randomized_response, 1_000_000),
    "sparse-vector-threshold": (sparse_threshold, 200_000),
    "sparse-vector-query": (sparse_query, 200_000),
    "metric-laplace-1": (metric_laplace(1), 200_000),
    "metric-laplace-2": (metric_laplace(2), 100_000),
    "metric-laplace-11": (metric_laplace(11), 30_000),
    "metric-laplace-1000": (metric_laplace(1000), 1_000),
}


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_the_law_stated(law):
    p_value, size = LAWS[law]
    assert p_value(1.0, size, seeded(20)) > SEEDED


@pytest.mark.parametrize("wrong", [0.97, 1.03])
@pytest.mark.parametrize("law", LAWS)
def test_a_scale_wrong_by_three_percent_is_rejected(law, wrong):
    p_value, size = LAWS[law]
    assert p_value(wrong, size, seeded(21)) < PLANTED


@pytest.mark.parametrize("law", LAWS)
def test_the_secure_stream_follows_the_same_law(law):
    p_value, size = LAWS[law]
    assert p_value(1.0, size // 4, None) > SECURE


@pytest.mark.parametrize(("mechanism", "law"), [(DiscreteLaplace(2, 0.5), 40), (DiscreteGaussian(1, 2.0, 1e-3), 20)])
def test_our_own_exact_sampler_on_the_secure_stream(mechanism, law):
    draws = mechanism.release(np.zeros(50_000, int), secure())
    assert against_pmf(draws, mechanism.probability, range(-law, law + 1)) > SECURE


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.7])
def test_probabilities_sum_to_one_and_tails_lie_below_the_shifted_normal(sigma):
    """The inequality that `DiscreteGaussian.error_bound` rests on."""
    mechanism = DiscreteGaussian(1, 2.0, 1e-3)
    object.__setattr__(mechanism, "_sigma", (int(sigma * 1000), 1000))
    chances = np.array([mechanism.probability(k) for k in range(-200, 201)])
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    for m in range(1, 30):
        assert chances[200 + m :].sum() <= stats.norm.sf((m - 1) / sigma)


def test_sparse_vector_answers_with_the_probability_of_two_laplaces():
    """One query x above the threshold: ``P(yes) = P(query noise - threshold noise >= -x)``, by convolution."""
    mechanism = SparseVector(1, 2.0, threshold=7.0)
    grid = np.linspace(-200, 200, 400_001)
    density = stats.laplace(scale=mechanism.threshold_scale).pdf(grid)
    rng, runs = seeded(22), 1_000
    for x in (-1.5, 0.0, 2.0):
        chance = (density * stats.laplace(scale=mechanism.query_scale).sf(grid - x)).sum() * (grid[1] - grid[0])
        yes = sum(bool(mechanism.release([7.0 + x], rng)[0]) for _ in range(runs))
        assert stats.binomtest(yes, runs, chance).pvalue > SEEDED


@pytest.mark.parametrize("rng", [None, seeded(23)], ids=["secure", "seeded"])
def test_the_largest_model_of_the_documents(rng):
    """n = 1 206 590: one draw has a radius known to 0.1 %, and a million components to check the direction by."""
    n, epsilon = 1_206_590, 3.0
    noise = MetricLaplace(epsilon).release(np.zeros(n), rng)
    assert two_sided(stats.gamma(n), np.linalg.norm(noise) * epsilon) > SECURE
    scale = math.sqrt(MetricLaplace(epsilon).component_variance(n))
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > SECURE


def test_frequencies_from_randomized_responses_are_unbiased_with_the_stated_error():
    """The mean squared error of bin k, data fixed (errata 14), from repeated surveys of the same people."""
    mechanism, people, surveys = RandomizedResponse(1.0, 5), 400, 4_000
    truth = np.repeat(np.arange(5), [0, 40, 80, 120, 160])
    rng = seeded(24)
    errors = np.array([mechanism.estimate(mechanism.release(truth, rng)) for _ in range(surveys)]) - [
        0,
        0.1,
        0.2,
        0.3,
        0.4,
    ]
    expected = np.array([mechanism.mean_squared_error(people, h) for h in (0, 0.1, 0.2, 0.3, 0.4)])
    assert np.abs(errors.mean(axis=0) / np.sqrt(expected / surveys)).max() < 4.5
    observed = (errors**2).mean(axis=0)
    assert np.abs(observed / expected - 1).max() < 4.5 * math.sqrt(2 / surveys)
    empty_bin_for_all = mechanism.mean_squared_error(people, 0.0)
    assert abs(observed[4] / empty_bin_for_all - 1) > 4.5 * math.sqrt(2 / surveys)
