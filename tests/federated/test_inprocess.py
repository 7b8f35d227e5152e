"""The batched engine equals its own loop, and both equal client work written plainly with modules and autograd."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sordina.federated import losses
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import ClippedGradient, LocalGradient, LocalTraining
from sordina.federated.algorithms.ifca import BestModel, BestUpdate
from sordina.federated.algorithms.scaffold import ScaffoldClient
from sordina.federated.engines import ClientSide, InProcess, RoundRequest
from sordina.federated.objective import of_module
from sordina.federated.population import Population, RowOrder
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates

_spec = importlib.util.spec_from_file_location("plain", Path(__file__).with_name("plain.py"))
plain = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plain)

SIZES = [7, 1, 12, 4, 0, 5, 12, 3]


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3))


def line():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 1))


PROBLEMS = {
    "mlp": (mlp, losses.cross_entropy, False),
    "cnn": (cnn, losses.cross_entropy, False),
    "rmse": (line, losses.mse, True),
    "class-rmse": (mlp, losses.class_mse, True),
    "hinge": (line, losses.hinge, False),
}
STEPS = {
    "one pass": LocalSteps(0.1, 4),
    "two epochs": LocalSteps(0.1, 3, epochs=2),
    "five steps": LocalSteps(0.1, 5, steps=5),
    "full batch": LocalSteps(0.1, 100, epochs=3),
}
WORKS = {
    "fedsgd": (lambda o, s: LocalGradient(o), plain.local_gradient),
    "fedavg": (lambda o, s: LocalTraining(o, s), plain.fedavg),
    "fedprox": (lambda o, s: LocalTraining(o, s, mu=0.7), plain.fedprox),
    "scaffold": (lambda o, s: ScaffoldClient(o, s), plain.scaffold),
    "ifca": (lambda o, s: BestUpdate(o, s), plain.best_update),
    "metric-pfl": (lambda o, s: BestModel(o, s), plain.best_model),
    "records": (lambda o, s: ClippedGradient(o, 0.5, 7.0, rows_at_once=5), plain.clipped_gradient),
}


def problem(name):
    make, loss, root = PROBLEMS[name]
    torch.manual_seed(0)
    module = make().double()
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((sum(SIZES), 1, 4, 4)))
    y = torch.from_numpy(rng.integers(3, size=sum(SIZES)))
    if loss is losses.mse:
        y = torch.from_numpy(rng.standard_normal((sum(SIZES), 1)))
    if loss is losses.hinge:
        y = y.clamp(max=1)
    return module, of_module(module, loss, root=root), loss, root, Population(x, y, np.array(SIZES))


def message(objective, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return {
        "model": draw(objective.size),
        "control": 0.1 * draw(objective.size),
        "hypotheses": draw(3, objective.size),
    }


def vectors(population, work, sent, chunk, rounds=2):
    """The raw vectors of every client after two rounds (the second starts from the states of the first)."""
    engine = InProcess(population, chunk=chunk)
    side = ClientSide(work, ClearUpdates(UNIFORM, gather=True))
    ids = np.array([3, 0, 4, 7, 2, 6, 1, 5])
    for number in range(rounds):
        update = engine.map_reduce(side, RoundRequest(sent, None, RowOrder(9, number)), ids, np.random.default_rng(0))
    return update.vectors[torch.from_numpy(np.argsort(ids))], engine


CASES = [("mlp", steps) for steps in STEPS] + [(name, "two epochs") for name in PROBLEMS if name != "mlp"]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("name", "steps"), CASES)
def test_batched_equals_loop_equals_plain_pytorch(name, steps, work):
    module, objective, loss, root, population = problem(name)
    make, reference = WORKS[work]
    ours = make(objective, STEPS[steps])
    sent = message(objective, 3)
    together, engine = vectors(population, ours, sent, chunk=100)
    chunked, _ = vectors(population, ours, sent, chunk=3)
    alone, _ = vectors(population, ours, sent, chunk=1)
    assert torch.allclose(together, alone, atol=1e-6, rtol=0)
    assert torch.allclose(together, chunked, atol=1e-6, rtol=0)

    for client in range(len(SIZES)):
        own = torch.zeros(objective.size, dtype=torch.float64)
        for number in range(2):
            vector, own = reference(
                module, loss, root, sent, population, client, RowOrder(9, number), STEPS[steps], own
            )
        assert torch.allclose(together[client], vector, atol=1e-6, rtol=0), client
        if "control" in engine.states:
            assert torch.allclose(engine.states["control"][client], own, atol=1e-6, rtol=0)


def test_what_leaves_is_in_the_order_of_the_draw_not_of_the_sizes():
    _, objective, _, _, population = problem("mlp")
    sent = message(objective, 0)
    side = ClientSide(LocalTraining(objective, STEPS["one pass"]), ClearUpdates(UNIFORM, gather=True))
    ids = np.array([1, 2, 3])
    update = InProcess(population).map_reduce(
        side, RoundRequest(sent, None, RowOrder(9, 0)), ids, np.random.default_rng(0)
    )
    for place, client in enumerate(ids):
        single = InProcess(population).map_reduce(
            side, RoundRequest(sent, None, RowOrder(9, 0)), np.array([client]), np.random.default_rng(0)
        )
        assert torch.allclose(update.vectors[place], single.vectors[0], atol=1e-12)


def test_a_client_whose_update_is_not_finite_is_rejected_and_keeps_its_state():
    _, objective, _, _, population = problem("mlp")
    broken = population.x.clone()
    broken[int(population.starts[2])] = float("nan")
    bad = Population(broken, population.y, population.sizes)
    sent = message(objective, 0)
    engine = InProcess(bad)
    side = ClientSide(ScaffoldClient(objective, STEPS["one pass"]), ClearUpdates(UNIFORM, gather=True))
    update = engine.map_reduce(side, RoundRequest(sent, None, RowOrder(9, 0)), np.arange(8), np.random.default_rng(0))
    assert (update.rejected, update.answered, len(update.vectors)) == (1, 7, 7)
    assert torch.isfinite(update.vectors).all()
    assert torch.equal(engine.states["control"][2], torch.zeros(objective.size, dtype=torch.float64))
    assert engine.states["control"][0].abs().sum() > 0


def test_parameters_that_only_one_place_holds_are_refused():
    from sordina.errors import Unsupported

    with pytest.raises(Unsupported, match="GroupNorm"):
        of_module(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), losses.cross_entropy)
