"""One-run bounds: valid on mechanisms that are as private as they claim, tight where they should be."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from sordina.accounting.events import Gaussian
from sordina.auditing.audit import Attempt, Judge, RowSplit, audit_scores
from sordina.auditing.bounds import most_promising
from sordina.auditing.one_run import (
    Guesses,
    Membership,
    OneRun,
    Ranking,
    binomial_tail,
    epsilon_at,
    least_total,
    p_value,
    refutes,
)
from sordina.auditing.scores import Scores
from sordina.auditing.trade_off import (
    ApproximateTradeOff,
    GaussianDPFamily,
    GaussianTradeOff,
    accounted,
)
from sordina.privacy import Adjacency, Guarantee
from sordina.reproduction.audits import MEMBERSHIPS, allowed, exceedances, family_refutations, mechanisms

AUDITS = 40


@pytest.mark.parametrize("membership", MEMBERSHIPS, ids=lambda one: f"{one.drawn}-{one.probability:g}")
@pytest.mark.parametrize("mechanism", mechanisms()[:5], ids=lambda one: one.name)
def test_no_bound_finds_more_than_there_is_more_often_than_it_may(mechanism, membership):
    """The long form is `sordina reproduce audit-validity`."""
    for name, (count, _) in exceedances(mechanism, membership, 200, AUDITS, seed=1).items():
        assert count <= allowed(AUDITS), name


def test_a_wrong_bound_would_be_noticed():
    """The same machinery on a mechanism that leaks more than it says."""
    honest = mechanisms()[0]
    spoilt = type(honest)("spoilt", honest.scores, epsilon=0.4, delta=0.0)
    assert exceedances(spoilt, Membership("coins"), 1000, AUDITS, seed=1)["one run"][0] > allowed(AUDITS)


def test_many_attacks_refute_no_more_often_than_one_may():
    assert family_refutations(14, 300, 40, seed=2) <= allowed(40)


def test_choosing_the_strongest_of_many_attacks_invents_nothing():
    """Scores of pure chance: whichever attack is given half of the error, more than epsilon 0 is a false bound."""
    rng, above = np.random.default_rng(3), 0
    for seed in range(AUDITS):
        member = rng.random(200) < 0.5
        scores = {str(one): rng.normal(size=200) for one in range(8)}
        above += audit_scores(scores, member, membership="coins", delta=0.0, seed=seed).epsilon_lower > 0
    assert above <= allowed(AUDITS)


@pytest.mark.parametrize("membership", ["coins", "coins:0.6", "fixed"])
@pytest.mark.parametrize("delta", [1e-5, 1 / 3000])
def test_a_perfect_attack_among_seventeen_proves_much_of_300_records(membership, delta):
    """Equal shares of the error proved nothing at delta 1/(10 n) on a fixed split."""
    rng = np.random.default_rng(0)
    member = rng.permutation(300) < (150 if membership == "coins" else 180)
    scores = {str(one): rng.normal(size=300) for one in range(16)} | {"perfect": member + 0.1 * rng.random(300)}
    found = audit_scores(scores, member, membership=membership, delta=delta, seed=0)
    assert found.ranked[0].name == "perfect"
    assert 2.5 < found.epsilon_lower < 4
    assert all(result.bound.epsilon < 0.5 for result in found.ranked[1:])


def test_the_favourite_is_chosen_without_the_rows_that_are_reported_on():
    rng = np.random.default_rng(0)
    tuned = {name: Scores(rng.normal(size=60) + shift, rng.normal(size=60)) for name, shift in (("a", 0), ("b", 3))}
    judge = Judge.of(Membership("coins"), None, None, 0.95)
    for shift in (0, 5):
        reported = {"a": Scores(rng.normal(size=90) + shift, rng.normal(size=90))}
        reported |= {name: Scores(rng.normal(size=90), rng.normal(size=90)) for name in ("b", "c")}
        attempts = [Attempt(name, tuned.get(name, tuned["a"]), scores) for name, scores in reported.items()]
        assert [1 - one.bound.confidence for one in judge(attempts)] == pytest.approx([0.0125, 0.025, 0.0125])


def test_the_favourite_does_not_depend_on_how_many_coins_fell_on_in():
    """Made to lean on one side each: by the number of members among the reported rows the favourite would change."""

    def leaning(*parts):
        """From the highest score down, so many rows of which so many are members'."""
        who = np.concatenate([np.diff(np.floor(np.arange(n + 1) * k / n + 1e-9)) > 0 for n, k in parts])
        values = -np.arange(len(who), dtype=float)
        return Scores(values[who], values[~who])

    tuned = [leaning((150, 90), (50, 10)), leaning((50, 40), (150, 60)), leaning((200, 100))]
    chosen = set()
    for members in (450, 490, 510, 550):
        reported = Scores(np.zeros(members), np.zeros(1000 - members))
        scores = [(one, reported) for one in tuned]
        chosen.add(most_promising(OneRun(Membership("coins")), scores, 0.0, 0.95))
    assert len(chosen) == 1


