"""Where accountants stumble: extreme noise, rates, steps and deltas. Never optimistic, never a crash, never endless."""

from __future__ import annotations

import math

import pytest

from sordina.accounting import (
    NAMES,
    ApproximateDP,
    Composed,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Repeated,
    ZeroConcentrated,
    accountant,
    gaussian_epsilon,
    noise_multiplier,
)
from sordina.privacy import Adjacency, Budget, Guarantee


def poisson(rate, noise, steps):
    return Repeated(PoissonSampled(rate, Gaussian(noise)), steps)


def fixed(batch, population, noise, steps):
    return Repeated(FixedSizeSampled(batch, population, Gaussian(noise)), steps)


EXTREMES = {
    "tiny noise": (poisson(0.01, 0.01, 1000), 1e-5),
    "small noise": (poisson(0.01, 0.05, 1000), 1e-5),
    "absurd noise": (poisson(0.1, 1e-200, 1), 1e-5),
    "huge noise": (poisson(0.01, 1e4, 100), 1e-12),
    "endless noise": (poisson(0.01, 1e150, 100), 1e-5),
    "a million steps": (poisson(1e-3, 1.0, 10**6), 1e-12),
    "rate one": (poisson(1.0, 1.0, 10), 1e-5),
    "rate nearly one": (poisson(1 - 1e-12, 1.0, 10), 1e-5),
    "rate tiny": (poisson(1e-9, 1.0, 10**6), 1e-12),
    "delta tiny": (poisson(0.01, 1.0, 100), 1e-100),
    "delta large": (poisson(0.01, 1.0, 100), 0.9),
    "epsilon near zero": (poisson(1e-4, 50.0, 10), 1e-8),
    "rare and loud": (poisson(1e-4, 0.1, 10**5), 1e-5),
    "many tiny pure": (Repeated(PureDP(1e-9), 10**6), 1e-5),
    "few huge pure": (Repeated(PureDP(1e4), 3), 1e-5),
}


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_have_an_answer_above_pld(case):
    event, delta = EXTREMES[case]
    least = accountant("pld").epsilon(event, delta)
    assert least >= 0
    for name in ("rdp", "zcdp", "advanced", "basic"):
        answer = accountant(name).epsilon(event, delta)
        assert answer >= least * (1 - 1e-3) - 1e-12, name


@pytest.mark.parametrize("case", ["tiny noise", "a million steps", "rate nearly one", "delta tiny", "rare and loud"])
def test_sampling_never_costs_more_than_not_sampling(case):
    event, delta = EXTREMES[case]
    unsampled = gaussian_epsilon(event.event.event.noise_multiplier / math.sqrt(event.count), delta)
    assert accountant("pld").epsilon(event, delta) <= unsampled * (1 + 1e-4)


def test_rate_one_is_no_sampling_and_continuous_there():
    exact = gaussian_epsilon(1 / math.sqrt(10), 1e-5)
    for adjacency in Adjacency:
        assert accountant("pld").epsilon(poisson(1.0, 1.0, 10), 1e-5, adjacency) == exact
        assert accountant("pld").epsilon(poisson(1 - 1e-12, 1.0, 10), 1e-5, adjacency) == pytest.approx(exact, rel=1e-4)
    replaced = accountant("pld").epsilon(fixed(10**9 - 1, 10**9, 1.0, 10), 1e-5, Adjacency.REPLACE_ONE)
    assert replaced == pytest.approx(exact, rel=1e-4)
    assert accountant("pld").epsilon(fixed(7, 7, 1.0, 10), 1e-5, Adjacency.REPLACE_ONE) == exact


def test_small_noise_is_counted_in_hits():
    """At noise 0.05 a step in which the unit takes part shows it: epsilon counts how often that happens.

    Of 1000 steps at rate 0.01, more than 26 are hits with probability 5.6e-6, and more than 25 with 1.6e-5. Each costs
    about 1/(2 s^2) + ln q = 195, give or take 20.
    """
    assert 24 * 195 < accountant("pld").epsilon(poisson(0.01, 0.05, 1000), 1e-5) < 29 * 195


def test_huge_noise_is_the_central_limit():
    """With much noise the sum of losses is normal: mu = q sqrt(k) / s."""
    found = accountant("pld").epsilon(poisson(0.01, 1e4, 10_000), 1e-12)
    assert found == pytest.approx(gaussian_epsilon(1e4, 1e-12), rel=1e-3)


def test_total_variation_below_delta_costs_nothing():
    assert accountant("pld").epsilon(poisson(0.01, 1e4, 100), 1e-5) == 0
    assert accountant("pld").epsilon(poisson(1e-12, 0.5, 10**6), 1e-5) == 0


