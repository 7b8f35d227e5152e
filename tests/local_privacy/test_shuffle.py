"""Shuffled answers: the bound against every small case counted out, the published closed form, and the accountants."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from sordina.accounting import Account, Composed, PureDP, Repeated, Shuffled, accountant, from_dict, to_dict
from sordina.accounting.ledger import Ledger
from sordina.accounting.shuffled import ShufflePair, shuffle_loss
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.privacy import Adjacency, Budget, Trust
from sordina.random import seeded
from sordina.statistics.local import GRR, OUE, Frequency, GaussianVector, Memoised
from sordina.statistics.shuffle import ShuffledAnswers, answer_epsilon, shuffled_frequency

REPLACE = Adjacency.REPLACE_ONE
PLD = accountant("pld")


def shuffled_law(held, table):
    """The law of the histogram of answers, everyone answering by a row of ``table``."""
    law = Counter({(0,) * table.shape[1]: 1.0})
    for value in held:
        grown = Counter()
        for counts, chance in law.items():
            for answer, weight in enumerate(table[value]):
                after = (*counts[:answer], counts[answer] + 1, *counts[answer + 1 :])
                grown[after] += chance * weight
        law = grown
    return law


def exact_delta(table, people, epsilon):
    """The largest divergence over all neighbouring data sets, by counting them out."""
    worst = 0.0
    kinds = range(len(table))
    for others in itertools.combinations_with_replacement(kinds, people - 1):
        laws = [shuffled_law((own, *others), table) for own in kinds]
        for one, two in itertools.permutations(laws, 2):
            worst = max(worst, sum(max(0.0, one[key] - math.exp(epsilon) * two[key]) for key in one))
    return worst


def response(epsilon, categories):
    table = np.ones((categories, categories)) + np.eye(categories) * math.expm1(epsilon)
    return table / table.sum(axis=1, keepdims=True)


def odd_randomiser(epsilon):
    """Three inputs and two answers, none of them a response."""
    high = math.exp(epsilon) / (math.exp(epsilon) + 1)
    return np.array([[high, 1 - high], [1 - high, high], [0.5, 0.5]])


@pytest.mark.parametrize("people", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("own", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("categories", [2, 3])
def test_the_bound_is_never_below_the_truth_for_responses(people, own, categories):
    table = response(own, categories)
    pair = ShufflePair.of(Shuffled(own, people, categories))
    for epsilon in (0.05, 0.2, own / 2, 0.9 * own):
        true, bound = exact_delta(table, people, epsilon), float(pair.deltas(np.array([epsilon]))[0])
        assert true <= bound * (1 + 1e-9) + 1e-15
        general = float(ShufflePair.of(Shuffled(own, people)).deltas(np.array([epsilon]))[0])
        assert true <= general * (1 + 1e-9) + 1e-15


def test_the_bound_is_met_by_two_people_with_two_answers():
    """With two categories and everyone else holding either value, the clones are all there is: nothing is lost."""
    true = exact_delta(response(1.0, 2), 2, 0.2)
    assert true == pytest.approx(float(ShufflePair.of(Shuffled(1.0, 2, 2)).deltas(np.array([0.2]))[0]), rel=0.35)


@pytest.mark.parametrize("people", [2, 4, 6])
def test_the_general_bound_holds_for_another_randomiser(people):
    pair = ShufflePair.of(Shuffled(2.0, people))
    for epsilon in (0.1, 0.7, 1.5):
        assert exact_delta(odd_randomiser(2.0), people, epsilon) <= float(pair.deltas(np.array([epsilon]))[0]) + 1e-12


def test_grouping_many_people_is_on_the_safe_side_and_close(monkeypatch):
    from sordina.accounting import shuffled

    epsilons = np.array([0.01, 0.03, 0.06])
    for event in (Shuffled(1.0, 20_000, 2), Shuffled(2.0, 20_000, 50), Shuffled(3.0, 20_000)):
        grouped = ShufflePair.of(event).deltas(epsilons)
        monkeypatch.setattr(shuffled, "_GROUPS", (400, 200))
        alone = ShufflePair.of(event).deltas(epsilons)
        monkeypatch.undo()
        assert (alone <= grouped * (1 + 1e-9)).all()
        assert (grouped <= alone * 1.1 + 1e-15).all()


@pytest.mark.parametrize("people", [10_000, 1_000_000])
@pytest.mark.parametrize("own", [0.5, 1.0, 3.0])
def test_the_numbers_are_below_the_closed_form(people, own):
    """Feldman, McMillan and Talwar 2021, Theorem 3.1, where it applies."""
    delta = 1e-6
    assert own <= math.log(people / (16 * math.log(2 / delta)))
    power = math.exp(own)
    spread = 8 * math.sqrt(power * math.log(4 / delta) / people) + 8 * power / people
    closed = math.log1p((power - 1) / (power + 1) * spread)
    general = PLD.epsilon(Shuffled(own, people), delta, REPLACE)
    assert PLD.epsilon(Shuffled(own, people, 2), delta, REPLACE) <= general <= closed


def test_an_optimistic_bound_would_be_caught():
    """The planted fault: everybody counts as blanket, twice."""
    pair = ShufflePair.of(Shuffled(1.0, 5, 3))
    fault = ShufflePair(pair.own, pair.other, 3, 1.0, 2 * pair.others)
    assert exact_delta(response(1.0, 3), 5, 0.2) > float(fault.deltas(np.array([0.2]))[0])


def test_accountants_know_it():
    event = Shuffled(1.0, 5000, 2)
    best = PLD.epsilon(event, 1e-6, REPLACE)
    assert best < 0.08
    for name in ("rdp", "gdp", "zcdp", "basic", "advanced"):
        assert accountant(name).epsilon(event, 1e-6, REPLACE) >= best * (1 - 1e-6)
    assert PLD.epsilon(event, 0.0, REPLACE) == 1.0
    assert PLD.delta(event, best, REPLACE) == pytest.approx(1e-6, rel=1e-2)
    twice = PLD.epsilon(Repeated(event, 2), 1e-6, REPLACE)
    assert best < twice < 2 * best
    assert PLD.epsilon(Composed((event, PureDP(0.5))), 1e-6, REPLACE) <= 0.5 + twice
    assert from_dict(to_dict(event)) == event
    account = Account(adjacency=REPLACE)
    account.record(event)
    assert account.epsilon(1e-6) == best
    for name in ("pld", "rdp", "basic"):
        with pytest.raises(Unsupported, match="add-remove"):
            accountant(name).epsilon(event, 1e-6)


def test_shuffling_costs_no_more_than_the_answers():
    assert PLD.epsilon(Shuffled(2.0, 1), 1e-6, REPLACE) <= 2.0
    for orders in (Shuffled(0.7, 3), Shuffled(0.7, 3, 5), Shuffled(20.0, 10)):
        assert shuffle_loss(orders).leak == 0
        assert PLD.epsilon(orders, 0.0, REPLACE) == pytest.approx(orders.epsilon)


@pytest.mark.parametrize("bad", [(-1.0, 10, 0), (1.0, 0, 0), (1.0, 2.5, 0), (1.0, 10, 1), (math.nan, 10, 0)])
def test_bad_events_are_refused(bad):
    with pytest.raises(InvalidInput):
        Shuffled(*bad)


def test_the_ledger_books_shuffled_answers(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("survey", Budget(0.05, 1e-6), adjacency=REPLACE, unit="user")
    survey = ShuffledAnswers(GRR(4, 1.0), 50_000)
    with ledger.reserve("survey", survey.event(), what="ask once", adjacency=REPLACE, unit="user"):
        pass
    assert ledger.spent("survey") == pytest.approx(survey.guarantee(1e-6).epsilon)
    with pytest.raises(BudgetRefused):
        ledger.reserve("survey", Repeated(survey.event(), 50), what="too often", adjacency=REPLACE, unit="user")


def test_a_survey_within_a_budget():
    budget = Budget(0.5, 1e-6)
    survey = shuffled_frequency(16, 20_000, budget)
    assert survey.guarantee(1e-6).trust is Trust.SHUFFLED
    assert 0.45 <= survey.guarantee(1e-6).epsilon <= 0.5
    assert survey.error() < Frequency(16, 0.5).error(20_000) / 4
    held = seeded(1).integers(0, 16, size=20_000)
    found = survey.estimate(survey.randomize(held, seeded(2)))
    true = np.bincount(held, minlength=16) / 20_000
    assert np.sqrt(np.mean((found.values - true) ** 2)) < 2 * survey.error()
    assert answer_epsilon(budget, 1) == pytest.approx(0.5, rel=1e-3)
    assert answer_epsilon(Budget(0.5, 0.0), 10**6) == 0.5


def test_what_does_not_gain_from_shuffling_is_refused():
    for protocol in (GaussianVector(3, 1.0, 1.0, 1e-6), Memoised(4, 2.0, 0.5), "grr"):
        with pytest.raises(Unsupported):
            ShuffledAnswers(protocol, 100)
    with pytest.raises(InvalidInput, match="people"):
        ShuffledAnswers(OUE(4, 1.0), 100).randomize([1, 2])
