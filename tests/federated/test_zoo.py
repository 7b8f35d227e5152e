"""Every further algorithm: equal to its plain loop, and pinned to its paper where the answer is known."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sordina.errors import InvalidInput, Unsupported
from sordina.federated import losses
from sordina.federated.algorithms import registry
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.algorithms.feddyn import DynamicRegulariser, FedDynServer
from sordina.federated.algorithms.fedem import Mixture
from sordina.federated.algorithms.fsvrg import FsvrgServer, VarianceReduced
from sordina.federated.algorithms.ifca import IfcaServer
from sordina.federated.algorithms.per_fedavg import MetaTraining
from sordina.federated.algorithms.personal import GraphNeighbours, GraphServer, NearMean
from sordina.federated.algorithms.sub_fedavg import Intersection, SubNetwork
from sordina.federated.engines import ClientSide, InProcess, RoundRequest
from sordina.federated.objective import of_module
from sordina.federated.population import Population, RowOrder, SampledClients
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates, FederationFacts
from sordina.federated.round import FederatedMethod, federate
from sordina.sampling import FixedSize


def _sibling(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain, zoo = _sibling("plain"), _sibling("plain_zoo")

SIZES = [7, 1, 12, 4, 0, 5, 12, 3]
WORKS = {
    "feddyn": (lambda o, s: DynamicRegulariser(o, s, 0.3), zoo.feddyn),
    "fsvrg": (lambda o, s: VarianceReduced(o, s), zoo.fsvrg),
    "mean-regularised": (lambda o, s: NearMean(o, s, 0.8), zoo.near_mean),
    "graph-regularised": (lambda o, s: GraphNeighbours(o, s, 0.6), zoo.graph),
    "per-fedavg": (lambda o, s: MetaTraining(o, s, 0.2), zoo.meta),
    "fedem": (lambda o, s: Mixture(o, s, 3), zoo.mixture),
    "sub-fedavg": (lambda o, s: SubNetwork(o, s, 0.5, 0.3), zoo.sub_network),
}
STEPS = {"two epochs": LocalSteps(0.1, 3, epochs=2), "five steps": LocalSteps(0.1, 5, steps=5)}


def networks(name):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3)).double()


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("network", "steps"), [("mlp", "two epochs"), ("mlp", "five steps"), ("cnn", "two epochs")])
def test_batched_equals_loop_equals_plain_pytorch(network, steps, work):
    torch.manual_seed(0)
    module = networks(network)
    objective = of_module(module, losses.cross_entropy)
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((sum(SIZES), 1, 4, 4)))
    population = Population(x, torch.from_numpy(rng.integers(3, size=sum(SIZES))), np.array(SIZES))
    make, reference = WORKS[work]
    ours = make(objective, STEPS[steps])
    sent = zoo.message(objective, len(SIZES), 3)
    ids = np.array([3, 0, 4, 7, 2, 6, 1, 5])
    results = []
    for chunk in (100, 3, 1):
        engine = InProcess(population, chunk=chunk)
        side = ClientSide(ours, ClearUpdates(UNIFORM, gather=True))
        for number in range(3):
            update = engine.map_reduce(
                side, RoundRequest(sent, None, RowOrder(9, number)), ids, np.random.default_rng(0)
            )
        assert update.senders == tuple(ids)
        results.append((update.vectors[torch.from_numpy(np.argsort(ids))], engine.states))
    for vectors, states in results[1:]:
        assert torch.allclose(vectors, results[0][0], atol=1e-6, rtol=0)
        assert all(torch.allclose(states[name], results[0][1][name], atol=1e-6, rtol=0) for name in states)

    vectors, states = results[0]
    for client in range(len(SIZES)):
        own = zoo.zeros(ours)
        for number in range(3):
            vector, own = reference(
                plain,
                module,
                losses.cross_entropy,
                False,
                sent,
                population,
                client,
                RowOrder(9, number),
                STEPS[steps],
                own,
            )
        assert torch.allclose(vectors[client], vector, atol=1e-6, rtol=0), client
        for name in states:
            assert torch.allclose(states[name][client], own[name].to(states[name]), atol=1e-6, rtol=0), (client, name)


def test_fsvrg_first_exchange_is_a_gradient_in_units_of_a_step():
    population, objective = quadratics()
    sent = {"model": torch.ones(3, dtype=torch.float64), "gradient": torch.zeros(3), "phase": torch.tensor(0)}
    outcome, _ = VarianceReduced(objective, LocalSteps(0.2, 4)).run(
        sent, population.cohort(np.arange(6)), {}, RowOrder()
    )
    for client in range(6):
        expected = -0.2 * (hessian(population, client) @ (sent["model"] - target(population, client)))
        assert torch.allclose(outcome.vectors[client], expected, atol=1e-10)


def quadratics(clients=6, rows=10, seed=0):
    """Linear regressions whose clients disagree, in features and in truth."""
    rng = np.random.default_rng(seed)
    shards = []
    for client in range(clients):
        law = np.array(((1, 0, 0), (0, 4, 0), (0, 0, -6))[client % 3], dtype=float)
        x = rng.standard_normal((rows, 3)) * rng.uniform(0.3, 1.5, 3)
        shards.append((torch.from_numpy(x), torch.from_numpy((x @ law + 0.3 * rng.standard_normal(rows))[:, None])))
    return Population.of(shards), of_module(nn.Linear(3, 1, bias=False).double(), losses.mse)


def rows_of(population, client):
    first = int(population.starts[client])
    rows = slice(first, first + int(population.sizes[client]))
    return population.x[rows], population.y[rows]


def hessian(population, client):
    x, _ = rows_of(population, client)
    return 2 * x.T @ x / len(x)


def target(population, client):
    """Where a client alone would end."""
    x, y = rows_of(population, client)
    return torch.linalg.lstsq(x, y).solution.flatten()


def balance(population, curvatures):
    """The minimiser of ``sum_k (theta - c_k)' B_k (theta - c_k)``."""
    moments = [b @ target(population, client) for client, b in enumerate(curvatures)]
    return torch.linalg.solve(sum(curvatures), sum(moments))