@pytest.mark.parametrize("name", NAMES)
def test_delta_zero(name):
    judge = accountant(name)
    assert judge.epsilon(Repeated(PureDP(0.5), 4), 0.0) == pytest.approx(2.0)
    assert judge.epsilon(Laplace(0.5), 0.0) == pytest.approx(2.0)
    assert judge.epsilon(PoissonSampled(0.1, PureDP(1.0)), 0.0) == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
    assert math.isinf(judge.epsilon(Gaussian(1.0), 0.0))
    assert math.isinf(judge.epsilon(poisson(0.1, 1.0, 3), 0.0))
    assert math.isinf(judge.epsilon(ApproximateDP(0.1, 1e-9), 0.0))


@pytest.mark.parametrize("name", NAMES)
def test_a_leak_above_delta_is_no_privacy(name):
    judge = accountant(name)
    assert math.isinf(judge.epsilon(Repeated(ApproximateDP(0.1, 1e-6), 50), 1e-5))
    assert math.isfinite(judge.epsilon(Repeated(ApproximateDP(0.1, 1e-7), 50), 1e-5))


def test_vague_events_compose():
    both = Composed((ZeroConcentrated(0.1), ZeroConcentrated(0.2), poisson(0.01, 1.0, 100)))
    merged = Composed((ZeroConcentrated(0.3), poisson(0.01, 1.0, 100)))
    assert accountant("pld").epsilon(both, 1e-6) == pytest.approx(accountant("pld").epsilon(merged, 1e-6))
    assert accountant("zcdp").epsilon(ZeroConcentrated(0.3), 1e-6) == accountant("pld").epsilon(
        ZeroConcentrated(0.3), 1e-6
    )
    assert accountant("rdp").epsilon(ZeroConcentrated(0.3), 1e-6) == pytest.approx(
        accountant("zcdp").epsilon(ZeroConcentrated(0.3), 1e-6), rel=0.01
    )


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 8.0, 1e6, math.inf])
def test_delta_at_any_epsilon(epsilon):
    for event in (poisson(0.01, 1.0, 1000), Repeated(Laplace(1.0), 5), Repeated(ApproximateDP(0.5, 1e-9), 3)):
        delta = accountant("pld").delta(event, epsilon)
        assert 0 <= delta <= 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("event", [Repeated(PureDP(1e4), 3), Repeated(Laplace(1e-4), 3)])
def test_losses_beyond_the_range_of_exp(name, event):
    """One of these all but shows the data: hardly any epsilon below 3e4 will do."""
    assert accountant(name).epsilon(event, 1e-5) > 29_999.9


@pytest.mark.parametrize("name", ["pld", "gdp"])
def test_endless_noise(name):
    assert accountant(name).epsilon(poisson(0.01, 1e150, 100), 1e-5) == pytest.approx(0.0, abs=1e-12)
    assert accountant(name).epsilon(fixed(1, 100, 1e150, 100), 1e-5, Adjacency.REPLACE_ONE) < 1e-12


def test_delta_at_the_largest_loss_is_what_leaks():
    assert accountant("pld").delta(Repeated(Laplace(1.0), 5), 5.0) == pytest.approx(0.0, abs=1e-12)
    assert accountant("pld").delta(Repeated(ApproximateDP(0.5, 1e-9), 3), 2.0) == pytest.approx(3e-9, rel=1e-6)


def test_a_leak_without_losses_costs_nothing_or_everything():
    judge = accountant("pld")
    assert judge.epsilon(ApproximateDP(0.0, 1e-7), 1e-6) == 0
    assert judge.epsilon(Repeated(ApproximateDP(0.0, 1e-7), 5), 1e-6) == 0
    assert judge.epsilon(ApproximateDP(0.0, 1e-5), 1e-6) == math.inf
    assert judge.delta(ApproximateDP(0.0, 1e-7), 0.5) == pytest.approx(1e-7)


def test_the_least_delta_that_a_float_can_be_is_answered():
    """It overflowed: the part of delta for what lies beyond the grid was rounded to nothing."""
    tiny = accountant("pld").epsilon(poisson(0.1, 1.0, 5), 5e-324)
    assert tiny >= accountant("pld").epsilon(poisson(0.1, 1.0, 5), 1e-280)


def test_a_budget_that_delta_alone_pays_for_is_calibrated_in_a_few_looks():
    """At delta 0.999 next to no noise is needed; the search went on for minutes to find how little to twelve digits."""
    looks = []

    def event(noise):
        looks.append(noise)
        return Repeated(PoissonSampled(0.5, Laplace(noise)), 3)

    noise = noise_multiplier(event, Budget(1e-9, 0.5))
    assert len(looks) < 60
    assert accountant("pld").epsilon(event(noise), 0.5) <= 1e-9 < accountant("pld").epsilon(event(noise * 0.99), 0.5)


def test_a_group_under_an_absurd_epsilon_has_no_guarantee_and_no_overflow():
    assert Guarantee(1e9, 1e-5).group(3).delta == 1.0
    assert Guarantee(1.0, 1e-5).group(3).delta == pytest.approx(3 * math.exp(2) * 1e-5)
