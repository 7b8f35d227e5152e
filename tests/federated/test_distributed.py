"""Distributed privacy: the law of a sum of rounded Gaussians, what a round costs, and who must be honest."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from sordina.accounting import Gaussian, Repeated, accountant
from sordina.clipping import Online
from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult, ClientUpdate
from sordina.federated.population import ClientsInTurn
from sordina.federated.privacy.distributed import Distributed, DistributedState
from sordina.federated.privacy.placement import Facts
from sordina.privacy import Adjacency, Budget
from sordina.random.noise import grid_of


def rounded(centre, sigma, places):
    """The probabilities of ``round(centre + sigma Z)``."""
    return norm.cdf((places + 0.5 - centre) / sigma) - norm.cdf((places - 0.5 - centre) / sigma)


def rounded_ideal(centre, sigma, m, places, fine=64):
    """The probabilities of ``round(centre + sqrt(m) sigma Z + U_2 + ... + U_m)``, by numerical integration."""
    grid = np.arange(places[0] - 1, places[-1] + 1 + 1 / fine, 1 / fine)
    density = norm.pdf(grid, centre, math.sqrt(m) * sigma)
    box = np.ones(fine + 1)
    box[[0, -1]] = 0.5
    for _ in range(m):
        density = np.convolve(density, box / fine, mode="same")
    return np.interp(places, grid, density)


@pytest.mark.parametrize(("m", "sigma"), [(2, 0.5), (2, 0.8), (3, 0.7), (5, 0.9), (3, 4.0)])
def test_the_sum_of_rounded_gaussians_is_the_rounded_gaussian(m, sigma):
    """The theorem's distance, at scales so small that it can be seen, and below seeing at a larger one."""
    rng = np.random.default_rng(m)
    centres, places = rng.uniform(-1, 1, m), np.arange(-60, 61)
    total = np.array([1.0])
    for centre in centres:
        total = np.convolve(total, rounded(centre, sigma, places))
    wide = np.arange(-60 * m, 60 * m + 1)
    middle = np.abs(wide) <= 40
    ideal = rounded_ideal(centres.sum(), sigma, m, wide[middle].astype(float))
    bound = m * 3.1**m * math.exp(-2 * math.pi**2 * sigma**2 * (m - 1) / m)
    assert np.abs(total[middle] - ideal).max() <= bound + 2e-4 / sigma**2


def test_a_sum_told_apart_at_a_coarse_grid_is_what_the_theorem_guards_against():
    """With noise far below a step, the sum shows its terms: the test above has something to see."""
    places = np.arange(-5, 6)
    one = np.convolve(rounded(0.2, 0.1, places), rounded(0.2, 0.1, places))
    assert np.abs(one[5:-5] - rounded_ideal(0.4, 0.1, 2, places.astype(float))).max() > 0.3


def placement(**changes):
    given = {
        "budget": Budget(2, 1e-5),
        "clients": 20,
        "participations": 4,
        "honest_share": 0.7,
        "dropout": 0.1,
    } | changes
    return Distributed.within(
        given["budget"], given["clients"], given["participations"],
        honest_share=given["honest_share"], dropout=given["dropout"], clipping=given.get("clipping"),
    )  # fmt: skip


def test_the_noise_of_the_honest_clients_alone_is_enough():
    one = placement()
    assert (one.least, one.honest, one.colluding) == (18, 12, 6)
    rng = np.random.default_rng(0)
    state = one.start(20_000)
    zeros = ClientResult(torch.zeros(one.honest, 20_000), torch.ones(one.honest))
    total = one.seal(zeros, state, rng).sums[0].double().numpy()
    step = grid_of(one.scales(state)[0])[0]
    assert kstest(total * step, norm(0, one.noise_multiplier).cdf).pvalue > 1e-4
    assert kstest(total * step / 1.1, norm(0, one.noise_multiplier).cdf).pvalue < 1e-4
    fault = replace(one, honest=one.least)  # the colluding ones forgotten
    weak = fault.seal(zeros, state, rng).sums[0].double().numpy() * grid_of(fault.scales(state)[0])[0]
    assert kstest(weak, norm(0, one.noise_multiplier).cdf).pvalue < 1e-4
    event = Repeated(Gaussian(one.noise_multiplier), 4)
    assert accountant("pld").epsilon(event, 1e-5, Adjacency.ADD_REMOVE) <= 2


