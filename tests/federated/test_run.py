"""The loop over rounds: what leaves a client, who withholds, when a run ends, and what a strategy gets to see."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from sordina.clipping import Fixed
from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.algorithms.ifca import BestModel
from sordina.federated.algorithms.metric_pfl import MetricPflServer
from sordina.federated.engines import InProcess
from sordina.federated.objective import of_module
from sordina.federated.population import ClientsInTurn, Population, SampledClients
from sordina.federated.privacy.accounts import exact
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local
from sordina.federated.privacy.metric import Metric, PublicRadius
from sordina.federated.problem import Validation
from sordina.federated.round import FederatedMethod, Patience, federate
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import FixedSize, Poisson

STEPS = LocalSteps(0.05, 5)


def people(clients=30, seed=0):
    rng = np.random.default_rng(seed)
    shards = []
    for _ in range(clients):
        x = rng.standard_normal((int(rng.integers(1, 9)), 2))
        shards.append((torch.from_numpy(x), torch.from_numpy(x @ [[1.0], [2.0]])))
    return Population.of(shards)


def objective():
    return of_module(nn.Linear(2, 1, bias=False).double(), losses.mse)


class Spy:
    """A strategy that remembers everything it was ever given."""

    def __init__(self, inner):
        self.inner = inner
        self.needs_vectors = inner.needs_vectors
        self.seen = []

    def init(self, models):
        return self.inner.init(models)

    def configure(self, state):
        return self.inner.configure(state)

    def update(self, state, release):
        self.seen.append(release)
        return self.inner.update(state, release)

    def models(self, state):
        return self.inner.models(state)


def start(k=1):
    return torch.from_numpy(np.random.default_rng(0).standard_normal((k, 2)))


def go(strategy, work, placement, selection, engine, rounds=10, k=1, **options):
    method = FederatedMethod(strategy, work, placement, selection)
    clients = len(engine.population)
    rng = np.random.default_rng(5)
    return federate(method, engine, start(k), clients=clients, rounds=rounds, rng=rng, **options)


def test_no_client_passes_its_limit_and_everybody_reaches_it():
    engine = InProcess(people(), limit=exact(2.4))
    result = go(
        MetricPflServer(),
        BestModel(objective(), STEPS),
        Metric(5.0),
        SampledClients(FixedSize(7, 30)),
        engine,
        200,
        k=2,
    )
    assert {account.spent for account in engine.accounts} == {Fraction(12, 5)}
    assert result.leakage.max() == 2.4
    assert all(account.participations == 6 for account in engine.accounts)
    assert sum(one.answered for one in result.history) == 6 * 30
    assert any(one.withheld for one in result.history)
    assert len(result.history) < 200


def test_under_metric_privacy_a_strategy_sees_sanitised_vectors_of_no_particular_order():
    population = people()
    seen = Spy(MetricPflServer())
    engine = InProcess(population)
    go(
        seen,
        BestModel(objective(), STEPS),
        Metric(5.0, PublicRadius(1.0)),
        SampledClients(FixedSize(7, 30)),
        engine,
        1,
        k=2,
    )
    raw = Spy(MetricPflServer())
    from sordina.federated.privacy.placement import UNIFORM, ClearUpdates

    quiet = ClearUpdates(UNIFORM, gather=True)
    go(raw, BestModel(objective(), STEPS), quiet, SampledClients(FixedSize(7, 30)), InProcess(population), 1, k=2)
    noised, clear = seen.seen[0].vectors, raw.seen[0].vectors
    assert noised.shape == clear.shape == (7, 2)
    assert (torch.cdist(noised, clear).min(dim=1).values > 1e-3).all()
    assert set(vars(seen.seen[0])) == {"mean", "vectors", "senders"}


def test_under_central_privacy_a_strategy_sees_one_noised_mean():
    plan = make_plan(Budget(3.0, 1e-5), Poisson(7, 30), 10, unit=Unit.USER)
    spy = Spy(AddMean())
    result = go(
        spy,
        LocalTraining(objective(), STEPS),
        Central(plan, Fixed(0.5)),
        SampledClients(plan.sampler),
        InProcess(people()),
    )
    assert len(spy.seen) == 10
    assert all(release.vectors is None for release in spy.seen)
    assert result.statement.epsilon <= 3.0
    assert result.statement.epsilon == pytest.approx(3.0, rel=0.01)
    assert result.leakage.max() == 0


def test_a_run_that_stops_early_has_spent_less():
    plan = make_plan(Budget(3.0, 1e-5), Poisson(7, 30), 10, unit=Unit.USER)
    central = Central(plan, Fixed(0.5))
    result = go(
        AddMean(), LocalTraining(objective(), STEPS), central, SampledClients(plan.sampler), InProcess(people()), 4
    )
    assert len(result.history) == 4
    assert result.statement.epsilon < 2.5


def test_local_privacy_counts_participations_against_its_calibration():
    local = Local.within(Budget(3.0, 1e-5), clip=0.5, participations=2)
    engine = InProcess(people(), limit=Fraction(2))
    result = go(AddMean(), LocalTraining(objective(), STEPS), local, ClientsInTurn(10), engine, 20)
    assert max(account.participations for account in engine.accounts) == 2
    assert result.statement.epsilon <= 3.0
    assert "against everybody" in result.statement.words


def test_patience_ends_a_run_and_the_best_models_are_kept():
    population = people()
    validation = Validation(objective(), people(20, seed=1))
    result = go(
        AddMean(learning_rate=3.0), LocalTraining(objective(), LocalSteps(0.2, 5)), Metric(3.0),
        SampledClients(FixedSize(7,
        30)),
        InProcess(population), 300, validation=validation, patience=Patience(5),
    )  # fmt: skip
    assert len(result.history) < 300
    again = validation.score(result.best, np.random.default_rng(0))
    assert again.loss == pytest.approx(min(result.losses))


def test_a_smoothed_patience_is_not_fooled_by_one_lucky_round():
    losses_seen = [5.0, 4.0, 0.1, 4.0, 3.5, 3.0, 2.5, 2.0]
    assert Patience(4).over(losses_seen)
    assert not Patience(4, window=4).over(losses_seen)


def test_non_finite_losses_count_as_no_improvement():
    assert Patience(2).over([1.0, float("nan"), float("inf")])


def test_a_seeded_run_repeats_itself():
    population = people(9)
    work = BestModel(objective(), STEPS)
    runs = [
        go(MetricPflServer(), work, Metric(2.0), ClientsInTurn(3), InProcess(population, chunk=2), 5, 2)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].models, runs[1].models)


def test_taking_turns_spreads_participations_evenly():
    engine = InProcess(people(30))
    go(MetricPflServer(), BestModel(objective(), STEPS), Metric(2.0), ClientsInTurn(7, seed=3), engine, 40, k=1)
    counts = [account.participations for account in engine.accounts]
    assert sum(counts) == 280
    assert max(counts) == 10


def test_held_out_clients_tell_randomised_losses():
    from sordina.errors import BudgetRefused
    from sordina.federated.problem import RandomizedMetrics

    def run(rounds, validations):
        metrics = RandomizedMetrics(40.0, validations, largest_loss=20.0, seed=1)
        validation = Validation(objective(), people(200, seed=1), metrics=metrics)
        return go(
            AddMean(), LocalTraining(objective(), STEPS), Metric(3.0), SampledClients(FixedSize(7, 30)),
            InProcess(people()), rounds, validation=validation,
        )  # fmt: skip

    result = run(4, 4)
    clear = Validation(objective(), people(200, seed=1)).score(result.models, np.random.default_rng(0)).loss
    assert result.losses[-1] != clear
    assert result.losses[-1] == pytest.approx(clear, abs=1.5)
    with pytest.raises(BudgetRefused):
        run(5, 4)
