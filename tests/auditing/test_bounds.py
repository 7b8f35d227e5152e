import math

import numpy as np
import pytest
from scipy.stats import binom

from sordina.accounting import Gaussian, PoissonSampled, Repeated, accountant
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.auditing.bounds import GaussianFamily, Rates, TwoRates, rates_at, refuted
from sordina.auditing.one_run import Guesses, Membership, OneRun, PairedRun, epsilon_at, p_value
from sordina.auditing.scores import Scores
from sordina.auditing.trade_off import ApproximateTradeOff
from sordina.errors import InvalidInput

COINS = Membership("coins")
AUDITS = 200


def allowed(audits, risk=0.05):
    """So many failures are still ordinary, at one in ten thousand."""
    return int(binom.ppf(1 - 1e-4, audits, risk))


def gaussian_scores(mu, trials, rng):
    return Scores(rng.normal(mu, 1, trials), rng.normal(0, 1, trials))


def randomised_response(epsilon, trials, rng):
    """The worst epsilon-DP mechanism there is: the truth with odds e^epsilon."""
    keep = rng.random((2, trials)) < 1 / (1 + math.exp(-epsilon))
    jitter = rng.uniform(0, 0.1, (2, trials))
    return Scores(np.where(keep[0], 1.0, 0.0) + jitter[0], np.where(keep[1], 0.0, 1.0) + jitter[1])


def exceedances(bound, draw, truth, delta, seed=0, audits=AUDITS):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(audits):
        tuning, report = draw(rng).split(0.3, rng)
        found.append(bound.epsilon_lower(tuning, report, delta, 0.95).epsilon)
    return int((np.array(found) > truth).sum()), float(np.mean(found))


@pytest.mark.parametrize(
    ("bound", "truth"), [(TwoRates(), 1.0), (OneRun(COINS), 1.0), (OneRun(), 1.0), (PairedRun(), 2.0)]
)
def test_no_bound_passes_the_worst_pure_mechanism_more_often_than_it_may(bound, truth):
    """Replacing a record changes two answers, so that the pairs' epsilon is twice as large."""
    count, mean = exceedances(bound, lambda rng: randomised_response(1.0, 400, rng), truth, 0.0)
    assert count <= allowed(AUDITS)
    assert mean > 0.4 * truth


@pytest.mark.parametrize("bound", [TwoRates(), GaussianFamily(), OneRun(COINS), OneRun(), PairedRun()])
def test_no_bound_passes_a_gaussian_mechanism_more_often_than_it_may(bound):
    multiplier = 0.8 / math.sqrt(2) if isinstance(bound, PairedRun) else 0.8
    truth = gaussian_epsilon(multiplier, 1e-5)
    count, mean = exceedances(bound, lambda rng: gaussian_scores(1 / 0.8, 400, rng), truth, 1e-5)
    assert count <= allowed(AUDITS)
    assert mean > 0.15 * truth


