"""Whole searches: composition and random stopping, against dp-accounting and against the definition."""

from __future__ import annotations

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import rdp
from scipy import stats

from sordina.accounting import (
    ApproximateDP,
    Composed,
    FixedSizeSampled,
    Gaussian,
    PoissonSampled,
    PureDP,
    Repeated,
    accountant,
    draw_runs,
    noise_multiplier,
    random_stopping,
    search_noise,
)
from sordina.accounting.stopping import POISSON, at_least, mean_runs
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Budget
from sordina.random.generators import seeded

BUDGET = Budget(3.0, 1e-5)


def run(noise):
    return Repeated(PoissonSampled(512 / 60000, Gaussian(noise)), 1170)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
@pytest.mark.parametrize("mean", [1.5, 25.0])
def test_random_stopping_is_what_dp_accounting_says(eta, mean):
    base = Repeated(PoissonSampled(0.02, Gaussian(2.0)), 100)
    ours = accountant("rdp").epsilon(random_stopping(base, mean, eta), 1e-6)
    their_base = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(2.0)), 100)
    if eta < 0:
        assert ours <= accountant("rdp").epsilon(random_stopping(base, mean, 0.0), 1e-6)
        return
    theirs = rdp.RdpAccountant().compose(dp.dp_event.RepeatAndSelectDpEvent(their_base, mean, eta)).get_epsilon(1e-6)
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_poisson_stopping_gains_from_pld():
    """Theorem 6 needs the delta of one run; dp-accounting takes it from RDP, we take it from PLD, which is smaller."""
    base = Repeated(PoissonSampled(0.02, Gaussian(3.0)), 100)
    their_base = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(3.0)), 100)
    theirs = rdp.RdpAccountant().compose(dp.dp_event.RepeatAndSelectDpEvent(their_base, 20, math.inf)).get_epsilon(1e-6)
    ours = accountant("rdp").epsilon(random_stopping(base, 20, POISSON), 1e-6)
    assert 0.5 * theirs < ours < theirs


def test_selecting_costs_more_than_one_run_and_less_than_all():
    one, all_of_them = accountant().epsilon(run(1.5), 1e-5), accountant().epsilon(Repeated(run(1.5), 25), 1e-5)
    for eta in (0.0, 1.0):
        assert one < accountant().epsilon(random_stopping(run(1.5), 25, eta), 1e-5) < all_of_them


def exact_best_of(stop, p, q, epsilon, most=2000):
    """delta of "best of K" for a run whose outcomes, worst first, have probabilities p or q, from the definition."""
    counts = np.array([at_least(stop, runs) - at_least(stop, runs + 1) for runs in range(1, most)])
    if math.isinf(stop.eta):
        counts = stats.poisson.pmf(np.arange(1, most), stop.mean)

    def best(outcomes):
        """The best outcome is among the first m if all K runs are: sum_k P[K = k] (p_1 + ... + p_m)^k; last, no run."""
        levels = [float(counts @ level ** np.arange(1, most)) for level in (0.0, *np.cumsum(outcomes))]
        return np.append(np.diff(levels), max(0.0, 1 - counts.sum()))

    first, second = best(p), best(q)
    return max(
        float(np.maximum(one - math.exp(epsilon) * other, 0).sum()) for one, other in ((first, second), (second, first))
    )


@pytest.mark.parametrize("eta", [0.5, 1.0, POISSON])
def test_the_claim_covers_an_exact_selection(eta):
    """Randomised response with the rare outcome as the best: the worst way to select."""
    epsilon = 0.4
    p = [math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))]
    stop = random_stopping(PureDP(epsilon), 10, eta)
    claimed = accountant("rdp").epsilon(stop, 1e-3)
    assert exact_best_of(stop, p, p[::-1], claimed) <= 1e-3
    assert exact_best_of(stop, p, p[::-1], 0.3 * epsilon) > 1e-3


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 2.5, POISSON])
def test_the_number_of_runs_has_the_law_it_claims(eta):
    """Mean within five standard errors, and `at_least` within five standard errors at three places."""
    stop = random_stopping(Gaussian(1.0), 12, eta)
    generator = seeded(5)
    drawn = np.array([draw_runs(stop, generator) for _ in range(4000)])
    assert abs(drawn.mean() - 12) < 5 * drawn.std() / math.sqrt(drawn.size)
    for runs in (2, 6, 20):
        claimed = at_least(stop, runs)
        error = 5 * math.sqrt(claimed * (1 - claimed) / drawn.size)
        assert abs((drawn >= runs).mean() - claimed) < error
    if math.isfinite(eta):
        assert drawn.min() >= 1
        assert stop.mean == pytest.approx(mean_runs(eta, stop.gamma))


