"""Hostile weather: the round goes on, the bad ones are named, accounts stay right, and the model is hardly worse."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from sordina.clipping import Fixed, Quantile, Sector
from sordina.errors import InvalidInput
from sordina.federated import losses
from sordina.federated.aggregation import ReceivedUpdate, UpdateValidator
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.algorithms.ifca import BestModel
from sordina.federated.algorithms.metric_pfl import MetricPflServer
from sordina.federated.engines import (
    KINDS,
    ClientSide,
    FaultInjectingEngine,
    FaultInjection,
    InProcess,
    RoundRequest,
    hostile_of,
)
from sordina.federated.objective import of_module
from sordina.federated.population import ClientsInTurn, Population, RowOrder, SampledClients
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.privacy.placement import ClearUpdates
from sordina.federated.problem import Validation
from sordina.federated.round import FederatedMethod, federate
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import FixedSize, Poisson

CLIENTS = 30
STORM = FaultInjection(dropout=0.3, hostile={3: "nan", 7: "huge", 11: "replay"})


def people(seed=0, clients=CLIENTS):
    """Two classes apart along one direction."""
    rng = np.random.default_rng(seed)
    shards = []
    for _ in range(clients):
        size = int(rng.integers(5, 25))
        y = rng.integers(2, size=size)
        x = rng.standard_normal((size, 4)) + np.outer(2 * y - 1, [0.8, -0.6, 0.4, 0.0])
        shards.append((torch.from_numpy(x).float(), torch.from_numpy(y)))
    return Population.of(shards)


def objective():
    return of_module(nn.Linear(4, 2), losses.cross_entropy)


STEPS = LocalSteps(0.1, 5)


def placements():
    poisson, fixed = Poisson(15, CLIENTS), FixedSize(15, CLIENTS)
    budget = Budget(8.0, 1e-5)
    plans = [make_plan(budget, sampler, 20, unit=Unit.USER) for sampler in (poisson, fixed)]
    return {
        "none": (ClearUpdates(), SampledClients(fixed)),
        "central": (Central(plans[0], Fixed(0.5)), SampledClients(poisson)),
        "quantile": (Central(plans[0], Quantile(0.5)), SampledClients(poisson)),
        "sector": (Central(plans[1], Sector(0.5, 0.01, 0.7)), SampledClients(fixed)),
        "local": (Local(0.5, 0.05, 1e-5, 20), ClientsInTurn(15)),
        "metric": (Metric(0.4, PublicRadius(0.1)), ClientsInTurn(15)),
    }


def go(engine, placement, selection, rounds=20, **options):
    method = FederatedMethod(AddMean(), LocalTraining(objective(), STEPS), placement, selection)
    start = torch.zeros(1, 10)
    rng = np.random.default_rng(4)
    return federate(method, engine, start, clients=CLIENTS, rounds=rounds, rng=rng, **options)


def reasons(result):
    return {(one.sender, one.reason) for each in result.history for one in each.refused}


@pytest.mark.parametrize("name", placements())
def test_a_storm_is_weathered_and_the_hostile_are_named(name):
    placement, selection = placements()[name]
    engine = FaultInjectingEngine(InProcess(people()), STORM)
    result = go(engine, placement, selection)
    assert torch.isfinite(result.models).all()
    assert result.models.norm() < 20
    named = reasons(result)
    assert {sender for sender, _ in named} == {3, 7, 11}
    assert (3, "not finite") in named
    assert any(sender == 7 and "larger" in reason for sender, reason in named)
    assert (11, "a replay of an earlier update") in named
    dropped = sum(one.dropped for one in result.history)
    assert 0.2 < dropped / (15 * len(result.history)) < 0.4


def test_the_storm_costs_less_than_two_points_of_accuracy():
    validation = Validation(objective(), people(1, clients=60), classes=True)
    poisson = Poisson(15, CLIENTS)
    loose = make_plan(Budget(500.0, 1e-5), poisson, 20, unit=Unit.USER)
    choices = {name: placements()[name] for name in ("none", "metric")}
    choices["central"] = (Central(loose, Fixed(0.5)), SampledClients(poisson))
    for name, (placement, selection) in choices.items():
        calm = go(InProcess(people()), placement, selection, validation=validation)
        storm = go(FaultInjectingEngine(InProcess(people()), STORM), placement, selection, validation=validation)
        last = [run.history[-1].score.accuracy for run in (calm, storm)]
        assert last[0] > 0.8, (name, last)
        assert last[1] > last[0] - 0.02, (name, last)


def test_who_released_is_charged_even_if_refused_and_who_dropped_out_is_not():
    engine = FaultInjectingEngine(
        InProcess(people()), FaultInjection(dropout=0.3, late=0.2, hostile={3: "nan", 7: "huge"})
    )
    placement, selection = placements()["metric"]
    result = go(engine, placement, selection)
    expected = [0] * CLIENTS
    for number in range(20):
        drawn = selection.draw(number, CLIENTS, np.random.default_rng(0))
        silent, _ = engine.faults.draw(number, len(drawn))
        for client in drawn[~silent]:
            expected[client] += 1
    assert [account.participations for account in engine.accounts] == expected
    each = Fraction(25)
    assert [account.spent for account in engine.accounts] == [count * each for count in expected]
    assert result.leakage.tolist() == [float(count * each) for count in expected]
    answered = sum(one.answered for one in result.history)
    refused_now = sum(not one.reason.startswith("late") for each in result.history for one in each.refused)
    lost = sum(one.dropped for one in result.history)
    assert answered + refused_now + lost == 20 * 15


def test_limits_hold_in_any_weather():
    engine = FaultInjectingEngine(InProcess(people(), limit=Fraction(75)), FaultInjection(dropout=0.3, late=0.2))
    placement, selection = placements()["metric"]
    result = go(engine, placement, selection, rounds=40)
    assert max(account.spent for account in engine.accounts) == Fraction(75)
    assert any(one.withheld for one in result.history)


def test_central_privacy_divides_by_the_expected_clients_and_spends_the_same_in_any_weather():
    """Refused and absent are zero updates: the released mean is the sum of those let in over the public number."""
    placement, selection = placements()["central"]
    calm = go(InProcess(people()), placement, selection, rounds=5)
    storm = go(FaultInjectingEngine(InProcess(people()), STORM), placement, selection, rounds=5)
    assert calm.statement.epsilon == storm.statement.epsilon

    quiet = Central(make_plan(Budget(1e4, 1e-5), Poisson(15, CLIENTS), 1, unit=Unit.USER), Fixed(0.5))
    side = ClientSide(LocalTraining(objective(), STEPS), quiet)
    call = RoundRequest({"model": torch.zeros(10)}, quiet.start(10), RowOrder(0, 0))
    asked = np.arange(12)
    engine = FaultInjectingEngine(InProcess(people()), STORM)
    update = engine.map_reduce(side, call, asked, np.random.default_rng(0))
    silent, _ = STORM.draw(0, 12)
    good = [client for client in asked[~silent] if client not in (3, 7)]
    assert update.answered == len(good) < 12
    alone, _ = InProcess(people()).apart(side, call, np.array(good), np.random.default_rng(0))
    total = sum(one.sums[0] for one in alone.values())
    assert torch.allclose(update.sums[0], total, atol=1e-6)
    release, _ = quiet.open(update, call.privacy, np.random.default_rng(0))
    noise = 0.5 * quiet.plan.noise_multiplier / 15
    assert (release.mean - total / 15).norm() < 8 * noise * 10**0.5


def test_under_replace_one_a_silent_client_is_a_zero_update():
    placement, _ = placements()["sector"]
    side = ClientSide(LocalTraining(objective(), STEPS), placement)
    state = placement.start(10)
    call = RoundRequest({"model": torch.zeros(10)}, state, RowOrder(0, 0))
    engine = FaultInjectingEngine(InProcess(people()), FaultInjection(hostile={0: "nan"}))
    update = engine.map_reduce(side, call, np.arange(15), np.random.default_rng(0))
    assert (update.answered, [one.sender for one in update.refused]) == (14, [0])
    filled = update + placement._missing(update, state, np.random.default_rng(0))
    alone, _ = InProcess(people()).apart(side, call, np.arange(1, 15), np.random.default_rng(0))
    assert torch.allclose(filled.sums[0], sum(one.sums[0] for one in alone.values()), atol=1e-6)


def letters(validator, side, call, ids):
    updates, _ = InProcess(people()).apart(side, call, ids, np.random.default_rng(0))
    return [
        ReceivedUpdate(client, validator.token(call.order.round, client), update) for client, update in updates.items()
    ]


def outdoors(number=4):
    side = ClientSide(LocalTraining(objective(), STEPS), ClearUpdates(gather=True))
    return UpdateValidator(), side, RoundRequest({"model": torch.zeros(10)}, None, RowOrder(0, number))


def test_the_guard_knows_its_passes():
    validator, side, call = outdoors()
    asked = np.array([5, 2, 9])
    one, two, three = letters(validator, side, call, asked)
    forged = ReceivedUpdate(two.sender, one.token, two.update)
    random = ReceivedUpdate(three.sender, b"x" * 32, three.update)
    stale = ReceivedUpdate(one.sender, validator.token(2, one.sender), one.update)
    unasked = ReceivedUpdate(20, validator.token(4, 20), one.update)
    stranger = ReceivedUpdate(10**6, b"", one.update)
    update = validator.sift([forged, random, stale, unasked, stranger, one, one], side, call, asked)
    assert update.answered == 1
    assert update.senders == (one.sender,)
    assert [(r.sender, r.reason.split(":")[0]) for r in update.refused] == [
        (two.sender, "impostor"),
        (three.sender, "impostor"),
        (one.sender, "late"),
        (20, "was not asked this round"),
        (10**6, "impostor"),
        (one.sender, "duplicate"),
    ]
    assert UpdateValidator().token(4, 5) != validator.token(4, 5)


def test_a_forged_letter_does_not_keep_the_honest_one_out():
    validator, side, call = outdoors()
    asked = np.array([5, 2, 9])
    honest = letters(validator, side, call, asked)
    forged = ReceivedUpdate(honest[0].sender, b"?" * 32, honest[1].update)
    update = validator.sift([forged, *honest], side, call, asked)
    assert update.answered == 3
    assert update.senders == (5, 2, 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["none", "central", "metric"])
def test_every_kind_of_hostility_is_named_and_the_others_count(kind, name):
    placement, _ = placements()[name]
    work = LocalTraining(objective(), STEPS)
    side, engine = (
        ClientSide(work, placement),
        FaultInjectingEngine(InProcess(people()), FaultInjection(hostile={6: kind})),
    )
    for number in range(2):
        call = RoundRequest({"model": torch.full((10,), 0.1 * number)}, placement.start(10), RowOrder(0, number))
        update = engine.map_reduce(side, call, np.arange(10), np.random.default_rng(number))
    assert len(update.refused) == 1
    refused = update.refused[0]
    assert refused.sender == (0 if kind == "impostor" else 6)
    assert update.answered == (10 if kind in ("duplicate", "impostor") else 9)
    word = {"nan": "finite", "huge": "larger", "duplicate": "duplicate", "malformed": "malformed"}
    assert word.get(kind, kind) in refused.reason


def test_a_client_that_just_passes_its_bound_is_refused_and_an_honest_one_never_is():
    placement, _ = placements()["central"]
    side = ClientSide(LocalTraining(objective(), LocalSteps(5.0, 5)), placement)
    call = RoundRequest({"model": torch.zeros(10)}, placement.start(10), RowOrder(0, 0))
    validator = UpdateValidator()
    honest = letters(validator, side, call, np.arange(CLIENTS))
    assert max(float(one.update.sums[0].norm()) for one in honest) == pytest.approx(0.5, rel=1e-4)
    assert validator.sift(honest, side, call, np.arange(CLIENTS)).answered == CLIENTS
    from dataclasses import replace

    over = [replace(one, update=replace(one.update, sums=(one.update.sums[0] * 1.1,))) for one in honest]
    assert UpdateValidator(key=validator.key).sift(over, side, call, np.arange(CLIENTS)).answered == sum(
        1.1 * float(one.update.sums[0].norm()) <= 0.5005 for one in honest
    )


def test_stragglers_are_read_one_round_late_and_turned_away():
    engine = FaultInjectingEngine(InProcess(people()), FaultInjection(late=0.5, seed=2))
    placement, selection = placements()["none"]
    result = go(engine, placement, selection, rounds=6)
    late = [one for each in result.history for one in each.refused]
    assert late
    assert {one.reason.split(":")[0] for one in late} == {"late"}
    for before, after in zip(result.history, result.history[1:], strict=False):
        assert len(after.refused) == before.dropped


def test_metric_pfl_weathers_it_too():
    rng = np.random.default_rng(0)
    law = torch.tensor([[5.0, 6.0], [4.0, -4.5]])
    shards = []
    for client in range(CLIENTS):
        x = torch.from_numpy(rng.standard_normal((12, 2))).float()
        shards.append((x, (x @ law[client % 2])[:, None]))
    population = Population.of(shards)
    work = BestModel(of_module(nn.Linear(2, 1, bias=False), losses.mse), LocalSteps(0.1, 12))
    method = FederatedMethod(MetricPflServer(), work, Metric(0.5), ClientsInTurn(15))
    engine = FaultInjectingEngine(InProcess(population), STORM)
    start = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    result = federate(method, engine, start, clients=CLIENTS, rounds=40, rng=np.random.default_rng(0))
    assert torch.cdist(law, result.models).min(dim=1).values.max() < 1.0
    assert {sender for sender, _ in reasons(result)} == {3, 7, 11}


def test_calm_weather_changes_nothing():
    placement, selection = placements()["none"]
    outside = go(FaultInjectingEngine(InProcess(people()), FaultInjection()), placement, selection, rounds=5)
    inside = go(InProcess(people()), placement, selection, rounds=5)
    assert torch.allclose(outside.models, inside.models, atol=1e-5)
    assert FaultInjection().calm
    assert not STORM.calm
    assert [one.sent for one in outside.history] == [15 * 40] * 5
    assert [one.received for one in outside.history] == [one.received for one in inside.history] == [15 * 44] * 5


def test_weather_that_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match="dropout"):
        FaultInjection(dropout=1.0)
    with pytest.raises(InvalidInput, match="choose one"):
        FaultInjection(hostile={1: "rude"})
    with pytest.raises(InvalidInput, match="KIND:CLIENT"):
        hostile_of("nan=3")