def optimum(population):
    return balance(population, [hessian(population, client) for client in range(len(population))])


def go(strategy, work, population, rounds, models=None, per_round=None):
    count = len(population)
    start = torch.zeros(1, 3, dtype=torch.float64) if models is None else models
    placement = ClearUpdates(UNIFORM, gather=strategy.needs_vectors)
    method = FederatedMethod(strategy, work, placement, SampledClients(FixedSize(per_round or count, count)))
    engine = InProcess(population)
    rng = np.random.default_rng(1)
    return federate(method, engine, start, clients=count, rounds=rounds, rng=rng), engine


LONG = LocalSteps(0.05, 10, epochs=10)


@pytest.mark.parametrize(("per_round", "rounds"), [(6, 100), (3, 300)])
def test_feddyn_reaches_the_optimum_where_fedavg_drifts(per_round, rounds):
    population, objective = quadratics()
    best = optimum(population)
    server = FedDynServer(per_round / 6)
    dyn, _ = go(server, DynamicRegulariser(objective, LONG, 0.5), population, rounds, per_round=per_round)
    avg, _ = go(AddMean(), LocalTraining(objective, LONG), population, rounds, per_round=per_round)
    assert (dyn.models[0] - best).norm() < 1e-3
    assert (avg.models[0] - best).norm() > 0.1


def test_at_feddyns_fixed_point_every_client_keeps_its_gradient_at_the_optimum():
    population, objective = quadratics()
    best = optimum(population)
    _, engine = go(FedDynServer(1.0), DynamicRegulariser(objective, LONG, 0.5), population, 120)
    for client in range(6):
        gradient = hessian(population, client) @ (best - target(population, client))
        assert torch.allclose(engine.states["dual"][client], gradient, atol=1e-3)


def test_fsvrg_with_one_client_is_svrg():
    population, objective = quadratics(clients=1, rows=12)
    x, y = population.x, population.y.flatten()
    steps = LocalSteps(0.6, 1)
    ours, _ = go(FsvrgServer(steps.learning_rate), VarianceReduced(objective, steps), population, 8)
    seed = int(np.random.default_rng(1).integers(2**63))
    theta = torch.zeros(3, dtype=torch.float64)
    for number in (1, 3, 5, 7):
        full, anchor = 2 * x.T @ (x @ theta - y) / 12, theta.clone()
        for positions in plain.arrange(population.sizes, np.array([0]), RowOrder(seed, number), batch_size=1):
            i = int(positions[0, 0])
            noisy = 2 * x[i] * (x[i] @ theta - y[i]) - 2 * x[i] * (x[i] @ anchor - y[i])
            theta = theta - 0.6 / 12 * (noisy + full)
    assert torch.allclose(ours.models[0], theta, atol=1e-12)


