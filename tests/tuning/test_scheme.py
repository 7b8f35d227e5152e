import math

import numpy as np
import pytest

from sordina import Budget
from sordina.accounting import NOTHING, Account, Composed, PureDP, accountant, from_dict, to_dict
from sordina.accounting.stopping import draw_runs, stopping
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Unit
from sordina.sampling import FixedSize, Poisson
from sordina.tuning.plan import TrainingSchedule, chance_tried, decide, make_scheme
from sordina.tuning.selection import Selection
from sordina.tuning.space import Grid

BUDGET = Budget(3, 1e-5)
MNIST = TrainingSchedule(Poisson(512, 54000), 1055)
SMALL = TrainingSchedule(Poisson(40, 400), 10)


def spent(scheme, event=None, judge="pld"):
    return accountant(judge).epsilon(event or scheme.event, BUDGET.delta, scheme.adjacency)


def test_25_runs_and_their_choice_cost_epsilon_3_end_to_end():
    scheme = make_scheme([MNIST] * 25, BUDGET, Selection(), method="composition")
    account = Account("pld", scheme.adjacency)
    for _ in range(25):
        account.record(MNIST.event(scheme.noise_multiplier))
    account.record(scheme.choice)
    assert scheme.choice == PureDP(0.05 * 3)
    assert 0.99 * 3 <= account.epsilon(1e-5) <= 3
    # the choice is really paid for: runs alone would leave room that a 26th charge of its size does not
    assert spent(scheme, Composed((scheme.event, PureDP(0.15)))) > 3


def test_the_cheaper_way_is_taken_and_said():
    scheme = make_scheme([SMALL] * 10, BUDGET, Selection(), accountant="rdp")
    assert scheme.noise_multiplier == min(scheme.noise_by_method.values())
    assert scheme.method in scheme.reason
    assert all(f"{noise:.4g}" in scheme.reason for noise in scheme.noise_by_method.values())
    assert len(scheme.noise_by_method) > 1
    assert 0.99 * 3 <= spent(scheme, judge="rdp") <= 3


def test_random_stopping_charges_the_noisy_score_in_every_run():
    scheme = make_scheme([SMALL] * 10, BUDGET, Selection(), method="random-stopping", accountant="rdp")
    public = make_scheme([SMALL] * 10, BUDGET, Selection("public"), method="random-stopping", accountant="rdp")
    assert scheme.stopping.event == Composed((SMALL.event(scheme.noise_multiplier), scheme.choice))
    assert scheme.choice == Selection().scorer(BUDGET, Adjacency.ADD_REMOVE).event()
    assert public.choice == NOTHING
    assert public.noise_multiplier < scheme.noise_multiplier


def test_a_single_run_needs_no_choice():
    scheme = make_scheme([SMALL], BUDGET, Selection(), accountant="rdp")
    assert scheme.method == "composition"
    assert scheme.choice == NOTHING


def test_runs_that_differ_are_composed_each_as_it_is():
    long = TrainingSchedule(Poisson(40, 400), 30)
    scheme = make_scheme([SMALL, long], BUDGET, Selection(), accountant="rdp")
    nu = scheme.noise_multiplier
    whole = Composed((SMALL.event(nu), long.event(nu), scheme.choice))
    assert 0.99 * 3 <= spent(scheme, whole, "rdp") <= 3
    with pytest.raises(Unsupported, match="same"):
        make_scheme([SMALL, long], BUDGET, Selection(), method="random-stopping", accountant="rdp")


def test_replacing_one_record_moves_scores_both_ways():
    scheme = make_scheme([TrainingSchedule(FixedSize(40, 400), 10)] * 3, BUDGET, Selection(), method="composition")
    chooser = Selection().chooser(BUDGET, scheme.adjacency)
    assert scheme.adjacency is Adjacency.REPLACE_ONE
    assert not chooser.monotonic
    assert Selection().chooser(BUDGET, Adjacency.ADD_REMOVE).monotonic
    assert 0.99 * 3 <= spent(scheme) <= 3


def test_what_cannot_be_guaranteed_is_refused():
    users = TrainingSchedule(Poisson(4, 40), 10, Unit.USER)
    with pytest.raises(Unsupported, match="one user may own many"):
        make_scheme([users] * 2, BUDGET, Selection())
    with pytest.raises(Unsupported, match="do not add up"):
        make_scheme([users, SMALL], BUDGET, Selection("public"))
    with pytest.raises(InvalidInput, match="nothing is private"):
        make_scheme([SMALL] * 2, Budget(math.inf, 1e-5), Selection())
    with pytest.raises(InvalidInput, match="no search method"):
        make_scheme([SMALL] * 2, BUDGET, Selection(), method="hope")
    for bad in ({"kind": "peek"}, {"share": 0.0}, {"share": 1.0}, {"bound": 0.0}):
        with pytest.raises(InvalidInput):
            Selection(**bad)


def test_without_a_budget_there_is_no_noise_and_it_says_so():
    scheme = make_scheme([SMALL] * 2, Budget(math.inf, 1e-5), Selection("public"))
    assert scheme.noise_multiplier == 0
    assert "NOT PRIVATE" in scheme.reason


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, math.inf])
def test_the_chance_that_a_configuration_is_tried(eta):
    stop = stopping(NOTHING, 6, eta)
    rng, trials = np.random.default_rng(3), 4000
    hits = sum((rng.integers(8, size=draw_runs(stop, rng)) == 0).any() for _ in range(trials))
    chance = chance_tried(stop, 8)
    assert abs(hits / trials - chance) < 4 * math.sqrt(chance * (1 - chance) / trials)


def test_orders_of_a_search_that_stops_at_random_are_drawn_afresh():
    scheme = make_scheme([SMALL] * 4, BUDGET, Selection(), method="random-stopping", accountant="rdp")
    grid, rng = Grid({"rho": (1, 2, 3, 4)}), np.random.default_rng(0)
    counts = [len(decide(grid, scheme, grid.configurations(), 1, rng, None).orders) for _ in range(400)]
    deviation = np.std(counts) / math.sqrt(len(counts))
    assert len(set(counts)) > 3
    assert abs(np.mean(counts) - scheme.stopping.mean) < 4 * deviation


def test_events_survive_the_plan_file():
    scheme = make_scheme([SMALL] * 4, BUDGET, Selection(), method="random-stopping", accountant="rdp")
    assert from_dict(to_dict(scheme.event)) == scheme.event
