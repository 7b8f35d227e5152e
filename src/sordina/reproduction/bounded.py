"""000 chapter 5: do updates agree more than gradients (figure 5.4), and does that pay in the bounded model?"""

from __future__ import annotations

import itertools
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
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.fedavg import AddMean, LocalTraining
from sordina.federated.data.partition import iid, take
from sordina.federated.engines import ClientSide, InProcess, RoundRequest
from sordina.federated.objective import Batch, Objective, flat_parameters, of_module
from sordina.federated.population import Population, RowOrder, SampledClients
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates
from sordina.federated.problem import Validation
from sordina.federated.round import FederatedMethod, federate
from sordina.models import build
from sordina.plan import make_plan
from sordina.privacy import Budget, Unit
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.sampling import FixedSize, Poisson, Sampler

# 000 chapter 5: do updates agree more than gradients (figure 5.4), and does that pay in the bounded model?
#
# The thesis conjectures that clipping updates into a sector around a public direction, under replace-one adjacency,
# needs less noise than clipping them into a ball. `utility` answers at equal (epsilon, delta): ball under add/remove
# (unbounded), ball under replace-one (bounded), and sectors of several angles, with the same clients and rounds.

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


def cosines_of_updates(
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
        update = engine.map_reduce(side, RoundRequest({"model": model}, None, RowOrder(1, number)), everyone, rng)
        assert update.vectors is not None
        cosines.append(mean_cosine(update.vectors))
        model = model + update.vectors.mean(dim=0)
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


def compared_policies(
    threshold: float, angles: Iterable[float], lows: Iterable[float] = (0.0,)
) -> dict[str, Policy[Any]]:
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
            method = FederatedMethod(AddMean(server_rate), work, Central(plan, policy), SampledClients(sampler))
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


# Chapter 5 of 000: figure 5.4, and the experiment it leaves open, sector against ball clipping.


def figure_5_4(job: Job) -> ExperimentFindings:
    """Figure 5.4: clients' updates agree more than samples' gradients."""
    given = job.settings
    found = cosines_of_updates(**given["options"])
    steps = given["options"].get("steps", 5)
    curves = [
        PlottedCurve(
            "updates of 20 clients", [steps * (place + 1) for place in range(len(found["updates"]))], found["updates"]
        ),
        PlottedCurve("gradients of 20 samples", list(range(1, len(found["gradients"]) + 1)), found["gradients"]),
    ]
    values = []
    for name, cosines in found.items():
        parts = np.array_split(np.array(cosines), 3)
        for part, mean in zip(("first", "middle", "last"), map(np.mean, parts), strict=True):
            values.append(Value({"vectors": name, "third of training": part}, float(mean)))
    panel = Panel("Figure 5.4", "local steps", "mean cosine", curves)
    remarks = ["The thesis finds updates well above gradients, and falling late in training."]
    return ExperimentFindings("MNIST", values, [panel], [*remarks, *job.caveats])


def sector_against_ball(job: Job) -> ExperimentFindings:
    """Test accuracy at equal user-level (epsilon, delta); every arm gets the best C and rate of the same lists."""
    given = job.settings
    budget = Budget(given["epsilon"], given["delta"])
    best: dict[str, dict[str, Any]] = {}
    for threshold, rate in itertools.product(given["thresholds"], given["rates"]):
        arms: dict[str, Policy[Any]] = compared_policies(threshold, given["angles"], given["lows"])
        options = {"server_rate": rate, **given["options"]}
        for row in utility(arms, range(given["seeds"]), budget=budget, **options):
            if row["arm"] not in best or row["mean"] > best[row["arm"]]["mean"]:
                best[row["arm"]] = row | {"threshold": threshold, "rate": rate}
    values = []
    for name, row in best.items():
        spread = float(np.std(row["accuracy"], ddof=1)) if len(row["accuracy"]) > 1 else None
        note = f"C = {row['threshold']:g}, server rate {row['rate']:g}, epsilon {row['epsilon']:.4g} per client"
        values.append(Value({"clipping": name, "quantity": "accuracy"}, row["mean"], spread, note=note))
    remarks = [
        f"All arms: ({given['epsilon']:g}, {given['delta']:g})-DP for each client; the best C of {given['thresholds']} "
        f"and server rate of {given['rates']}, chosen on the test set for every arm alike.",
        "Unbounded: Poisson samples of clients, add/remove neighbours. Bounded: samples of fixed size, replace-one.",
        "The thesis conjectures that sectors pay, and leaves it open; nothing to compare with.",
    ]
    return ExperimentFindings("MNIST, dealt out to clients at random", values, (), [*remarks, *job.caveats])