def test_fsvrg_reaches_the_optimum_of_clients_that_disagree():
    population, objective = quadratics()
    steps = LocalSteps(0.5, 2)
    ours, _ = go(FsvrgServer(steps.learning_rate), VarianceReduced(objective, steps), population, 300)
    assert (ours.models[0] - optimum(population)).norm() < 1e-3


def test_sub_fedavg_that_prunes_nothing_is_fedavg():
    population, objective = quadratics()
    steps = LocalSteps(0.05, 4)
    sub, _ = go(Intersection(steps.learning_rate), SubNetwork(objective, steps, 0.0), population, 8)
    avg, _ = go(AddMean(), LocalTraining(objective, steps), population, 8)
    assert torch.allclose(sub.models, avg.models, atol=1e-12)


def test_sub_fedavg_prunes_to_its_target_and_averages_over_those_who_keep_a_weight():
    population, objective = quadratics()
    steps = LocalSteps(0.05, 4)
    work = SubNetwork(objective, steps, 0.67, pace=0.5)
    result, engine = go(Intersection(steps.learning_rate), work, population, 12)
    assert engine.states["pruned"].sum(dim=1).tolist() == [2.0] * 6
    cohort, states = population.cohort(np.arange(6)), dict(engine.states)
    mine = work.personal(result.sent, cohort, states, RowOrder()).models[:, 0]
    assert bool((mine[states["pruned"] > 0] == 0).all())

    outcome, fresh = work.run(result.sent, cohort, states, RowOrder(5, 5))
    moved, kept = outcome.vectors[:, :3], 1 - fresh["pruned"]
    expected = result.models[0] + moved.sum(dim=0) / kept.sum(dim=0).clamp(min=1)
    from sordina.federated.messages import Release

    new = Intersection(steps.learning_rate).update(result.models[0], Release(outcome.vectors.mean(dim=0)))
    assert torch.allclose(new, expected, atol=1e-12)
    assert kept.sum(dim=0).min() < 6


def consensus(population, weight, rounds=120):
    objective = quadratics()[1]
    work = NearMean(objective, LONG, weight)
    result, engine = go(AddMean(), work, population, rounds)
    return result.models[0], engine.states["personal"]


def test_without_a_pull_clients_train_alone():
    population, _ = quadratics()
    _, own = consensus(population, 0.0)
    for client in range(6):
        assert torch.allclose(own[client], target(population, client), atol=1e-3)


def test_mean_regularised_models_solve_the_papers_problem():
    """``grad F_k(theta_k) + lambda (theta_k - mean) = 0`` for all k, and the mean is the mean."""
    population, _ = quadratics()
    mean, own = consensus(population, 0.7)
    assert torch.allclose(mean, own.mean(dim=0), atol=1e-6)
    for client in range(6):
        slope = hessian(population, client) @ (own[client] - target(population, client))
        assert torch.allclose(slope + 0.7 * (own[client] - mean), torch.zeros(3, dtype=torch.float64), atol=1e-5)


def test_the_stronger_the_pull_the_more_clients_agree():
    population, _ = quadratics()
    spreads = []
    for weight in (0.0, 1.0, 10.0):
        mean, own = consensus(population, weight, rounds=60)
        spreads.append(float((own - mean).norm(dim=1).mean()))
    assert spreads[2] < 0.3 * spreads[1] < 0.3 * spreads[0]
    with pytest.raises(InvalidInput, match="overshoot"):
        consensus(population, 21.0)


def test_per_fedavg_without_an_inner_step_is_fedavg():
    population, objective = quadratics()
    steps = LocalSteps(0.05, 4, epochs=2)
    meta, _ = go(AddMean(), MetaTraining(objective, steps, 0.0), population, 5)
    avg, _ = go(AddMean(), LocalTraining(objective, steps), population, 5)
    assert torch.allclose(meta.models, avg.models, atol=1e-12)


