"""What neighbouring inputs give away, measured from outputs alone, never exceeds what the mechanism claims.

Outputs are sorted into cells. On one half of the runs a set of cells is chosen that tells the inputs apart best; on the
other half the bound ``ln((P - delta) / Q)`` is taken from Clopper-Pearson limits, so it is valid whatever was chosen.
A mechanism with half its noise must be caught by the same bound.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import betaincinv

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
from sordina.random.generators import secure, seeded

RISK = 1e-3
"""Chance that one limit is wrong. A false alarm needs both to be, together: below 1e-5."""


def limits(hits, runs):
    """Clopper-Pearson, each side with risk `RISK`."""
    low = betaincinv(hits, runs - hits + 1, RISK) if hits else 0.0
    high = betaincinv(hits + 1, runs - hits, 1 - RISK) if hits < runs else 1.0
    return low, high


def bound(first, second, delta):
    """ln((low P - delta) / high Q), at least 0."""
    low, high = limits(first[0], first[1])[0], limits(second[0], second[1])[1]
    return math.log((low - delta) / high) if low > delta + high else 0.0


def one_way(first, second, delta):
    half = len(first) // 2
    cells = np.unique(np.concatenate([first[:half], second[:half]]))
    p = np.array([(first[:half] == cell).sum() for cell in cells])
    q = np.array([(second[:half] == cell).sum() for cell in cells])
    order = np.argsort(-(p + 1) / (q + 1), kind="stable")
    best = max(
        range(1, len(cells) + 1), key=lambda m: bound((p[order[:m]].sum(), half), (q[order[:m]].sum(), half), delta)
    )
    chosen = cells[order[:best]]
    inside = [int(np.isin(sample[half:], chosen).sum()) for sample in (first, second)]
    return bound((inside[0], len(first) - half), (inside[1], len(second) - half), delta)


def epsilon_lower(first, second, delta=0.0):
    """A lower confidence bound on epsilon, from cells observed on two neighbouring inputs."""
    return max(one_way(first, second, delta), one_way(second, first, delta))


def additive(make):
    """Noise on 0 or on 1, the sensitivity being 1."""

    def outputs(loudness, rng):
        mechanism = make(loudness)
        runs = np.zeros(60_000, dtype=int)
        return [np.floor(mechanism.release(runs + x, rng) * 4).clip(-40, 44) for x in (0, 1)]

    return outputs


def metric(loudness, rng):
    """Two points of the plane at distance 1, seen along the line that joins them."""
    mechanism = MetricLaplace(1.0 / loudness)
    return [
        np.floor(mechanism.release_rows(np.tile([x, 0.0], (60_000, 1)), rng)[:, 0] * 2).clip(-20, 22) for x in (0, 1)
    ]


def response(loudness, rng):
    return [RandomizedResponse(1.0 / loudness, 3).release(np.full(60_000, x), rng) for x in (0, 1)]


def exponential(loudness, rng):
    """One score falls and all others rise: the worst pair, which needs the factor 2."""
    mechanism = Exponential(1.0, 1.0 / loudness)
    pair = ([1.0] + [0.0] * 8, [0.0] + [1.0] * 8)
    return [np.array([mechanism.release(scores, rng) for _ in range(12_000)]) for scores in pair]


def monotonic(loudness, rng):
    mechanism = Exponential(1.0, 1.0 / loudness, monotonic=True)
    pair = ([-2.0, 0.0, 0.0], [-1.0, 0.0, 0.0])
    return [np.array([mechanism.release(scores, rng) for _ in range(12_000)]) for scores in pair]


def sparse(loudness, rng):
    """All queries but the last rise by 1, the last falls by 1; the cell is where the first yes stands."""
    mechanism = SparseVector(1.0, 2.0 / loudness, threshold=0.5)
    cells = []
    for queries in (np.append(np.zeros(5), 1.0), np.append(np.ones(5), 0.0)):
        answers = [mechanism.release(queries, rng) for _ in range(5_000)]
        cells.append(np.array([len(a) if a[-1] else 99 for a in answers]))
    return cells


CLAIMS = {
    # outputs, claimed epsilon and delta, share of epsilon that must be found for the measurement to mean anything
    "laplace": (additive(lambda loud: LaplaceMechanism(loud, 1.0)), 1.0, 0.0, 0.8),
    "gaussian": (additive(lambda loud: GaussianMechanism(loud, 1.0, 0.05)), 1.0, 0.05, 0.8),
    "discrete-laplace": (additive(lambda loud: DiscreteLaplace(1, 1.0 / loud)), 1.0, 0.0, 0.8),
    "discrete-gaussian": (additive(lambda loud: quieter_gaussian(loud)), 1.0, 0.05, 0.5),
    "exponential": (exponential, 1.0, 0.0, 0.6),
    "exponential-monotonic": (monotonic, 1.0, 0.0, 0.5),
    "sparse-vector": (sparse, 2.0, 0.0, 0.4),
    "randomized-response": (response, 1.0, 0.0, 0.8),
    "metric-laplace": (metric, 1.0, 0.0, 0.6),
}


def quieter_gaussian(loudness):
    """A discrete Gaussian whose sigma is off by ``loudness``: its sensitivity may not go below 1."""
    mechanism = DiscreteGaussian(1.0, 1.0, 0.05)
    numerator, denominator = mechanism._sigma
    object.__setattr__(mechanism, "_sigma", (int(numerator * loudness), denominator))
    return mechanism


@pytest.mark.parametrize("name", CLAIMS)
def test_the_claim_is_never_exceeded(name):
    outputs, epsilon, delta, share = CLAIMS[name]
    measured = epsilon_lower(*outputs(1.0, seeded(30)), delta)
    print(name, measured)
    assert share * epsilon <= measured <= epsilon


@pytest.mark.parametrize("name", CLAIMS)
def test_half_the_noise_is_caught(name):
    outputs, epsilon, delta, _ = CLAIMS[name]
    measured = epsilon_lower(*outputs(0.5, seeded(31)), delta)
    print(name, measured)
    assert measured > epsilon


@pytest.mark.parametrize("name", ["laplace", "gaussian", "randomized-response", "metric-laplace"])
def test_the_claim_is_never_exceeded_on_the_secure_stream(name):
    outputs, epsilon, delta, share = CLAIMS[name]
    assert share * 0.9 * epsilon <= epsilon_lower(*outputs(1.0, secure()), delta) <= epsilon


def test_without_privacy_the_estimate_is_large():
    assert epsilon_lower(np.zeros(20_000), np.ones(20_000)) > 6


def on_one_grid(release):
    """Whether outputs lie on the middles of cells of width 2^-40, whatever the secret."""
    cells = np.concatenate([release(np.full(1_000, x), seeded(32)) for x in (0.0, 1 / 3, 1e3 + 0.1)]) * 2.0**40 - 0.5
    return np.array_equal(cells, np.rint(cells))


def test_low_bits_of_the_output_say_nothing_of_the_input():
    """Mironov 2012: where naive noise can land depends on the secret, and tells it."""
    assert on_one_grid(LaplaceMechanism(1.0, 1.0).release)
    assert on_one_grid(
        GaussianMechanism(1 / GaussianMechanism(1.0, 1.0, 1e-5).noise_multiplier * 1.5, 1.0, 1e-5).release
    )
    assert not on_one_grid(lambda value, rng: value + rng.laplace(size=value.shape))
