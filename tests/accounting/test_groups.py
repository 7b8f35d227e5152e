"""Groups of units: their own event where there is one, the guarantee of one unit otherwise."""

from __future__ import annotations

import math

import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from sordina.accounting import (
    ApproximateDP,
    Composed,
    FixedSizeSampled,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    Repeated,
    ZeroConcentrated,
    accountant,
    gaussian_epsilon,
    group,
    group_epsilon,
)
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Guarantee


def test_events_of_groups():
    assert group(Gaussian(3.0), 3) == Gaussian(1.0)
    assert group(Laplace(3.0), 3) == Laplace(1.0)
    assert group(PureDP(0.5), 3) == PureDP(1.5)
    assert group(ZeroConcentrated(0.1), 3).rho == pytest.approx(0.9)
    claim = Guarantee(0.2, 1e-6).group(3)
    assert group(ApproximateDP(0.2, 1e-6), 3) == ApproximateDP(claim.epsilon, claim.delta)
    assert group(PoissonSampled(0.1, Gaussian(2.0)), 4) == GroupSampled(0.1, 4, Gaussian(2.0))
    assert group(Repeated(Composed((Gaussian(2.0),)), 5), 2) == Repeated(Composed((Gaussian(1.0),)), 5)
    assert group(Gaussian(3.0), 1) == Gaussian(3.0)


@pytest.mark.parametrize("size", [2, 5])
def test_a_sampled_group_is_a_binomial_mixture(size):
    ours = group_epsilon(Repeated(PoissonSampled(0.02, Gaussian(1.2)), 60), 1e-6, size)
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.2,
        list(range(size + 1)),
        [float(stats.binom.pmf(taken, size, 0.02)) for taken in range(size + 1)],
        value_discretization_interval=1e-3,
    ).self_compose(60)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-3)


def test_a_sampled_group_costs_more_than_one_and_less_than_unsampled():
    event = Repeated(PoissonSampled(0.05, Gaussian(2.0)), 50)
    costs = [group_epsilon(event, 1e-6, size) for size in (1, 2, 3, 6)]
    assert costs == sorted(costs)
    assert costs[0] == accountant().epsilon(event, 1e-6)
    assert costs[-1] < gaussian_epsilon(2.0 / 6 / math.sqrt(50), 1e-6)
    assert group_epsilon(Repeated(PoissonSampled(1.0, Gaussian(6.0)), 4), 1e-6, 3) == gaussian_epsilon(1.0, 1e-6)


def test_the_tight_way_beats_the_lemma():
    event = Repeated(PoissonSampled(0.02, Gaussian(1.2)), 60)
    tight = group_epsilon(event, 1e-6, 3)
    lemma = group_epsilon(event, 1e-6, 3, accountant="rdp")
    assert tight < lemma < math.inf


def test_the_lemma_holds_what_it_promises():
    event = Repeated(FixedSizeSampled(10, 1000, Gaussian(2.0)), 100)
    found = group_epsilon(event, 1e-5, 2, Adjacency.REPLACE_ONE)
    one = found / 2
    assert 2 * math.exp(one) * accountant().delta(event, one, Adjacency.REPLACE_ONE) <= 1e-5 * (1 + 1e-6)
    assert found > accountant().epsilon(event, 1e-5, Adjacency.REPLACE_ONE)


def test_pure_groups_need_no_delta():
    assert group_epsilon(Repeated(PureDP(0.1), 5), 0.0, 4) == pytest.approx(2.0)
    sampled = group_epsilon(PoissonSampled(0.1, PureDP(1.0)), 0.0, 4)
    assert sampled == pytest.approx(4 * math.log1p(0.1 * math.expm1(1.0)))


def test_refusals():
    with pytest.raises(InvalidInput, match="member"):
        group(Gaussian(1.0), 0)
    with pytest.raises(InvalidInput, match="whole number"):
        group(Gaussian(1.0), 1.5)
    with pytest.raises(Unsupported, match="group_epsilon"):
        group(FixedSizeSampled(1, 10, Gaussian(1.0)), 2)
    with pytest.raises(Unsupported, match="GroupSampled"):
        accountant("rdp").epsilon(GroupSampled(0.1, 2, Gaussian(1.0)), 1e-5)
    with pytest.raises(Unsupported, match="GroupSampled"):
        accountant("pld").epsilon(GroupSampled(0.1, 2, Gaussian(1.0)), 1e-5, Adjacency.REPLACE_ONE)