def test_a_round_gives_the_mean_of_those_that_remained():
    one = placement(budget=Budget(1000.0, 1e-2))
    rng = np.random.default_rng(1)
    state = one.start(50)
    vectors = torch.randn(19, 50)
    update = replace(one.seal(ClientResult(vectors, torch.ones(19)), state, rng), answered=19)
    release, after = one.open(update, state, rng)
    clipped = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1.0)
    torch.testing.assert_close(release.mean, clipped.mean(dim=0), atol=5 * one.noise_multiplier / 10, rtol=0)
    assert after.remained.tolist() == [19]
    wrapped = replace(update, sums=(update.sums[0] % 2**32,))
    torch.testing.assert_close(one.open(wrapped, state, rng)[0].mean, release.mean)


def test_too_few_that_remain_release_nothing():
    one = placement()
    state = one.start(3)
    update = replace(
        one.seal(ClientResult(torch.zeros(17, 3), torch.ones(17)), state, np.random.default_rng(0)), answered=17
    )
    assert one.open(update, state, np.random.default_rng(0))[0] is None
    assert one.open(ClientUpdate(), state, np.random.default_rng(0))[0] is None


def test_records_that_are_not_finite_or_huge_add_at_most_the_bound():
    one = placement(budget=Budget(1e6, 1e-2))
    state = one.start(4)
    for bad in (math.nan, math.inf, 1e30, -3e38):
        vectors = torch.full((1, 4), bad)
        total = one.seal(ClientResult(vectors, torch.ones(1)).steady(), state, np.random.default_rng(0)).sums[0]
        release = one.open(ClientUpdate((total,), answered=18), state, np.random.default_rng(0))[0]
        assert release.mean.mul(18).norm() <= 1.0 + 20 * one.noise_multiplier


def test_what_really_remained_is_what_is_paid_for():
    one = placement()
    facts = Facts(4, 10, 4, 4, 20, DistributedState(10, None, torch.tensor([20, 20, 20, 20])))
    all_there, worst = one.statement(facts), one.statement(replace(facts, state=None))
    assert all_there.epsilon < worst.epsilon <= 2
    few = one.statement(replace(facts, state=DistributedState(10, None, torch.tensor([20, 18, 20, 20]))))
    assert all_there.epsilon < few.epsilon < worst.epsilon
    stopped = one.statement(
        replace(
            facts,
            state=DistributedState(
                10,
                None,
                torch.tensor(
                    [
                        20,
                    ]
                ),
            ),
        )
    )
    assert stopped.epsilon > few.epsilon


def test_a_round_given_up_while_it_was_unmasked_is_paid_for():
    """Wrong shares of two clients end a round; whoever has the others' shares and tries without these has its sum."""
    one = placement()
    kept = DistributedState(10, None, torch.tensor([20] * 9))
    lost, none_lost = one.statement(Facts(10, 10, 4, 10, 60, kept)), one.statement(Facts(9, 10, 4, 9, 60, kept))
    with_least = DistributedState(10, None, torch.tensor([one.least, *[20] * 9]))
    assert lost.epsilon > none_lost.epsilon
    assert lost.epsilon == one.statement(Facts(10, 10, 4, 10, 60, with_least)).epsilon


def test_more_colluding_means_more_noise():
    scales = [
        placement(clients=100, honest_share=share).scales(placement(clients=100).start(3))[0] for share in (1, 0.8, 0.6)
    ]
    assert scales == sorted(scales)
    assert scales[0] < scales[-1]


def test_a_policy_that_adapts_has_noise_on_all_its_answers():
    one = placement(clipping=Online(1.0))
    state = one.start(30)
    update = one.seal(ClientResult(torch.randn(18, 30), torch.ones(18)), state, np.random.default_rng(0))
    assert update.sums[0].shape == (61,)
    release, after = one.open(replace(update, answered=18), state, np.random.default_rng(0))
    assert release.mean.shape == (30,)
    assert after.policy.step == 1
    assert one.event().noise_multiplier == pytest.approx(one.noise_multiplier)


@pytest.mark.parametrize("changes", [
    {"clients": 2}, {"honest_share": 0.05}, {"clients": 10_002}, {"participations": 0}, {"dropout": 0.7},
    {"budget": Budget(1, 1e-13), "clients": 1000},
])  # fmt: skip
def test_what_cannot_hold_is_refused(changes):
    with pytest.raises(InvalidInput):
        placement(**changes)


def test_only_clients_in_turn_are_accounted_for():
    placement().check(ClientsInTurn(20), 5)
    with pytest.raises(InvalidInput, match="in turn"):
        placement().check(ClientsInTurn(10), 5)
