"""000 chapter 5: do updates agree more than gradients (figure 5.4), and does that pay in the bounded model?

The thesis conjectures that clipping updates into a sector around a public direction, under replace-one adjacency, needs
less noise than clipping them into a ball. `utility` answers at equal (epsilon, delta): ball under add/remove
(unbounded), ball under replace-one (bounded), and sectors of several angles, with the same clients and rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.clipping import Fixed, Policy, Sector
from sordina.clipping.sector import Follow
from sordina.datasets import load
from sordina.federated import losses
from sordina.federated.clients.training import LocalTraining
from sordina.federated.clients.work import LocalSteps
from sordina.federated.engines.engine import Call, ClientSide
from sordina.federated.engines.inprocess import InProcess
from sordina.federated.objective import Batch, Objective, flat_parameters, of_module
from sordina.federated.order import Order
from sordina.federated.partition import iid, take
from sordina.federated.population import Population
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.nothing import ClearUpdates
from sordina.federated.privacy.placement import UNIFORM
from sordina.federated.run import Method, federate
from sordina.federated.selection import Sampled
from sordina.federated.strategies.mean import AddMean
from sordina.federated.validation import Validation
from sordina.models import build
from sordina.sampling import FixedSize, Poisson, Sampler
from sordina.training.plan import make_plan
from sordina.types import Budget, Unit

BUDGET = Budget(3.0, 1e-4)


def mean_cosine(vectors: Tensor) -> float:
    """The average cosine similarity of two different rows.

    >>> mean_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
    0.3333333333333333
    """
    units = torch.nn.functional.normalize(vectors.double(), dim=1)
    count = len(units)
    total = float(units.sum(dim=0).square().sum()) - float(units.square().sum())
    return total / (count * (count - 1))


def _federated_mnist(clients: int, rng: np.random.Generator, rows: int | None) -> tuple[Population, Population]:
    data = load("mnist")
    x, y = data.train.tensors
    chosen = torch.from_numpy(rng.permutation(len(y))[: rows or len(y)])
    x, y = x[chosen], y[chosen]
    return Population.of(take(x, y, iid(len(y), clients, rng))), Population.of(
        [(data.test.tensors[0], data.test.tensors[1])]
    )


def figure_5_4(
    *,
    clients: int = 20,
    steps: int = 5,
    rounds: int = 60,
    rate: float = 0.1,
    batch: int = 32,
    model: str = "mnist-cnn",
    seed: int = 0,
    rows: int | None = None,
) -> dict[str, list[float]]:
    """Mean cosine of 20 clients' updates per round, and of 20 samples' gradients per step of centralised training."""
    rng = np.random.default_rng(seed)
    population, _ = _federated_mnist(clients, rng, rows)
    module = build(model, seed=seed)
    objective = of_module(module, losses.cross_entropy)
    start = flat_parameters(module)
    return {
        "updates": _update_cosines(objective, start, population, LocalSteps(rate, batch, steps=steps), rounds),
        "gradients": _gradient_cosines(objective, start, population, clients, steps * rounds, rate, rng),
    }


def _update_cosines(
    objective: Objective, model: Tensor, population: Population, steps: LocalSteps, rounds: int
) -> list[float]:
    engine = InProcess(population)
    side = ClientSide(LocalTraining(objective, steps), ClearUpdates(UNIFORM, gather=True))
    everyone, rng = np.arange(len(population)), np.random.default_rng(0)
    cosines = []
    for number in range(rounds):
        parcel = engine.map_reduce(side, Call({"model": model}, None, Order(1, number)), everyone, rng)
        assert parcel.vectors is not None
        cosines.append(mean_cosine(parcel.vectors))
        model = model + parcel.vectors.mean(dim=0)
    return cosines


def _gradient_cosines(
    objective: Objective,
    model: Tensor,
    population: Population,
    batch: int,
    steps: int,
    rate: float,
    rng: np.random.Generator,
) -> list[float]:
    cosines = []
    for _ in range(steps):
        rows = torch.from_numpy(rng.choice(len(population.x), batch, replace=False))
        each = Batch(population.x[rows, None], population.y[rows, None], torch.ones(batch, 1))
        gradients = objective.gradient(model.expand(batch, -1), each)
        cosines.append(mean_cosine(gradients))
        model = model - rate * gradients.mean(dim=0)
    return cosines


def arms(threshold: float, angles: Iterable[float], lows: Iterable[float] = (0.0,)) -> dict[str, Policy[Any]]:
    """What is compared: a ball in both models, fixed sectors (angles in degrees, lower thresholds as a share of C), and
    a sector whose three bounds follow noisy quantiles, as the thesis proposes.
    """
    named: dict[str, Policy[Any]] = {"unbounded ball": Fixed(threshold), "bounded ball": Fixed(threshold)}
    shares = list(lows)
    for angle in angles:
        for low in shares:
            policy = Sector(threshold, low * threshold, math.radians(angle))
            named[f"bounded sector {angle:g} deg, c = {low:g} C"] = policy
    named["bounded sector that follows"] = Sector(threshold, 0.1 * threshold, math.radians(90.0), follow=Follow())
    return named


def utility(
    policies: dict[str, Policy[Any]],
    seeds: Iterable[int],
    *,
    budget: Budget = BUDGET,
    clients: int = 2000,
    per_round: int = 200,
    rounds: int = 60,
    rate: float = 0.1,
    batch: int = 10,
    epochs: int = 1,
    server_rate: float = 1.0,
    model: str = "mlp",
    options: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Test accuracy of every arm at the same user-level budget; arms named ``unbounded`` use Poisson sampling."""
    rows = []
    draws = list(seeds)
    for name, policy in policies.items():
        accuracies = []
        epsilon = math.nan
        for seed in draws:
            rng = np.random.default_rng(seed)
            population, test = _federated_mnist(clients, rng, None)
            module = build(model, seed=seed, **(options or {"inputs": 784}))
            objective = of_module(module, losses.cross_entropy)
            sampler: Sampler = (
                Poisson(per_round, clients) if name.startswith("unbounded") else FixedSize(per_round, clients)
            )
            plan = make_plan(budget, sampler, rounds, unit=Unit.USER)
            work = LocalTraining(objective, LocalSteps(rate, batch, epochs))
            method = Method(AddMean(server_rate), work, Central(plan, policy), Sampled(sampler))
            result = federate(
                method,
                InProcess(population),
                flat_parameters(module)[None],
                clients=clients,
                rounds=rounds,
                rng=rng,
                validation=Validation(objective, test, classes=True),
                every=rounds,
            )
            last = result.history[-1].score
            assert last is not None
            accuracies.append(last.accuracy or 0.0)
            epsilon = result.statement.epsilon or math.nan
        rows.append({"arm": name, "accuracy": accuracies, "mean": float(np.mean(accuracies)), "epsilon": epsilon})
    return rows
