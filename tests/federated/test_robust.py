"""Robust means: their definitions, what they survive, and where they are refused."""

import numpy as np
import pytest
import torch
from torch import nn

from sordina.clipping import Fixed
from sordina.errors import InvalidInput, Unsupported
from sordina.federated import losses
from sordina.federated.aggregation import NAMES, Krum, Median, TrimmedMean, UpdateValidator, named
from sordina.federated.algorithms import registry
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.engines import FaultInjectingEngine, FaultInjection, InProcess
from sordina.federated.objective import of_module
from sordina.federated.population import ClientsInTurn, Population, SampledClients
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.local import Local
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates, FederationFacts
from sordina.federated.round import FederatedMethod, federate
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.sampling import FixedSize, Poisson

ROBUST = [Median(), TrimmedMean(0.2), Krum(0.2)]


def vectors(count=11, size=6, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, size)))


def test_median_and_trimmed_mean_are_numpys_and_scipys():
    from scipy.stats import trim_mean

    for count in (1, 2, 5, 10, 11):
        rows = vectors(count)
        assert np.allclose(Median().combine(rows), np.median(rows, axis=0))
    rows = vectors(10)
    assert np.allclose(TrimmedMean(0.2).combine(rows), trim_mean(rows, 0.2, axis=0))
    assert torch.allclose(TrimmedMean(0.0).combine(rows), rows.mean(dim=0))


def test_krum_is_its_definition():
    rows = vectors(9)
    hostile = 2
    scores = []
    for i in range(9):
        squares = sorted(float((rows[i] - rows[j]).square().sum()) for j in range(9) if j != i)
        scores.append(sum(squares[: 9 - hostile - 2]))
    assert torch.equal(Krum(0.2).combine(rows), rows[int(np.argmin(scores))])


@pytest.mark.parametrize("robust", ROBUST, ids=lambda one: type(one).__name__)
def test_one_client_in_five_can_do_little_and_no_order_matters(robust):
    honest = vectors(8) * 0.1 + 1
    hostile = torch.full((2, 6), 1e30, dtype=torch.float64)
    hostile[1] *= -3
    rows = torch.cat([honest, hostile])
    combined = robust.combine(rows)
    assert (combined - 1).abs().max() < 0.5
    shuffled = rows[torch.from_numpy(np.random.default_rng(1).permutation(10))]
    assert torch.allclose(robust.combine(shuffled), combined)


@pytest.mark.parametrize("robust", ROBUST, ids=lambda one: type(one).__name__)
def test_few_clients_and_equal_ones(robust):
    for count in (1, 2, 3):
        rows = torch.ones(count, 4)
        assert torch.equal(robust.combine(rows), torch.ones(4))


def federation():
    rng = np.random.default_rng(0)
    shards = []
    for _ in range(20):
        x = torch.from_numpy(rng.standard_normal((12, 3)))
        shards.append((x, x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)))
    return Population.of(shards), of_module(nn.Linear(3, 1, bias=False).double(), losses.mse)


def go(aggregator, placement, selection, engine, objective):
    method = FederatedMethod(AddMean(), LocalTraining(objective, LocalSteps(0.1, 4)), placement, selection, aggregator)
    start = torch.zeros(1, 3, dtype=torch.float64)
    return federate(method, engine, start, clients=20, rounds=40, rng=np.random.default_rng(0)).models[0]


class Reverse:
    """Clients that pull the other way, three times as hard: no guard can tell, as every number is plausible."""

    def __init__(self, inner, hostile):
        self.inner, self.hostile = inner, hostile
        self.accounts = inner.accounts

    def map_reduce(self, side, call, clients, rng):
        update = self.inner.map_reduce(side, call, clients, rng)
        sign = torch.tensor([-3.0 if one in self.hostile else 1.0 for one in update.senders])
        rows = update.vectors * sign[:, None]
        from dataclasses import replace

        return replace(update, vectors=rows, sums=(rows.sum(dim=0), update.sums[1]))


def test_a_robust_mean_survives_what_the_mean_does_not():
    population, objective = federation()
    truth = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    errors = {}
    for name in NAMES:
        engine = Reverse(InProcess(population), hostile=(1, 4, 8, 13, 17))
        placement, everyone = ClearUpdates(UNIFORM, gather=True), SampledClients(FixedSize(20, 20))
        errors[name] = float((go(named(name, 0.25), placement, everyone, engine, objective) - truth).norm())
    assert errors["mean"] > 1.5
    assert max(errors[name] for name in NAMES if name != "mean") < 0.1


def test_robust_means_work_on_what_clients_sanitised():
    population, objective = federation()
    local = Local(1.0, 0.02, 1e-5, 40)
    engine = FaultInjectingEngine(
        InProcess(population), FaultInjection(dropout=0.3, hostile={0: "huge"}), UpdateValidator(times=1e40)
    )
    model = go(Median(), local, ClientsInTurn(10), engine, objective)
    assert (model - torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)).norm() < 0.3


@pytest.mark.parametrize("robust", ROBUST, ids=lambda one: type(one).__name__)
def test_central_privacy_refuses_robust_means(robust):
    _, objective = federation()
    plan = make_plan(Budget(3.0, 1e-5), Poisson(10, 20), 5, unit=Unit.USER)
    work = LocalTraining(objective, LocalSteps(0.1, 4))
    with pytest.raises(Unsupported, match="calibrated"):
        FederatedMethod(AddMean(), work, Central(plan, Fixed(1.0)), SampledClients(plan.sampler), robust)


def test_strategies_that_sort_clients_refuse_robust_means():
    _, objective = federation()
    options, facts = {"learning_rate": 0.1, "batch_size": 4, "models": 2}, FederationFacts(1, 20, 20)
    everyone, gathered = SampledClients(FixedSize(20, 20)), ClearUpdates(UNIFORM, gather=True)
    for name in ("ifca", "fedem", "metric-pfl", "graph-regularised", "sub-fedavg"):
        strategy, work = registry.named(name, options).parts(objective, facts)
        with pytest.raises(Unsupported, match="models of their own"):
            FederatedMethod(strategy, work, gathered, everyone, Median())
    for name in ("fedsgd", "fedavg", "fedprox", "scaffold", "feddyn", "fsvrg", "per-fedavg", "mean-regularised"):
        strategy, work = registry.named(name, options).parts(objective, facts)
        FederatedMethod(strategy, work, gathered, everyone, Median())


def test_names_and_shares():
    assert named("mean") is None
    with pytest.raises(InvalidInput, match="unknown aggregation"):
        named("mode")
    with pytest.raises(InvalidInput, match="share"):
        TrimmedMean(0.5)
    with pytest.raises(InvalidInput, match="share"):
        Krum(-0.1)
