"""Every strategy against what its paper promises, on problems whose answer is known."""

import numpy as np
import pytest
import torch
from torch import nn

from sordina.errors import InvalidInput, Unsupported
from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalGradient, LocalTraining
from sordina.federated.algorithms.ifca import BestModel, BestUpdate, IfcaServer
from sordina.federated.algorithms.metric_pfl import MetricPflServer, SteadyPflServer, kmeans, spread
from sordina.federated.algorithms.scaffold import ScaffoldClient, ScaffoldServer
from sordina.federated.engines import InProcess
from sordina.federated.messages import Release
from sordina.federated.objective import of_module
from sordina.federated.population import Population, SampledClients
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates
from sordina.federated.round import FederatedMethod, federate
from sordina.sampling import FixedSize


def regression(sizes, seed=0, laws=((1.0, -2.0, 0.5),), features=3):
    """Clients of unequal size and scale, each following one of ``laws``: label and feature skew at once."""
    rng = np.random.default_rng(seed)
    shards, truth = [], []
    for client, size in enumerate(sizes):
        law = np.array(laws[client % len(laws)])
        x = rng.standard_normal((size, features)) * rng.uniform(0.2, 2.0, features)
        y = x @ law + 0.3 * rng.standard_normal(size) + rng.standard_normal()
        shards.append((torch.from_numpy(x), torch.from_numpy(y[:, None])))
        truth.append(client % len(laws))
    return Population.of(shards), truth


def objective():
    return of_module(nn.Linear(3, 1, bias=False).double(), losses.mse)


def optimum(population, weights):
    """The minimiser of ``sum_k w_k F_k``."""
    gram = sum(
        w * population.x[rows].T @ population.x[rows] / len(population.x[rows])
        for w, rows in zip(weights, slices(population), strict=True)
    )
    moment = sum(
        w * population.x[rows].T @ population.y[rows] / len(population.x[rows])
        for w, rows in zip(weights, slices(population), strict=True)
    )
    return torch.linalg.solve(gram, moment).flatten()


def slices(population):
    return [slice(int(s), int(s + n)) for s, n in zip(population.starts, population.sizes, strict=True)]


def go(strategy, work, population, rounds, models, per_round=None, placement=None):
    count = len(population)
    selection = SampledClients(FixedSize(per_round or count, count))
    method = FederatedMethod(
        strategy, work, placement or ClearUpdates(UNIFORM, gather=strategy.needs_vectors), selection
    )
    engine = InProcess(population)
    rng = np.random.default_rng(1)
    return federate(method, engine, models, clients=count, rounds=rounds, rng=rng).models


def test_fedsgd_with_all_clients_is_centralised_gradient_descent():
    population, _ = regression([5, 17, 3, 40])
    start = torch.zeros(1, 3, dtype=torch.float64)
    ours = go(AddMean(learning_rate=0.1), LocalGradient(objective()), population, 25, start, placement=ClearUpdates())[
        0
    ]
    theta = torch.zeros(3, dtype=torch.float64)
    for _ in range(25):
        residual = population.x @ theta - population.y.flatten()
        theta = theta - 0.1 * 2 * population.x.T @ residual / len(population.x)
    assert torch.allclose(ours, theta, atol=1e-12, rtol=0)


def test_fedavg_with_one_full_local_step_is_fedsgd():
    population, _ = regression([5, 17, 3, 40])
    start = torch.zeros(1, 3, dtype=torch.float64)
    step = LocalSteps(0.1, batch_size=100)
    avg = go(AddMean(), LocalTraining(objective(), step), population, 10, start, placement=ClearUpdates())
    sgd = go(AddMean(0.1), LocalGradient(objective()), population, 10, start, placement=ClearUpdates())
    assert torch.allclose(avg, sgd, atol=1e-12)


