"""Correlated noise: its coefficients, its sensitivity against every pattern of participation, and its law."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sordina.accounting import Gaussian, PoissonSampled, Repeated, accountant, linear_gaussian
from sordina.clipping import Fixed, arrange
from sordina.errors import InvalidInput
from sordina.mechanisms import BandedNoise, LambdaCGD, ToeplitzNoise, correlated
from sordina.plan import Plan, make_plan
from sordina.privacy import Budget
from sordina.private_step import PastNoise, PrivateStep
from sordina.sampling import CyclicPoisson, Poisson

BUDGET = Budget(3, 1e-5)


def matrix(coefficients, steps, rows=None):
    """C, with as many rows as its columns are long if ``rows`` says so."""
    c = np.zeros((rows or steps, steps))
    for s in range(steps):
        for k, value in enumerate(coefficients):
            if s + k < len(c):
                c[s + k, s] = value
    return c


def patterns(steps, separation):
    """Every set of steps that one unit may take part in: its turns, or some of them."""
    for first in range(separation):
        turns = range(first, steps, separation)
        for size in range(1, len(turns) + 1):
            yield from itertools.combinations(turns, size)


@pytest.mark.parametrize(
    "noise", [BandedNoise(2), BandedNoise(3), LambdaCGD(0.5), LambdaCGD(0.9), BandedNoise(4), ToeplitzNoise()]
)
@pytest.mark.parametrize("separation", [1, 2, 3])
def test_the_sensitivity_is_the_worst_over_all_patterns_and_signs(noise, separation):
    steps = 7
    c = noise.coefficients(steps)
    whole = matrix(c, steps, steps + len(c))
    worst = 0.0
    for pattern in patterns(steps, separation):
        for signs in itertools.product((1, -1), repeat=len(pattern)):
            worst = max(worst, float(np.linalg.norm(whole[:, pattern] @ signs)))
    claimed = correlated.sensitivity(c, steps, separation)
    cut = matrix(c, steps)
    shown = max(float(np.linalg.norm(cut[:, pattern].sum(axis=1))) for pattern in patterns(steps, separation))
    assert shown <= claimed <= worst * (1 + 1e-9)  # columns that the end cuts short count whole, rows beyond it do not
    if len(c) <= separation:
        assert claimed == pytest.approx(math.sqrt(math.ceil(steps / separation)))


@pytest.mark.parametrize("noise", [LambdaCGD(0.7), ToeplitzNoise()])
def test_the_sensitivity_is_that_of_the_linear_gaussian_accountant(noise):
    steps, separation = 12, 4
    c = noise.coefficients(steps)
    added = np.linalg.inv(matrix(c, steps))
    turns = np.eye(steps)[:, ::separation]
    exact = linear_gaussian.mu(turns, noise=added, together=True)
    claimed = correlated.sensitivity(c, steps, separation)
    assert exact <= claimed <= exact * 1.05
    cut = sum(1 - sum(one**2 for one in c[: steps - turn]) for turn in range(0, steps, separation))
    assert exact**2 == pytest.approx(claimed**2 - cut, rel=1e-9)  # the end of the run cuts columns short


def test_coefficients_are_the_best_nearby():
    rng = np.random.default_rng(0)
    best = correlated.optimal(60, 5)
    found = correlated.sum_error(best, 60)
    assert found < 0.6 * correlated.sum_error((1.0,), 60)
    for _ in range(20):
        other = correlated.normalised(
            tuple(sorted(np.abs(np.array(best) + 0.02 * rng.standard_normal(5)), reverse=True))
        )
        assert correlated.sum_error(other, 60) >= found * (1 - 1e-5)
    k = np.arange(1, 5)
    root = correlated.normalised((1.0, *np.cumprod((2 * k - 1) / (2 * k))))
    assert found < correlated.sum_error(root, 60)


@pytest.mark.parametrize("given", [(1.0, 1.1), (0.0, 0.0), (1.0, -0.1), (), (math.nan,)])
def test_coefficients_for_which_nothing_is_proved_are_refused(given):
    with pytest.raises(InvalidInput):
        correlated.normalised(given)


def test_no_column_is_longer_than_one():
    for noise in (
        BandedNoise(3),
        BandedNoise(7),
        LambdaCGD(0.3),
        LambdaCGD(0.99),
        BandedNoise(2, (3.0, 1.0)),
        ToeplitzNoise(),
    ):
        assert math.fsum(one**2 for one in noise.coefficients(50)) <= 1


def released(noise, steps=5, size=40_000, nu=0.7, bounds=(1.0, 0.1, 0.1, 3.0, 3.0)):
    """What a run of empty steps releases, in units of bound times multiplier, and the noise it states."""
    coefficients = noise.coefficients(steps)
    past = PastNoise(coefficients, steps, getattr(noise, "decay", None))
    rng, seen, stated = np.random.default_rng(3), [], []
    for bound in bounds:
        total = torch.zeros(size)
        stated.append(past.release(total, nu * bound, rng) / (nu * bound))
        seen.append(total.double().numpy() / (nu * bound))
    return np.array(seen), stated


def apart(seen, covariance):
    """How far the covariance of ``seen`` is from ``covariance``, in standard errors: whitened, largest entry."""
    white = np.linalg.solve(np.linalg.cholesky(covariance), seen)
    return float(np.abs(white @ white.T / seen.shape[1] - np.eye(len(seen))).max()) * math.sqrt(seen.shape[1] / 2)


@pytest.mark.parametrize(
    "noise", [BandedNoise(1), BandedNoise(2), BandedNoise(4), LambdaCGD(0.6), LambdaCGD(0.95), ToeplitzNoise()]
)
def test_the_noise_that_ran_has_the_covariance_of_the_plan_and_of_no_other(noise):
    seen, stated = released(noise)
    inverse = np.linalg.inv(matrix(noise.coefficients(5), 5))
    assert apart(seen, inverse @ inverse.T) < 5
    assert np.sqrt(np.diag(inverse @ inverse.T)) == pytest.approx(stated)
    for wrong in (ToeplitzNoise(), LambdaCGD(0.55), LambdaCGD(0.65), LambdaCGD(0.9), BandedNoise(2), BandedNoise(3)):
        other = np.linalg.inv(matrix(wrong.coefficients(5), 5))
        if wrong != noise:
            assert apart(seen, other @ other.T) > 8, wrong


def test_lambda_cgd_takes_back_a_part_of_the_last_noise_and_keeps_one_vector():
    noise = LambdaCGD(0.8)
    seen, _ = released(noise, size=2000)
    first = noise.coefficients(5)[0]
    fresh = [seen[0]]
    for row in seen[1:]:
        fresh.append(row + 0.8 * fresh[-1])
    assert np.std(fresh) == pytest.approx(1 / first, rel=0.05)
    past = PastNoise(noise.coefficients(5), 5, 0.8)
    for _ in range(5):
        past.release(torch.zeros(3), 1.0, np.random.default_rng(0))
    assert len(past.noise) == 1


# What it costs.


def test_bands_pay_once_a_turn_at_as_many_times_the_rate():
    plan = Plan(CyclicPoisson(10, 1000, 8), 44, BUDGET, 1.3, noise=BandedNoise(8))
    one = PoissonSampled(0.08, Gaussian(1.3))
    assert plan.event() == Repeated(one, 6)
    assert [plan.charged(steps)[1] for steps in (0, 1, 8, 9, 40, 41)] == [0, 1, 1, 2, 5, 6]


def test_independent_noise_is_plain_dp_sgd():
    plain = make_plan(BUDGET, Poisson(10, 1000), 40)
    for noise in (BandedNoise(1), LambdaCGD(0.0)):
        parts = noise.parts(10, 1000, 40)
        plan = make_plan(BUDGET, CyclicPoisson(10, 1000, parts), 40, noise=noise)
        assert plan.event() == plain.event()
        assert plan.coefficients == (1.0,)
        assert plan.noise_of_sum == pytest.approx(plain.noise_of_sum)


def test_noise_that_reaches_beyond_a_turn_is_not_amplified():
    plan = make_plan(BUDGET, CyclicPoisson(10, 1000, 100), 200, noise=LambdaCGD(0.5))
    (event, count), whole = plan.charged(1), correlated.sensitivity(plan.coefficients, 200, 100)
    assert count == 1
    assert isinstance(event, Gaussian)
    assert event.noise_multiplier == pytest.approx(plan.noise_multiplier / whole)
    assert whole == pytest.approx(math.sqrt(2))
    near = make_plan(BUDGET, CyclicPoisson(10, 1000, 2), 200, noise=BandedNoise(4))
    assert isinstance(near.charged(1)[0], Gaussian)
    assert (
        near.noise_multiplier
        > 5 * make_plan(BUDGET, CyclicPoisson(10, 1000, 4), 200, noise=BandedNoise(4)).noise_multiplier
    )


def test_toeplitz_noise_is_the_square_root_of_prefix_sums_and_pays_for_the_whole_run():
    c = np.array(ToeplitzNoise().coefficients(9))
    assert c / c[0] == pytest.approx([math.comb(2 * k, k) / 4**k for k in range(9)])
    root = matrix(c / c[0], 9)
    assert root @ root == pytest.approx(np.tril(np.ones((9, 9))))
    parts = ToeplitzNoise().parts(10, 1000, 300)
    plan = make_plan(BUDGET, CyclicPoisson(10, 1000, parts), 300, noise=ToeplitzNoise())
    whole = correlated.sensitivity(plan.coefficients, 300, 100)
    assert plan.charged(7) == (Gaussian(math.nextafter(plan.noise_multiplier / whole, 0.0)), 1)
    assert whole > math.sqrt(3), "columns of one unit overlap, and no coefficient is negative"
    one_pass = make_plan(BUDGET, CyclicPoisson(10, 1000, parts), 100, noise=ToeplitzNoise())
    assert one_pass.charged(100) == (PoissonSampled(1.0, Gaussian(one_pass.noise_multiplier)), 1)
    alone = Gaussian(one_pass.noise_multiplier)
    assert accountant("pld").delta(one_pass.event(), 1.0) >= accountant("pld").delta(alone, 1.0) * (1 - 1e-6)


def test_noise_that_cannot_be_kept_is_refused_before_the_first_step():
    plan = make_plan(BUDGET, CyclicPoisson(10, 1000, 100), 300, noise=ToeplitzNoise())
    with pytest.raises(InvalidInput, match="LambdaCGD, which keeps one vector"):
        PrivateStep(plan, arrange(Fixed(1.0), ["w"]), [10**12])


@pytest.mark.parametrize(
    ("sigma", "bands", "steps", "rate"), [(1.2, 8, 100, 0.1), (0.8, 16, 250, 0.25), (2.0, 4, 30, 1.0)]
)
def test_epsilon_agrees_with_dp_accounting(sigma, bands, steps, rate):
    """The event of amplified BandMF as DeepMind's jax_privacy states it: ceil(steps / bands) Poisson samples."""
    dp = pytest.importorskip("dp_accounting")
    theirs = dp.pld.PLDAccountant(value_discretization_interval=1e-3)
    theirs.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), math.ceil(steps / bands))
    plan = Plan(CyclicPoisson(100 * rate / bands, 100, bands), steps, BUDGET, sigma, noise=BandedNoise(bands))
    ours = accountant("pld").epsilon(plan.event(), 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)