def test_an_infinite_epsilon_claims_no_delta_either():
    told = Judge.of(Membership("coins"), Guarantee(math.inf, 1e-3), None, 0.95)
    assert told.delta == 1e-5
    assert Judge.of(Membership("coins"), Guarantee(8.0, 1e-3), None, 0.95).delta == 1e-3


@pytest.mark.parametrize("side", ["in", "out"])
def test_the_theorem_holds_with_equality_for_randomised_response_of_biased_coins(side):
    """Every p_j of a binomial meets (1) with equality at delta 0, so its tail is never above the bound."""
    for epsilon in (0.5, 2.0):
        luck = 0.2 if side == "in" else 0.8
        chance = luck * math.exp(epsilon) / (luck * math.exp(epsilon) + 1 - luck)
        for right in (20, 30, 39):
            found = Guesses(right, 40, 200, luck, one_sided=True)
            tail = binom.sf(right - 1, 40, chance)
            assert tail <= p_value(found, ApproximateTradeOff(epsilon, 0.0)) * 1.002
            assert binomial_tail(found, ApproximateTradeOff(epsilon, 0.0)) == pytest.approx(tail)


def test_bursts_have_the_chance_that_the_theorem_allows_them():
    """Randomised response that reveals i of m records with chance m delta / i: its tail is below the bound."""
    records, guesses, right, epsilon, delta = 1000, 100, 90, 1.0, 1e-4
    chance = math.e / (1 + math.e)
    found = Guesses(right, guesses, records)
    for revealed in (5, 20, 50, 100):
        burst = min(1.0, records * delta / revealed)
        after = binom.sf(right - revealed - 1, guesses - revealed, chance)
        tail = (1 - burst) * binom.sf(right - 1, guesses, chance) + burst * after
        assert tail <= p_value(found, ApproximateTradeOff(epsilon, delta)) * 1.002


def test_the_cases_of_the_issue():
    """344 of 350 among 7000 records of a fixed split had proved nothing; 204 of 208 by coins had not refuted 1."""
    fixed = 0.025 * binom.pmf(3500, 7000, 0.5)
    assert epsilon_at(Guesses(344, 350, 7000, 0.5, one_sided=True), 1e-5, fixed) > 2.5
    assert epsilon_at(Guesses(204, 208, 2800, 0.5, one_sided=True), 1e-5, 0.05) > 3.06


def test_a_curve_that_is_known_refutes_more():
    found = Guesses(330, 350, 3500, 0.5, one_sided=True)
    known = epsilon_at(found, 1e-5, 0.05, GaussianDPFamily())
    assert known > 1.3 * epsilon_at(found, 1e-5, 0.05)
    curve, closed = accounted(Gaussian(0.8), Adjacency.ADD_REMOVE), GaussianTradeOff(1 / 0.8)
    for power in (0.01, 0.2, 0.7, 0.99):
        assert 0.8 * closed.least_size(power) <= curve.least_size(power) <= closed.least_size(power) + 1e-12


def test_refuting_is_monotone_and_nothing_refutes_a_power_above_one():
    found = Guesses(60, 100, 100)
    assert least_total(found, ApproximateTradeOff(0.0, 0.0), 0.5) > least_total(
        found, ApproximateTradeOff(3.0, 0.0), 0.5
    )
    assert not refutes(Guesses(0, 10, 100), ApproximateTradeOff(0.0, 0.0), 0.05)
    assert math.isinf(GaussianTradeOff(1.0).least_size(1.5))


def test_equal_scores_are_counted_against_the_auditor():
    ranking = Ranking.of(Scores(np.ones(50), np.ones(50)))
    assert ranking.right_in[50] == 0
    assert ranking.right_out[50] == 0
    assert ranking.right_in[60] == 10


def test_after_coins_the_tuning_part_says_nothing_of_the_others():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        member = rng.random(100) < 0.5
        split = RowSplit.of(member, 0.3, Membership("coins"), rng)
        assert split.tuning.sum() == 30
        shares.append((member[split.tuning].sum(), member[~split.tuning].sum()))
    assert abs(np.corrcoef(np.array(shares).T)[0, 1]) < 0.25


def test_more_others_than_members_prove_more_about_those_who_stand_out():
    """200 members of whom a quarter stands out: among 200 others that proves less than among 5000."""
    rng = np.random.default_rng(0)
    found = []
    for others in (200, 5000):
        scores = np.concatenate([rng.normal(size=200) + 10 * (np.arange(200) < 50), rng.normal(size=others)])
        member = np.arange(200 + others) < 200
        found.append(audit_scores({"out": scores}, member, membership="fixed", seed=0, delta=0.0).epsilon_lower)
    assert found[1] > found[0] + 1


def test_a_claim_of_replace_one_is_judged_in_pairs():
    rng = np.random.default_rng(0)
    member = np.arange(400) < 200
    found = audit_scores(
        {"told": member + 0.1 * rng.normal(size=400)}, member, membership="fixed",
        claim=Guarantee(1.0, 1e-5, Adjacency.REPLACE_ONE), seed=0,
    )  # fmt: skip
    assert "pairs" in found.results[0].bound.method
    assert found.exceeds_claim
    assert OneRun().membership.drawn == "fixed"
