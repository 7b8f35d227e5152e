"""Random walks: the account against sums written out, simulated paths, and limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordina.accounting import Gaussian, Repeated, accountant, noise_multiplier
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.walk import WalkPlan, linear_bounds, walk_noise
from sordina.privacy import Budget

ORDERS = np.array([1.5, 3.0, 8.0, 20.0])


def test_the_mixture_is_the_sum_over_distances():
    plan = WalkPlan(50, 7, 4.0, published=False)
    k = np.arange(1, 100_000)
    chances = 0.04 * 0.96 ** (k - 1.0)
    for order, found in zip(ORDERS, plan.divergences(ORDERS), strict=True):
        once = math.log((chances * np.exp(order * (order - 1) / 32 / k)).sum()) / (order - 1)
        assert found == pytest.approx(7 * once, rel=1e-3)
        assert found >= 7 * once * (1 - 1e-12)


def test_the_bound_covers_simulated_paths_with_several_steps_between_two_visits():
    """The exponential moment of the exact wear (convex minorant of the staircase) over drawn paths stays below."""
    rng, parties, contributions, noise, order = np.random.default_rng(0), 6, 4, 1.5, 3.0
    rate = order * (order - 1) / (2 * noise**2)
    moments = []
    for _ in range(4000):
        path = rng.integers(parties, size=60)
        total, steps, made = 0.0, [], 0
        start = 0
        for time, holder in enumerate([*path, 1]):  # the end is published: one more look
            if holder == 1:
                total += wear(np.array(steps, dtype=float) - start, time - start)
                start, steps = time, []
            elif holder == 0 and made < contributions:
                steps.append(time)
                made += 1
        moments.append(math.exp(rate * total))
    bound = math.exp((order - 1) * WalkPlan(parties, contributions, noise).divergences(np.array([order]))[0])
    assert np.mean(moments) + 3 * np.std(moments) / math.sqrt(len(moments)) < bound


def wear(steps: np.ndarray, length: int) -> float:
    """The least ``sum a^2`` with which unit shifts at ``steps`` are worn off within ``length`` noisy steps."""
    if not len(steps):
        return 0.0
    points = [*((float(step), float(count)) for count, step in enumerate(steps)), (float(length), float(len(steps)))]
    energy, at = 0.0, 0
    while at < len(points) - 1:
        slopes = [(points[j][1] - points[at][1]) / (points[j][0] - points[at][0]) for j in range(at + 1, len(points))]
        best = int(np.argmin(slopes))
        reach = points[at + 1 + best][0] - points[at][0]
        energy += slopes[best] ** 2 * reach
        at += 1 + best
    return energy


def test_noise_against_local_privacy_falls_with_the_number_of_parties():
    budget = Budget(1.0, 1e-6)
    local = noise_multiplier(lambda x: Repeated(Gaussian(x), 10_000), budget)
    gains = [local / walk_noise(budget, n, 10_000).noise_multiplier for n in (100, 1000)]
    for gain, n in zip(gains, (100, 1000), strict=True):
        assert gain > math.sqrt(n) / math.log(n)


def test_a_calibrated_walk_meets_its_budget():
    for ring in (False, True):
        plan = walk_noise(Budget(2.0, 1e-5), 40, 3, ring=ring)
        assert 1.99 < plan.epsilon(1e-5) <= 2.0
        assert accountant("pld").epsilon(plan.event(1e-5), 1e-5) <= 2.0 * (1 + 1e-6)


def test_on_the_ring_the_distance_counts():
    plan = WalkPlan(10, 4, 2.0, ring=True, published=False)
    assert plan.pair_event(2, 3).rho == pytest.approx(4 / 8)
    assert plan.pair_event(3, 2).rho == pytest.approx(4 / 9 / 8)
    assert plan.pair_event(2, 2).rho == 0
    shown = WalkPlan(10, 4, 2.0, ring=True)
    assert shown.pair_event(9, 0).rho == pytest.approx(4 / 8)
    assert shown.pair_event(8, 7).rho == pytest.approx((3 / 9 + 1 / 2) / 8)


def test_odd_walks_are_refused():
    for wrong in ((1, 1, 1.0), (5, 0, 1.0), (5, 1, 0.0)):
        with pytest.raises(InvalidInput):
            WalkPlan(*wrong)
    with pytest.raises(Unsupported):
        WalkPlan(5, 1, 1.0).pair_event(0, 1)
    with pytest.raises(InvalidInput):
        walk_noise(Budget(math.inf, 1e-5), 5, 1)
    assert linear_bounds(2.0) == (math.sqrt(10), 2.5)