def test_point_estimates_as_in_the_thesis_are_no_bound():
    """Equation 4.4 without confidence, threshold picked on the same scores: wrong nearly always (errata 6)."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(50):
        scores = randomised_response(1.0, 100, rng)
        thresholds = np.unique(scores.outside)
        tpr = np.array([(scores.inside >= t).mean() for t in thresholds])
        fpr = np.array([(scores.outside >= t).mean() for t in thresholds])
        wrong += (tpr > math.e * fpr).any()
    assert wrong > 25


def test_the_family_is_tighter_than_two_rates_and_reaches_most_of_the_truth():
    rng = np.random.default_rng(3)
    tuning, report = gaussian_scores(1.0, 2000, rng).split(0.3, rng)
    family = GaussianFamily().epsilon_lower(tuning, report, 1e-5, 0.95).epsilon
    two = TwoRates().epsilon_lower(tuning, report, 1e-5, 0.95).epsilon
    assert 0.7 * gaussian_epsilon(1.0, 1e-5) < family < gaussian_epsilon(1.0, 1e-5)
    assert two < family


def test_the_numeric_family_agrees_with_the_closed_form():
    rng = np.random.default_rng(4)
    halves = gaussian_scores(1.5, 500, rng).split(0.3, rng)
    closed = GaussianFamily().epsilon_lower(*halves, 1e-5, 0.95).epsilon
    numeric = GaussianFamily(lambda s: Repeated(Gaussian(s), 1)).epsilon_lower(*halves, 1e-5, 0.95).epsilon
    assert numeric <= closed
    assert numeric == pytest.approx(closed, rel=0.08)


def test_what_a_sampled_mechanism_allows_is_not_refuted():
    event = Repeated(PoissonSampled(0.2, Gaussian(1.0)), 5)
    judge = accountant("pld")
    power = min(math.exp(epsilon) * 0.05 + judge.delta(event, epsilon) for epsilon in np.arange(0, 5, 0.1))
    assert not refuted(rates(power - 1e-9, 0.05), event)
    assert refuted(rates(power + 0.02, 0.05), event)


def rates(tpr, fpr):
    return Rates(np.array([tpr]), np.array([fpr]))


def test_both_directions_count():
    """A test that hardly ever misses a member but raises many alarms shows in the second direction only."""
    assert math.log(0.999 / 0.5) < 0.7
    assert rates(0.999, 0.5).log_ratio(0.0)[0] == pytest.approx(math.log(0.5 / 0.001))


def test_delta_lowers_every_bound():
    rng = np.random.default_rng(5)
    halves = gaussian_scores(2.0, 500, rng).split(0.3, rng)
    for bound in (TwoRates(), GaussianFamily(), OneRun(COINS), PairedRun()):
        small, large = (bound.epsilon_lower(*halves, delta, 0.95).epsilon for delta in (1e-9, 1e-2))
        assert large < small


def test_rates_at_infinite_and_equal_scores_prove_nothing_by_accident():
    flat = Scores(np.zeros(50), np.zeros(50))
    for bound in (TwoRates(), GaussianFamily(), OneRun(COINS), OneRun(), PairedRun()):
        assert bound.epsilon_lower(flat, flat, 1e-5, 0.95).epsilon == 0
    apart = Scores(np.array([np.inf]), np.array([-np.inf]))
    assert rates_at(apart, np.zeros(1), 0.95).log_ratio(0.0)[0] < 0


def chance(records, guesses, right, epsilon, delta):
    return p_value(Guesses(right, guesses, records), ApproximateTradeOff(epsilon, delta))


def test_the_p_value_is_the_binomial_tail_and_grows_with_epsilon_and_delta():
    assert chance(100, 50, 40, 0.0, 0.0) == pytest.approx(binom.sf(39, 50, 0.5))
    assert chance(100, 50, 40, 0.5, 0.0) > chance(100, 50, 40, 0.0, 0.0)
    assert chance(100, 50, 40, 0.0, 1e-4) > chance(100, 50, 40, 0.0, 0.0)
    assert chance(100, 50, 0, 0.0, 0.0) == 1
    with pytest.raises(InvalidInput):
        Guesses(6, 5, 10)


def test_the_bound_inverts_the_p_value():
    epsilon = epsilon_at(Guesses(90, 100, 1000), 1e-5, 0.05)
    assert chance(1000, 100, 90, epsilon, 1e-5) <= 0.05 <= chance(1000, 100, 90, epsilon + 2e-4, 1e-5)
    assert epsilon_at(Guesses(50, 100, 1000), 1e-5, 0.05) == 0


def test_all_right_guesses_show_a_large_epsilon():
    apart = Scores(np.arange(1, 501.0), -np.arange(1, 501.0))
    assert OneRun(COINS).epsilon_lower(apart, apart, 0.0, 0.95).epsilon > 5
    assert OneRun().epsilon_lower(apart, apart, 0.0, 0.95).epsilon > 4
    assert PairedRun().epsilon_lower(apart, apart, 0.0, 0.95).epsilon > 4
