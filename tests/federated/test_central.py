"""Central privacy: one client changes what the server adds up by no more than the noise is made for."""

import math

import numpy as np
import pytest
import torch

from sordina.accounting import accountant
from sordina.clipping import Automatic, Fixed, Follow, Online, PerLayer, Quantile, Sector, Trailing
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.federated.messages import ClientResult, ClientUpdate
from sordina.federated.population import ClientsInTurn, SampledClients
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.placement import ClientWeights, Facts
from sordina.plan import make_plan
from sordina.privacy import Adjacency, Budget, Unit
from sordina.sampling import FixedSize, Poisson

SIZE = 6
LAYERS = (("a.weight", 4), ("a.bias", 1), ("b", 1))
BALLS = [
    Fixed(0.5), Quantile(threshold=0.3), Online(threshold=0.3), Automatic(), Trailing(threshold=0.4),
    PerLayer(Fixed(0.5)),
]  # fmt: skip
SECTORS = [Sector(1.0, 0.9, math.pi / 12), Sector(1.0, 0.2, 1.0, follow=Follow())]


def plan(sampler, rounds=10, epsilon=3.0):
    return make_plan(Budget(epsilon, 1e-5), sampler, rounds, unit=Unit.USER)


def central(clipping, sampler, **options):
    return Central(plan(sampler), clipping, layers=LAYERS, **options)


def outcome(rows):
    vectors = torch.tensor(np.asarray(rows), dtype=torch.float64)
    return ClientResult(vectors, torch.arange(1, len(vectors) + 1))


def sensitivity(one, other, placement, state):
    """How far apart the sums are, query by query, in units of the bound; together at most 1 per group."""
    worst = []
    groups = placement.columns(SIZE)
    left, right = list(one.sums), list(other.sums)
    for (_, _, policy), current in zip(groups, state.policies, strict=True):
        for bound in policy.bounds(current, placement.plan.adjacency):
            a, b = left.pop(0), right.pop(0)
            worst.append(float((a - b).norm()) / bound)
    return max(worst)


def warmed(placement, rng):
    """A state that has seen a few releases, so that adaptive bounds and directions are in place."""
    state = placement.start(SIZE)
    for _ in range(3):
        update = placement.seal(outcome(rng.standard_normal((8, SIZE)) + 1), state, rng)
        _, state = placement.open(ClientUpdate(update.sums, answered=8), state, rng)
    return state


EXTREMES = [[0.0] * SIZE, [1e30] * SIZE, [-1e30] * SIZE, [1e-30] * SIZE, [3.0, 0, 0, 0, 0, -2]]


