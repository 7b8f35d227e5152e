"""Federated strategies side by side: on writers that disagree, on skewed labels, and with faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.datasets import load
from sordina.federated import losses
from sordina.federated.algorithms import registry
from sordina.federated.algorithms.algorithm import ClientWork, LocalSteps
from sordina.federated.algorithms.personal import Personal, used
from sordina.federated.data.partition import Shard, by_key, by_label, shift_concept, take
from sordina.federated.engines import FaultInjectingEngine, FaultInjection, FederatedEngine, InProcess
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population, RowOrder, SampledClients
from sordina.federated.privacy.placement import UNIFORM, ClearUpdates, FederationFacts, Placement
from sordina.federated.problem import Validation
from sordina.federated.round import FederatedMethod, FederatedRun, federate
from sordina.models import build, build_for
from sordina.reproduction.experiment import ExperimentFindings, Job, Value
from sordina.sampling import FixedSize

# Strategies side by side on label-skewed clients (Dirichlet, Hsu et al. 2019), at equal rounds and local work.


def compare_on_skewed_labels(
    names: Iterable[str],
    seeds: Iterable[int],
    *,
    data: str = "digits",
    alpha: float = 0.05,
    clients: int = 20,
    per_round: int = 20,
    rounds: int = 30,
    model: str | None = "logistic",
    steps: LocalSteps | None = None,
    every: int = 1,
) -> list[dict[str, Any]]:
    """One row per strategy and seed: test loss and accuracy, validation by validation."""
    rows = []
    draws = list(seeds)
    local = steps or LocalSteps(0.1, batch_size=20, epochs=10)
    for name in names:
        for seed in draws:
            rng = np.random.default_rng(seed)
            source = load(data)
            x, y = source.train.tensors
            people = Population.of(take(x, y, by_label(y.numpy(), clients, rng, alpha=alpha)))
            test = Population.of([(source.test.tensors[0], source.test.tensors[1])])
            module = build_for(source, model, seed=seed)
            if model == "logistic":
                people, test = (Population(p.x.flatten(1), p.y, p.sizes) for p in (people, test))
            objective = of_module(module, losses.cross_entropy)
            common = {
                "learning_rate": local.learning_rate,
                "batch_size": local.batch_size,
                "local_epochs": local.epochs,
            }
            facts = FederationFacts(rounds, clients, per_round)
            strategy, work = registry.named(name, common).parts(objective, facts)
            result = federate(
                FederatedMethod(strategy, work, ClearUpdates(UNIFORM), SampledClients(FixedSize(per_round, clients))),
                InProcess(people),
                flat_parameters(module)[None],
                clients=clients,
                rounds=rounds,
                rng=rng,
                validation=Validation(objective, test, classes=True),
                every=every,
            )
            scores = [one.score for one in result.history if one.score is not None]
            rows.append(
                {
                    "strategy": name,
                    "seed": seed,
                    "loss": [score.loss for score in scores],
                    "accuracy": [score.accuracy for score in scores],
                }
            )
    return rows


# All strategies side by side on skewed writers, each judged by what its clients would use; and a storm against calm.
#
# Every writer keeps some of its rows for testing. Half of the writers read the digits differently (concept shift): no
# single model can serve both halves, whatever the federation does.

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
class WriterFederation:
    """Writers with rows to train on and rows to be tested on, and what they learn."""

    objective: Objective
    train: Population
    test: Population
    classes: int


def writer_federation(
    rng: np.random.Generator,
    *,
    data: str = "mnist-writers",
    writers: int = 40,
    rows: int = 60,
    shift: bool = True,
    alpha: float = 1.0,
) -> WriterFederation:
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
    return WriterFederation(
        of_module(module, losses.cross_entropy), Population.of(learn), Population.of(check), source.classes
    )


def _halves(shard: Shard, rows: int, rng: np.random.Generator) -> tuple[Shard, Shard]:
    """Four fifths to train, at most ``rows``; a fifth to test."""
    x, y = shard
    order = torch.from_numpy(rng.permutation(len(x)))
    cut = len(x) - max(1, len(x) // 5)
    return (x[order[: min(cut, rows)]], y[order[: min(cut, rows)]]), (x[order[cut:]], y[order[cut:]])


def trial(
    name: str,
    place: WriterFederation,
    *,
    rounds: int,
    per_round: int,
    steps: LocalSteps,
    seed: int,
    faults: FaultInjection | None = None,
    placement: Placement | None = None,
) -> tuple[FederatedRun, dict[str, Any]]:
    """One run of one strategy: how often its clients are right on rows they kept back, and the bytes it took."""
    count = len(place.train)
    common = {"learning_rate": steps.learning_rate, "batch_size": steps.batch_size, "local_epochs": steps.epochs}
    algorithm = registry.named(name, common | SETTINGS.get(name, {}))
    strategy, work = algorithm.parts(place.objective, FederationFacts(rounds, count, per_round))
    inside = InProcess(place.train)
    engine: FederatedEngine = inside if faults is None else FaultInjectingEngine(inside, faults)
    models = torch.stack([first(place, seed + 1000 * one) for one in range(algorithm.count)])
    method = FederatedMethod(
        strategy,
        work,
        placement or ClearUpdates(UNIFORM, gather=strategy.needs_vectors),
        SampledClients(FixedSize(per_round, count)),
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


def first(place: WriterFederation, seed: int) -> Tensor:
    """A small random model."""
    generator = torch.Generator().manual_seed(seed)
    return 0.05 * torch.randn(place.objective.size, generator=generator)


def right(place: WriterFederation, work: ClientWork, result: FederatedRun, states: Mapping[str, Tensor]) -> float:
    """The share of test rows the clients get right, each with what it would use itself."""
    everybody = np.argsort(-place.train.sizes, kind="stable")
    rows = torch.from_numpy(everybody)
    own = {name: states[name][rows] for name in work.state_sizes}
    cohort = place.train.cohort(everybody)
    mine = used(work, place.objective, result.sent, cohort, own, RowOrder(0, len(result.history)))
    hits = sum(_hits(place, mine, row, int(client)) for row, client in enumerate(everybody))
    return hits / len(place.test.x)


def _hits(place: WriterFederation, mine: Personal, row: int, client: int) -> int:
    start = int(place.test.starts[client])
    rows = slice(start, start + int(place.test.sizes[client]))
    x, y = place.test.x[rows], place.test.y[rows]
    chances = sum(
        weight * place.objective.predict(model, x).softmax(dim=-1)
        for weight, model in zip(mine.weights[row], mine.models[row], strict=True)
    )
    assert isinstance(chances, Tensor)
    return int((chances.argmax(dim=-1) == y).sum())


def compare_on_writers(
    names: Iterable[str],
    seeds: Iterable[int],
    *,
    rounds: int = 60,
    per_round: int = 20,
    steps: LocalSteps | None = None,
    **place: Any,
) -> list[dict[str, Any]]:
    """One row per strategy and seed, all on the same writers of a seed."""
    local = steps or LocalSteps(0.1, batch_size=20, epochs=2)
    towns = {seed: writer_federation(np.random.default_rng(seed), **place) for seed in seeds}
    return [
        trial(name, where, rounds=rounds, per_round=per_round, steps=local, seed=seed)[1]
        for name in names
        for seed, where in towns.items()
    ]


FAULTS: dict[str, Any] = {"dropout": 0.3, "hostile": {0: "nan", 1: "huge", 2: "replay"}}
"""30 % dropouts, one client that sends NaN, one that sends 1e30, one that resends its first update."""


def first_round(accuracies: Sequence[float], target: float) -> int | None:
    """The first round with an accuracy of ``target``.

    >>> first_round([0.5, 0.9, 0.8], 0.85), first_round([0.5], 0.85)
    (2, None)
    """
    return next((number for number, value in enumerate(accuracies, start=1) if value >= target), None)


def with_faults(
    seeds: Iterable[int], *, strategy: str = "fedavg", rounds: int = 40, per_round: int = 20, **place: Any
) -> list[dict[str, Any]]:
    """Per seed: accuracy without and with faults, and whose updates were refused."""
    local, found = LocalSteps(0.1, batch_size=20, epochs=2), []
    for seed in seeds:
        where = writer_federation(np.random.default_rng(seed), shift=False, **place)
        common: dict[str, Any] = {"rounds": rounds, "per_round": per_round, "steps": local, "seed": seed}
        _, calm = trial(strategy, where, **common)
        result, storm = trial(strategy, where, faults=FaultInjection(seed=seed, **FAULTS), **common)
        refused = sorted({one.sender for each in result.history for one in each.refused})
        dropped = sum(one.dropped for one in result.history) / (rounds * per_round)
        found.append(
            {"seed": seed, "calm": calm["accuracy"], "storm": storm["accuracy"], "refused": refused, "dropped": dropped}
        )
    return found


# All federated strategies side by side: on writers that disagree, on skewed labels, with faults and hostile clients.


def strategies(job: Job) -> ExperimentFindings:
    """Accuracy of what clients use, rounds to an accuracy under label skew, and calm against storm."""
    given = job.settings
    seeds = range(given["seeds"])
    rows = compare_on_writers(given["names"], seeds, **given["town"])
    values = [_accuracy(name, rows) for name in given["names"]]
    race = given["race"]
    values += _race(race, seeds)
    values += _faults(with_faults(seeds, **given["storm"]))
    remarks = [
        "Accuracy: on rows each client kept back, with the model, mixture or hypothesis it would use itself. Half of "
        "the writers read the digits differently, so that no one model can serve all.",
        f"Label skew: logistic regression on digits, 20 clients, labels dealt out by Dirichlet({race['alpha']:g}), "
        f"rounds until a test accuracy of {race['target']:g}; {race['rounds']} rounds at most.",
        "The storm: 30 % dropouts a round, one client sending NaN, one 1e30, one resending its first update.",
    ]
    return ExperimentFindings("MNIST by writer; digits", values, (), [*remarks, *job.caveats])


def _accuracy(name: str, rows: list[dict[str, Any]]) -> Value:
    mine = [row for row in rows if row["strategy"] == name]
    accuracies = [row["accuracy"] for row in mine]
    note = f"{mine[0]['bytes_up'] / 1e6:.3g} MB up and {mine[0]['bytes_down'] / 1e6:.3g} MB down a round"
    what = {"part": "writers, concept shift", "strategy": name, "quantity": "accuracy"}
    return Value(what, float(np.mean(accuracies)), float(np.std(accuracies)), note=note)


def _race(given: dict[str, Any], seeds: range) -> list[Value]:
    rows = compare_on_skewed_labels(given["names"], seeds, alpha=given["alpha"], rounds=given["rounds"])
    values = []
    for name in given["names"]:
        runs = [row["accuracy"] for row in rows if row["strategy"] == name]
        found = [first_round(run, given["target"]) for run in runs]
        reached = [number for number in found if number is not None]
        mean = float(np.mean(reached)) if len(reached) == len(found) else None
        what = {"part": "label skew", "strategy": name, "quantity": f"rounds to {given['target']:g}"}
        values.append(
            Value(what, mean, note=f"by seed {found}; last accuracy {np.mean([run[-1] for run in runs]):.4f}")
        )
    return values


def _faults(rows: list[dict[str, Any]]) -> list[Value]:
    values = []
    for name in ("calm", "storm"):
        accuracies = [row[name] for row in rows]
        note = "" if name == "calm" else f"turned away {rows[0]['refused']}, {rows[0]['dropped']:.0%} dropped out"
        what = {"part": "weather", "strategy": "fedavg", "quantity": f"accuracy in {name}"}
        values.append(Value(what, float(np.mean(accuracies)), float(np.std(accuracies)), note=note))
    return values