def test_theorem_one_by_simulation_and_a_missing_normalisation_is_seen():
    """A unit at its worst, everything else revealed: how often the likelihood ratio passes e^epsilon is delta."""
    parts, steps, rate, nu, epsilon = 2, 4, 0.3, 0.9, 1.0
    noise = BandedNoise(parts)
    plan = Plan(CyclicPoisson(15, 100, parts), steps, BUDGET, nu, noise=noise)
    assert plan.sampler.rate == pytest.approx(rate)
    claimed = accountant("pld").delta(plan.event(), epsilon)
    rng = np.random.default_rng(0)

    def simulated(c):
        columns = matrix(c, steps)[:, ::parts]  # in part 0
        coins = rng.random((200_000, columns.shape[1])) < rate
        y = coins @ columns.T + nu * rng.standard_normal((200_000, steps))
        shown = (y @ columns - (columns**2).sum(axis=0) / 2) / nu**2
        loss = np.log1p(rate * np.expm1(shown)).sum(axis=1)
        return float(np.maximum(0, 1 - np.exp(epsilon - loss)).mean())

    c = noise.coefficients(steps)
    assert simulated(c) == pytest.approx(claimed, rel=0.03)
    assert simulated(tuple(one / c[0] for one in c)) > 1.3 * claimed