def test_per_fedavg_finds_the_best_model_to_adapt_from():
    """With ``F_k = (theta - c)' H (theta - c) / 2``, ``F_k(theta - a grad)`` has curvature ``(I - aH) H (I - aH)``."""
    population, objective = quadratics()
    alpha = 0.15
    curvatures = []
    for client in range(6):
        shrunk = torch.eye(3, dtype=torch.float64) - alpha * hessian(population, client)
        curvatures.append(shrunk @ hessian(population, client) @ shrunk)
    best = balance(population, curvatures)
    work = MetaTraining(objective, LocalSteps(0.2, 10), alpha)
    result, _ = go(AddMean(), work, population, 300)
    assert (result.models[0] - best).norm() < 1e-4
    assert (best - optimum(population)).norm() > 0.1
    mine = work.personal(result.sent, population.cohort(np.arange(6)), {}, RowOrder()).models[:, 0]
    for client in range(6):
        step = hessian(population, client) @ (best - target(population, client))
        assert torch.allclose(mine[client], best - alpha * step, atol=1e-3)


def test_models_on_a_graph_solve_the_papers_problem():
    """``grad F_k(theta_k) + lambda sum_l W_kl (theta_k - theta_l) = 0``: one linear system in all models."""
    population, objective = quadratics()
    links = torch.zeros(6, 6, dtype=torch.float64)
    for a, b, w in ((0, 3, 1.0), (1, 4, 0.5), (2, 5, 2.0), (0, 1, 0.1)):
        links[a, b] = links[b, a] = w
    work = GraphNeighbours(objective, LONG, 0.8)
    _, engine = go(GraphServer(6, weights=links), work, population, 120)
    blocks = torch.block_diag(*[hessian(population, client) for client in range(6)])
    laplacian = torch.diag(links.sum(dim=1)) - links
    system = blocks + 0.8 * torch.kron(laplacian, torch.eye(3, dtype=torch.float64))
    side = torch.cat([hessian(population, client) @ target(population, client) for client in range(6)])
    expected = torch.linalg.solve(system, side).view(6, 3)
    assert torch.allclose(engine.states["personal"], expected, atol=1e-5)


def test_on_a_complete_graph_clients_are_pulled_to_their_mean():
    population, objective = quadratics()
    links = (torch.ones(6, 6, dtype=torch.float64) - torch.eye(6, dtype=torch.float64)) / 6
    _, engine = go(GraphServer(6, weights=links), GraphNeighbours(objective, LONG, 0.7), population, 120)
    _, own = consensus(population, 0.7)
    assert torch.allclose(engine.states["personal"], own, atol=1e-4)


def test_a_learnt_graph_ties_clients_that_follow_the_same_law():
    population, objective = quadratics(clients=9, rows=30)
    server = GraphServer(9, nearest=2)
    result, _ = go(server, GraphNeighbours(objective, LONG, 0.5), population, 30)
    graph = result.sent["graph"]
    for a in range(9):
        friends = set(torch.nonzero(graph[a]).flatten().tolist())
        assert friends == {b for b in range(9) if b % 3 == a % 3 and b != a}


def test_fedem_with_one_component_is_fedavg():
    population, objective = quadratics()
    steps = LocalSteps(0.05, 4)
    em, _ = go(IfcaServer(), Mixture(objective, steps, 1), population, 5)
    avg, _ = go(AddMean(), LocalTraining(objective, steps), population, 5)
    assert torch.allclose(em.models, avg.models, atol=1e-10)