def test_a_wrong_law_is_rejected():
    """The same check as above rejects a geometric law taken for a logarithmic one."""
    generator = seeded(5)
    drawn = np.array([draw_runs(random_stopping(Gaussian(1.0), 12, 1.0), generator) for _ in range(4000)])
    claimed = at_least(random_stopping(Gaussian(1.0), 12, 0.0), 2)
    assert abs((drawn >= 2).mean() - claimed) > 5 * math.sqrt(claimed * (1 - claimed) / drawn.size)


@pytest.mark.parametrize("runs", [1, 25])
def test_a_search_stays_within_its_budget(runs):
    plan = search_noise(run, BUDGET, runs)
    assert 0.99 * BUDGET.epsilon <= accountant().epsilon(plan.event, BUDGET.delta) <= BUDGET.epsilon
    assert plan.noise_multiplier == min(plan.noise_by_method.values())
    assert plan.per_run_epsilon == accountant().epsilon(run(plan.noise_multiplier), BUDGET.delta)
    assert f"{plan.noise_multiplier:.4g}" in plan.reason


def test_random_stopping_wins_for_many_runs_and_composition_for_one():
    assert search_noise(run, BUDGET, 25).method == "random-stopping"
    single = search_noise(run, BUDGET, 1)
    assert single.method == "composition"
    assert single.noise_multiplier == pytest.approx(noise_multiplier(run, BUDGET), rel=1e-4)
    assert single.stopping is None


def test_methods_by_name():
    composed = search_noise(run, BUDGET, 25, method="composition")
    stopped = search_noise(run, BUDGET, 25, method="random-stopping")
    assert composed.method == "composition"
    assert composed.event == Composed((Repeated(run(composed.noise_multiplier), 25), Composed()))
    assert stopped.method == "random-stopping"
    assert stopped.stopping is not None
    assert stopped.noise_multiplier < 0.6 * composed.noise_multiplier


def test_choosing_is_paid_for():
    selection = search_noise(run, BUDGET, 5, method="composition", selection=PureDP(0.3))
    assert selection.noise_multiplier > search_noise(run, BUDGET, 5, method="composition").noise_multiplier
    scored = search_noise(run, BUDGET, 5, method="random-stopping", score=PureDP(0.1), etas=(1.0,))
    free = search_noise(run, BUDGET, 5, method="random-stopping", etas=(1.0,))
    assert scored.noise_multiplier > free.noise_multiplier
    assert accountant().epsilon(scored.event, 1e-5) <= 3


def test_a_search_composes_with_what_else_happens():
    """A randomly stopped search beside a release: pld takes its Renyi curve, and stays above both alone."""
    search = random_stopping(run(1.5), 25)
    both = accountant().epsilon(Composed((search, Gaussian(4.0))), 1e-5)
    assert both > max(accountant().epsilon(search, 1e-5), accountant().epsilon(Gaussian(4.0), 1e-5))
    assert both < accountant().epsilon(search, 5e-6) + accountant().epsilon(Gaussian(4.0), 5e-6)


def test_refusals():
    with pytest.raises(InvalidInput, match="runs"):
        search_noise(run, BUDGET, 0)
    with pytest.raises(InvalidInput, match="runs"):
        search_noise(run, BUDGET, 2.5)
    with pytest.raises(InvalidInput, match="method"):
        search_noise(run, BUDGET, 5, method="luck")
    with pytest.raises(Unsupported, match="Renyi"):
        search_noise(run, BUDGET, 5, method="random-stopping", accountant="basic")
    with pytest.raises(Unsupported, match="stopping"):
        accountant("rdp").epsilon(random_stopping(ApproximateDP(0.1, 1e-9), 5), 1e-5)
    with pytest.raises(InvalidInput, match="mean"):
        random_stopping(Gaussian(1.0), 0.5)
    with pytest.raises(InvalidInput, match="eta"):
        random_stopping(Gaussian(1.0), 5, -1.0)
    assert search_noise(run, BUDGET, 3, accountant="gdp").method == "composition"
    with pytest.raises(Unsupported, match="add-remove"):
        search_noise(lambda noise: FixedSizeSampled(1, 10, Gaussian(noise)), BUDGET, 3)