def test_fedprox_without_its_term_is_fedavg_and_with_a_huge_one_hardly_moves():
    population, _ = regression([8, 8])
    start = torch.ones(1, 3, dtype=torch.float64)
    steps = LocalSteps(1e-3, batch_size=4, epochs=20)
    avg, same, held = (
        go(AddMean(), LocalTraining(objective(), steps, mu=mu), population, 3, start) for mu in (0.0, 1e-9, 500.0)
    )
    assert torch.allclose(avg, same, atol=1e-6)
    assert (held - start).norm() < 0.1 * (avg - start).norm()


def test_scaffold_reaches_the_optimum_where_fedavg_drifts():
    population, _ = regression([10] * 6, laws=((1, 0, 0), (0, 4, 0), (0, 0, -6)))
    best = optimum(population, [1 / 6] * 6)
    start = torch.zeros(1, 3, dtype=torch.float64)
    steps = LocalSteps(0.05, batch_size=10, epochs=10)
    avg = go(AddMean(), LocalTraining(objective(), steps), population, 60, start)[0]
    scaffold = go(ScaffoldServer(1.0, steps.learning_rate), ScaffoldClient(objective(), steps), population, 60, start)[
        0
    ]
    assert (scaffold - best).norm() < 1e-2
    assert (avg - best).norm() > 0.1


def test_scaffold_with_few_clients_a_round_still_beats_fedavg():
    population, _ = regression([10] * 10, laws=((1, 0, 0), (0, 4, 0), (0, 0, -6)))
    best = optimum(population, [0.1] * 10)
    start = torch.zeros(1, 3, dtype=torch.float64)
    steps = LocalSteps(0.05, batch_size=10, epochs=10)
    avg = go(AddMean(), LocalTraining(objective(), steps), population, 80, start, per_round=3)[0]
    server = ScaffoldServer(0.3, steps.learning_rate)
    scaffold = go(server, ScaffoldClient(objective(), steps), population, 80, start, per_round=3)[0]
    assert (scaffold - best).norm() < 0.3 * (avg - best).norm()


def two_laws():
    rng = np.random.default_rng(0)
    shards = []
    for client in range(20):
        law = torch.tensor([[5.0, 6.0, 1.0], [4.0, -4.5, 0.0]][client % 2], dtype=torch.float64)
        x = torch.from_numpy(rng.standard_normal((12, 3)))
        shards.append((x, (x @ law)[:, None]))
    return Population.of(shards), torch.tensor([[5.0, 6.0, 1.0], [4.0, -4.5, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("strategy", "work"),
    [
        (IfcaServer(2.0), BestUpdate),
        (MetricPflServer(), BestModel),
        (SteadyPflServer(noise_multiplier=0.0, memory=0.0), BestModel),
    ],
)
def test_hypotheses_find_the_two_laws(strategy, work):
    population, laws = two_laws()
    start = torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]], dtype=torch.float64)
    models = go(strategy, work(objective(), LocalSteps(0.1, 12)), population, 150, start)
    assert torch.allclose(models, laws, atol=1e-3)


def test_ifca_with_one_hypothesis_is_fedavg():
    population, _ = two_laws()
    steps = LocalSteps(0.1, 4)
    start = torch.zeros(1, 3, dtype=torch.float64)
    one = go(IfcaServer(), BestUpdate(objective(), steps), population, 5, start)
    avg = go(AddMean(), LocalTraining(objective(), steps), population, 5, start)
    assert torch.allclose(one, avg, atol=1e-12)


def test_metric_pfl_with_one_hypothesis_is_the_mean_of_models():
    vectors = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    strategy = MetricPflServer()
    state = strategy.update(strategy.init(torch.zeros(1, 2)), Release(vectors.mean(0), vectors))
    assert torch.equal(state, torch.tensor([[2.0, 4.0]]))


def test_an_empty_cluster_keeps_its_hypothesis():
    centres, labels = kmeans(torch.tensor([[0.0, 0.1], [0.1, 0.0]]), torch.tensor([[0.0, 0.0], [9.0, 9.0]]))
    assert torch.allclose(centres, torch.tensor([[0.05, 0.05], [9.0, 9.0]]))
    assert labels.tolist() == [0, 0]