def test_fedem_recovers_the_laws_and_each_clients_shares():
    """Every client's rows come from both laws, in shares of its own: no client has one model that fits."""
    rng = np.random.default_rng(0)
    laws = torch.tensor([[5.0, 6.0, 1.0], [4.0, -4.5, 0.0]], dtype=torch.float64)
    shards, shares = [], [0.1, 0.3, 0.5, 0.7, 0.9, 0.2]
    for share in shares:
        x = torch.from_numpy(rng.standard_normal((300, 3)))
        first = torch.from_numpy(rng.random(300) < share)
        y = torch.where(first, x @ laws[0], x @ laws[1]) + 0.3 * torch.from_numpy(rng.standard_normal(300))
        shards.append((x, y[:, None]))
    population = Population.of(shards)
    objective = of_module(nn.Linear(3, 1, bias=False).double(), losses.mse)
    start = torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]], dtype=torch.float64)
    work = Mixture(objective, LocalSteps(0.2, 300, epochs=3), 2)
    result, engine = go(IfcaServer(), work, population, 60, start)
    assert torch.allclose(result.models, laws, atol=0.1)
    truth = torch.tensor(shares, dtype=torch.float64)
    assert torch.allclose(engine.states["shares"][:, 0], truth, atol=0.1)
    mine = work.personal(result.sent, population.cohort(np.arange(6)), dict(engine.states), RowOrder())
    assert torch.allclose(mine.weights[:, 0], truth, atol=0.1)


def test_every_name_makes_a_method_and_what_cannot_be_is_refused():
    _, objective = quadratics()
    options, facts = {"learning_rate": 0.1, "batch_size": 4, "models": 2}, FederationFacts(1, 6, 6)
    for name in registry.NAMES:
        strategy, work = registry.named(name, options).parts(objective, facts)
        models = torch.zeros(2 if name in registry.PERSONAL else 1, 3)
        assert work.width(strategy.configure(strategy.init(models))) % 3 == 0
    with pytest.raises(InvalidInput, match="unknown strategy"):
        registry.named("fedmagic", options)
    with pytest.raises(Unsupported, match="likelihood"):
        Mixture(of_module(nn.Linear(3, 1), losses.mse, root=True), LocalSteps(0.1, 4), 2)
    with pytest.raises(InvalidInput, match="symmetric"):
        GraphServer(2, 1, torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(InvalidInput, match="one model"):
        FedDynServer(1.0).init(torch.zeros(2, 3))


def test_personal_models_beat_the_global_one_when_clients_mean_different_things():
    """Half of the clients read the digits differently; every client is tested on rows it kept back."""
    from sordina.reproduction.zoo import compare_on_writers

    names = ("fedavg", "mean-regularised", "graph-regularised")
    rows = compare_on_writers(names, [0], data="digits", writers=12, rounds=15, per_round=12, steps=LocalSteps(0.2, 20))
    accuracy = {row["strategy"]: row["accuracy"] for row in rows}
    assert accuracy["fedavg"] < 0.65
    assert min(accuracy[name] for name in names[1:]) > accuracy["fedavg"] + 0.05, accuracy


def test_feddyn_needs_fewer_rounds_than_fedavg_on_skewed_labels():
    from sordina.reproduction.zoo import compare_on_skewed_labels

    runs = {
        row["strategy"]: row["accuracy"]
        for row in compare_on_skewed_labels(("fedavg", "feddyn"), [0], alpha=0.1, rounds=9)
    }
    assert max(runs["feddyn"]) > 0.9 > max(runs["fedavg"]) + 0.02


@pytest.mark.parametrize("work", WORKS)
def test_a_client_that_lives_elsewhere_says_the_same(work, tmp_path):
    """The path of Flower's clients: own rows, own folder, state that outlives the process; two rounds."""
    from sordina.federated.flower.client import ClientContext, ClientFolder, alone, answer
    from sordina.federated.messages import update_of_arrays

    torch.manual_seed(0)
    objective = of_module(networks("mlp"), losses.cross_entropy)
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((sum(SIZES), 1, 4, 4)))
    population = Population(x, torch.from_numpy(rng.integers(3, size=sum(SIZES))), np.array(SIZES))
    side = ClientSide(WORKS[work][0](objective, STEPS["two epochs"]), ClearUpdates(UNIFORM, gather=True))
    sent = zoo.message(objective, len(SIZES), 3)
    here = InProcess(population)
    for number in range(2):
        call = RoundRequest(sent, None, RowOrder(9, number))
        updates, _ = here.apart(side, call, np.arange(len(SIZES)), np.random.default_rng(0))
        for client in (2, 5):
            client_context = ClientContext(
                side, partial(alone, *rows_of(population, client), client), ClientFolder(tmp_path / str(client))
            )
            update = update_of_arrays(answer(client_context, call, 1, client))
            assert torch.allclose(update.vectors, updates[client].vectors, atol=1e-9, rtol=0)
