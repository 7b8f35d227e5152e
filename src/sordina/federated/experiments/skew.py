"""Strategies side by side on label-skewed clients (Dirichlet, Hsu et al. 2019), at equal rounds and local work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sordina.datasets import load
from sordina.federated import losses, methods
from sordina.federated.clients.work import LocalSteps
from sordina.federated.engines.inprocess import InProcess
from sordina.federated.objective import flat_parameters, of_module
from sordina.federated.partition import by_label, take
from sordina.federated.population import Population
from sordina.federated.privacy.nothing import ClearUpdates
from sordina.federated.privacy.placement import UNIFORM, FederationFacts
from sordina.federated.run import Method, federate
from sordina.federated.selection import Sampled
from sordina.federated.validation import Validation
from sordina.models import build_for
from sordina.sampling import FixedSize


def compare(
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
    local = steps or LocalSteps(0.1, batch=20, epochs=10)
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
            common = {"learning_rate": local.rate, "batch_size": local.batch, "local_epochs": local.epochs}
            facts = FederationFacts(rounds, clients, per_round)
            strategy, work = methods.named(name, common).parts(objective, facts)
            result = federate(
                Method(strategy, work, ClearUpdates(UNIFORM), Sampled(FixedSize(per_round, clients))),
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
