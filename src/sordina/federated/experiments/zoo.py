"""All strategies side by side on skewed writers, each judged by what its clients would use; and a storm against calm.

Every writer keeps some of its rows for testing. Half of the writers read the digits differently (concept shift): no
single model can serve both halves, whatever the federation does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.datasets import load
from sordina.federated import losses, methods
from sordina.federated.clients.personal import Personal, used
from sordina.federated.clients.work import ClientWork, LocalSteps
from sordina.federated.engines.engine import Engine
from sordina.federated.engines.inprocess import InProcess
from sordina.federated.engines.stormy import Stormy
from sordina.federated.objective import Objective, of_module
from sordina.federated.order import Order
from sordina.federated.partition import Shard, by_key, by_label, shift_concept, take
from sordina.federated.population import Population
from sordina.federated.privacy.nothing import ClearUpdates
from sordina.federated.privacy.placement import UNIFORM, FederationFacts, Placement
from sordina.federated.run import Method, Result, federate
from sordina.federated.selection import Sampled
from sordina.federated.weather import Weather
from sordina.models import build
from sordina.sampling import FixedSize

SETTINGS: dict[str, dict[str, Any]] = {
    "fsvrg": {"learning_rate": 2.0, "batch_size": 20, "local_epochs": 1},
    "feddyn": {"alpha": 0.1},
    "mean-regularised": {"weight": 0.1},
    "graph-regularised": {"weight": 0.5},
    "per-fedavg": {"inner_learning_rate": 0.1},
    "sub-fedavg": {"prune": 0.5},
    "fedem": {"models": 2},
    "ifca": {"models": 2, "server_learning_rate": 2.0},
    "metric-pfl": {"models": 2},
}
"""What each method is given beside the common local steps."""
NAMES = ("fedavg", "fedprox", "scaffold", "feddyn", "fsvrg", "per-fedavg", "sub-fedavg", "mean-regularised",
         "graph-regularised", "fedem", "ifca", "metric-pfl")  # fmt: skip


@dataclass(frozen=True)
class Town:
    """Writers with rows to train on and rows to be tested on, and what they learn."""

    objective: Objective
    train: Population
    test: Population
    classes: int


def town(
    rng: np.random.Generator,
    *,
    data: str = "mnist-writers",
    writers: int = 40,
    rows: int = 60,
    shift: bool = True,
    alpha: float = 1.0,
) -> Town:
    """``writers`` clients of at most ``rows`` training rows, a quarter as many to test; ``shift`` turns half around.

    Data without writers are dealt out by label, Dirichlet with ``alpha``.
    """
    source = load(data)
    x, y = source.train.tensors
    x = x.flatten(1)
    if source.users is None:
        shards = take(x, y, by_label(y.numpy(), writers, rng, alpha=alpha))
    else:
        everybody = take(x, y, by_key(source.users.train.numpy()))
        shards = [everybody[index] for index in rng.choice(len(everybody), writers, replace=False)]
    if shift:
        shards, _ = shift_concept(shards, rng, classes=source.classes)
    learn, check = zip(*(_halves(shard, rows, rng) for shard in shards), strict=True)
    module = build("logistic", inputs=x.shape[1], classes=source.classes)
    return Town(of_module(module, losses.cross_entropy), Population.of(learn), Population.of(check), source.classes)


def _halves(shard: Shard, rows: int, rng: np.random.Generator) -> tuple[Shard, Shard]:
    """Four fifths to train, at most ``rows``; a fifth to test."""
    x, y = shard
    order = torch.from_numpy(rng.permutation(len(x)))
    cut = len(x) - max(1, len(x) // 5)
    return (x[order[: min(cut, rows)]], y[order[: min(cut, rows)]]), (x[order[cut:]], y[order[cut:]])


def trial(
    name: str,
    place: Town,
    *,
    rounds: int,
    per_round: int,
    steps: LocalSteps,
    seed: int,
    weather: Weather | None = None,
    placement: Placement | None = None,
) -> tuple[Result, dict[str, Any]]:
    """One run of one strategy: how often its clients are right on rows they kept back, and the bytes it took."""
    count = len(place.train)
    common = {"learning_rate": steps.rate, "batch_size": steps.batch, "local_epochs": steps.epochs}
    algorithm = methods.named(name, common | SETTINGS.get(name, {}))
    strategy, work = algorithm.parts(place.objective, FederationFacts(rounds, count, per_round))
    inside = InProcess(place.train)
    engine: Engine = inside if weather is None else Stormy(inside, weather)
    models = torch.stack([first(place, seed + 1000 * one) for one in range(algorithm.count)])
    method = Method(
        strategy,
        work,
        placement or ClearUpdates(UNIFORM, gather=strategy.needs_vectors),
        Sampled(FixedSize(per_round, count)),
    )
    result = federate(method, engine, models, clients=count, rounds=rounds, rng=np.random.default_rng(seed))
    accuracy = right(place, work, result, inside.states)
    facts = {
        "strategy": name,
        "seed": seed,
        "accuracy": accuracy,
        "bytes_up": sum(one.received for one in result.history) / len(result.history),
        "bytes_down": sum(one.sent for one in result.history) / len(result.history),
    }
    return result, facts


def first(place: Town, seed: int) -> Tensor:
    """A small random model."""
    generator = torch.Generator().manual_seed(seed)
    return 0.05 * torch.randn(place.objective.size, generator=generator)


def right(place: Town, work: ClientWork, result: Result, states: Mapping[str, Tensor]) -> float:
    """The share of test rows the clients get right, each with what it would use itself."""
    everybody = np.argsort(-place.train.sizes, kind="stable")
    rows = torch.from_numpy(everybody)
    own = {name: states[name][rows] for name in work.state_sizes}
    cohort = place.train.cohort(everybody)
    mine = used(work, place.objective, result.sent, cohort, own, Order(0, len(result.history)))
    hits = sum(_hits(place, mine, row, int(client)) for row, client in enumerate(everybody))
    return hits / len(place.test.x)


def _hits(place: Town, mine: Personal, row: int, client: int) -> int:
    start = int(place.test.starts[client])
    rows = slice(start, start + int(place.test.sizes[client]))
    x, y = place.test.x[rows], place.test.y[rows]
    chances = sum(
        weight * place.objective.predict(model, x).softmax(dim=-1)
        for weight, model in zip(mine.weights[row], mine.models[row], strict=True)
    )
    assert isinstance(chances, Tensor)
    return int((chances.argmax(dim=-1) == y).sum())


def compare(
    names: Iterable[str],
    seeds: Iterable[int],
    *,
    rounds: int = 60,
    per_round: int = 20,
    steps: LocalSteps | None = None,
    **place: Any,
) -> list[dict[str, Any]]:
    """One row per strategy and seed, all on the same writers of a seed."""
    local = steps or LocalSteps(0.1, batch=20, epochs=2)
    towns = {seed: town(np.random.default_rng(seed), **place) for seed in seeds}
    return [
        trial(name, where, rounds=rounds, per_round=per_round, steps=local, seed=seed)[1]
        for name in names
        for seed, where in towns.items()
    ]


STORM: dict[str, Any] = {"dropout": 0.3, "hostile": {0: "nan", 1: "huge", 2: "replay"}}
"""30 % dropouts, one client that sends NaN, one that sends 1e30, one that resends its first update."""


def first_round(accuracies: Sequence[float], target: float) -> int | None:
    """The first round with an accuracy of ``target``.

    >>> first_round([0.5, 0.9, 0.8], 0.85), first_round([0.5], 0.85)
    (2, None)
    """
    return next((number for number, value in enumerate(accuracies, start=1) if value >= target), None)


def weathered(
    seeds: Iterable[int], *, strategy: str = "fedavg", rounds: int = 40, per_round: int = 20, **place: Any
) -> list[dict[str, Any]]:
    """Per seed: accuracy in calm and in the storm, and whom the guard turned away."""
    local, found = LocalSteps(0.1, batch=20, epochs=2), []
    for seed in seeds:
        where = town(np.random.default_rng(seed), shift=False, **place)
        common: dict[str, Any] = {"rounds": rounds, "per_round": per_round, "steps": local, "seed": seed}
        _, calm = trial(strategy, where, **common)
        result, storm = trial(strategy, where, weather=Weather(seed=seed, **STORM), **common)
        refused = sorted({one.sender for each in result.history for one in each.refused})
        dropped = sum(one.dropped for one in result.history) / (rounds * per_round)
        found.append(
            {"seed": seed, "calm": calm["accuracy"], "storm": storm["accuracy"], "refused": refused, "dropped": dropped}
        )
    return found