@pytest.mark.parametrize("clipping", BALLS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("sampler", [Poisson(8, 100), FixedSize(8, 100)], ids=["poisson", "fixed-size"])
@pytest.mark.parametrize("weights", [ClientWeights(), ClientWeights(by_samples=True, cap=3)], ids=["uniform", "capped"])
def test_a_client_that_comes_goes_or_changes_stays_within_the_bound(clipping, sampler, weights):
    rng = np.random.default_rng(0)
    placement = central(clipping, sampler, weights=weights)
    state = warmed(placement, rng)
    others = rng.standard_normal((7, SIZE)).tolist()
    clients = EXTREMES + rng.standard_normal((3, SIZE)).tolist()
    sums = [placement.seal(outcome([*others, client]), state, rng) for client in clients]
    if placement.plan.adjacency is Adjacency.ADD_REMOVE:
        without = placement.seal(outcome(others), state, rng)
        assert max(sensitivity(one, without, placement, state) for one in sums) <= 1 + 1e-9
    else:
        pairs = [(a, b) for a in sums for b in sums]
        assert max(sensitivity(a, b, placement, state) for a, b in pairs) <= 1 + 1e-9


@pytest.mark.parametrize("clipping", SECTORS, ids=["sector", "following"])
def test_in_the_bounded_model_a_replaced_or_silent_client_stays_within_the_diameter(clipping):
    rng = np.random.default_rng(0)
    placement = central(clipping, FixedSize(8, 100))
    state = warmed(placement, rng)
    others = (rng.standard_normal((7, SIZE)) + 1).tolist()
    clients = EXTREMES + rng.standard_normal((5, SIZE)).tolist()
    sums = [placement.seal(outcome([*others, client]), state, rng) for client in clients]
    silent = placement.seal(outcome(others), state, rng)
    filled = silent + placement._missing(ClientUpdate(silent.sums, answered=7), state, rng)
    every = [*sums, filled]
    assert max(sensitivity(a, b, placement, state) for a in every for b in every) <= 1 + 1e-9
    if clipping.follow is None:
        assert max(sensitivity(silent, one, placement, state) for one in sums) > 1.5


def test_sector_clipping_is_refused_under_add_remove():
    with pytest.raises(Unsupported, match="replace-one"):
        central(Sector(), Poisson(8, 100)).start(SIZE)


def test_weights_without_a_bound_are_refused():
    with pytest.raises(Unsupported, match="no sensitivity"):
        central(Fixed(), Poisson(8, 100), weights=ClientWeights(by_samples=True))


@pytest.mark.parametrize("sampler", [Poisson(8, 100), FixedSize(8, 100)], ids=["poisson", "fixed-size"])
def test_the_noise_has_the_planned_scale(sampler):
    placement = central(Fixed(0.5), sampler)
    size = 40000
    state = placement.start(size)
    sums = placement.seal(ClientResult(torch.zeros(8, size, dtype=torch.float64), torch.ones(8)), state, None).sums
    release, _ = placement.open(ClientUpdate(sums, answered=8), state, np.random.default_rng(0))
    bound = 0.5 if placement.plan.adjacency is Adjacency.ADD_REMOVE else 1.0
    scale = placement.plan.noise_multiplier * bound / 8
    assert float(release.mean.std()) == pytest.approx(scale, rel=4 / math.sqrt(2 * size))


@pytest.mark.parametrize("clipping", [*BALLS, *SECTORS], ids=lambda c: type(c).__name__)
def test_every_policy_costs_what_the_plan_says(clipping):
    placement = central(clipping, FixedSize(8, 100))
    spent = placement.statement(Facts(10, SIZE, 0))
    assert spent.epsilon == pytest.approx(placement.plan.guarantee().epsilon, rel=1e-6)
    assert spent.epsilon <= 3.0
    half = placement.statement(Facts(5, SIZE, 0))
    assert half.epsilon < spent.epsilon


def test_user_level_accounting_uses_client_sampling():
    few, many = (Central(plan(Poisson(batch, 1000), 50), Fixed()) for batch in (10, 500))
    assert few.plan.noise_multiplier < many.plan.noise_multiplier
    judge = accountant("pld")
    assert judge.epsilon(few.plan.event(), 1e-5, Adjacency.ADD_REMOVE) <= 3.0


def test_an_empty_round_is_noised_like_any_other():
    placement = central(Fixed(0.5), Poisson(8, 100))
    release, _ = placement.open(ClientUpdate(), placement.start(SIZE), np.random.default_rng(0))
    assert release.mean.shape == (SIZE,)
    assert release.mean.abs().min() > 0


def test_other_clients_or_more_rounds_than_planned_are_refused():
    placement = central(Fixed(), Poisson(8, 100))
    placement.check(SampledClients(Poisson(8, 100)), 10)
    with pytest.raises(InvalidInput, match="sampler"):
        placement.check(ClientsInTurn(8), 10)
    with pytest.raises(InvalidInput, match="sampler"):
        placement.check(SampledClients(Poisson(9, 100)), 10)
    with pytest.raises(BudgetRefused, match="11 rounds"):
        placement.check(SampledClients(Poisson(8, 100)), 11)


def test_central_privacy_without_a_budget_is_refused():
    with pytest.raises(InvalidInput, match="finite epsilon"):
        Central(plan(Poisson(8, 100), epsilon=math.inf), Fixed())


@pytest.mark.parametrize(("length", "grows"), [(10.0, True), (0.001, False)])
def test_adaptive_policies_move_with_what_was_released(length, grows):
    placement = Central(make_plan(Budget(3, 1e-5), Poisson(400, 4000), 5, unit=Unit.USER), Quantile(threshold=0.3))
    rng = np.random.default_rng(0)
    state = placement.start(SIZE)
    for _ in range(5):
        _, state = placement.open(placement.seal(outcome(length * np.ones((400, SIZE))), state, rng), state, rng)
    assert (state.policies[0].threshold > 0.35) == grows
    assert (state.policies[0].threshold < 0.25) == (not grows)