def test_kmeans_ends_where_every_point_is_nearest_to_the_mean_of_its_own_cluster():
    rng = np.random.default_rng(0)
    points = torch.from_numpy(np.concatenate([rng.standard_normal((30, 4)) + 2 * k for k in range(3)]))
    centres, labels = kmeans(points, points[[0, 31, 70]])
    for j in range(3):
        assert torch.allclose(centres[j], points[labels == j].mean(0))
    assert torch.equal(torch.cdist(points, centres).argmin(1), labels)


def test_the_steady_server_moves_the_less_the_more_noise_there_is():
    vectors = torch.tensor([[1.0, 0.0], [1.2, 0.1], [0.9, -0.1]])
    moves = []
    for nu in (0.0, 1.0, 5.0):
        strategy = SteadyPflServer(nu)
        state = strategy.update(strategy.init(torch.zeros(1, 2)), Release(vectors.mean(0), vectors))
        moves.append(float(state.hypotheses.norm()))
    assert moves[0] == pytest.approx(1.03, abs=0.03)
    assert moves[1] == pytest.approx(moves[0] * 3 / 4, rel=1e-6)
    assert moves[2] == pytest.approx(moves[0] * 3 / 28, rel=1e-6)


def test_the_steady_server_re_seeds_a_hypothesis_that_nobody_comes_near():
    strategy = SteadyPflServer(noise_multiplier=1.0, drought=10)
    state = strategy.init(torch.tensor([[0.0, 0.0], [100.0, 100.0]]))
    rng = np.random.default_rng(0)
    for _ in range(4):
        vectors = torch.from_numpy(rng.standard_normal((4, 2))).float()
        state = strategy.update(state, Release(vectors.mean(0), vectors))
    assert state.hypotheses.norm(dim=1).max() < 10
    assert (state.hypotheses[0] - state.hypotheses[1]).norm() > 0.1


def test_the_steady_estimate_beats_the_mean_under_euclidean_laplace_noise():
    from sordina.mechanisms.laplace import MetricLaplace

    rng = np.random.default_rng(0)
    truth = torch.tensor([0.2, 0.0], dtype=torch.float64)
    ours, mean = [], []
    for _ in range(300):
        vectors = MetricLaplace(2 / (5 * 0.2)).release_rows(truth.expand(40, 2), rng)
        strategy = SteadyPflServer(noise_multiplier=5.0)
        state = strategy.update(
            strategy.init(torch.zeros(1, 2, dtype=torch.float64)), Release(vectors.mean(0), vectors)
        )
        estimate = state.hypotheses[0] * (40 + 25) / 40
        ours.append(float((estimate - truth).square().sum()))
        mean.append(float((vectors.mean(0) - truth).square().sum()))
    assert np.mean(ours) < 0.85 * np.mean(mean)


def test_spread_hypotheses_are_equally_far_from_each_other():
    points = spread(4, 10, 2.0, np.random.default_rng(0))
    gaps = torch.pdist(points)
    assert torch.allclose(gaps, gaps[0].expand_as(gaps), atol=1e-5)
    assert torch.allclose(points.norm(dim=1), torch.full((4,), 2.0), atol=1e-5)
    assert spread(5, 2, 1.0, np.random.default_rng(0)).shape == (5, 2)


def test_strategies_refuse_what_they_cannot_use():
    with pytest.raises(InvalidInput, match="one model"):
        AddMean().init(torch.zeros(2, 3))
    with pytest.raises(InvalidInput, match="only their mean"):
        MetricPflServer().update(torch.zeros(1, 2), Release(torch.zeros(2)))
    with pytest.raises(Unsupported, match="IFCA"):
        FederatedMethod(
            MetricPflServer(),
            BestModel(objective(), LocalSteps(0.1, 1)),
            ClearUpdates(),
            SampledClients(FixedSize(1, 1)),
        )