def test_correlated_noise_goes_with_turns_only():
    with pytest.raises(InvalidInput, match="CyclicPoisson"):
        Plan(Poisson(10, 100), 10, BUDGET, 1.0, noise=BandedNoise(2))
    with pytest.raises(InvalidInput, match="bands"):
        BandedNoise(20).parts(10, 100, 50)


def test_turns_lie_apart_and_parts_are_drawn_for_each_unit_alone():
    sampler, rng = CyclicPoisson(20, 1000, 10), np.random.default_rng(0)
    divided = sampler.divide(1000, rng)
    seen = [sampler.draw_part(divided, step, rng) for step in range(400)]
    for step, units in enumerate(seen):
        assert set(divided[units]) <= {step % 10}
    taken = np.bincount(np.concatenate(seen), minlength=1000)
    assert taken.mean() == pytest.approx(400 / 10 * 0.2, rel=0.05)
    counts = np.bincount(divided, minlength=10)
    assert 40 < counts.min() <= 100 <= counts.max() < 160  # coins, not equal shares
    with pytest.raises(InvalidInput, match="number of the step"):
        sampler.draw(1000, rng)


@pytest.mark.parametrize("given", [(1.0, 1.0), (0.5, 0.6), (0.8, -0.6)])
def test_a_noise_of_ones_own_is_not_believed(given):
    class Own:
        def coefficients(self, steps):
            return given

        def parts(self, batch_size, population, steps):
            return 2

    with pytest.raises(InvalidInput, match="coefficients"):
        make_plan(Budget(3, 1e-5), CyclicPoisson(10, 100, 2), 8, noise=Own())


def test_only_lambda_cgd_keeps_one_vector():
    @dataclass(frozen=True)
    class Decaying(BandedNoise):
        decay: float = 0.9

    plan = make_plan(Budget(3, 1e-5), CyclicPoisson(10, 100, 3), 9, noise=Decaying(3))
    step = PrivateStep(plan, arrange(Fixed(1.0), ["w"]), [4])
    assert step.past[0]._decay is None
