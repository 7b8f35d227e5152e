"""Table 2.4 of 000 on MNIST by its real writers, half of them turned, in place of FEMNIST."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sordina import randomness
from sordina.federated.data import load
from sordina.federated.problem import Problem
from sordina.federated.recipe import Recipe, run
from sordina.federated.setup import Finished

LOSSES: dict[str, dict[str, Any]] = {
    "cross entropy": {"loss": "cross-entropy"},
    "rmse": {"loss": "class-mse", "root": True},
}


def trial(
    seed: int,
    noise: float,
    *,
    loss: str = "cross entropy",
    data: str = "mnist-writers",
    model: str = "small-cnn",
    **recipe: Any,
) -> Finished:
    """One run with two hypotheses; ``noise = 0`` is without privacy."""
    problem = Problem.of(load(data, randomness.seeded(seed), model=model), **LOSSES[loss])
    privacy: dict[str, Any] = {"privacy": "metric", "noise": noise} if noise else {"privacy": "none"}
    return run(Recipe(data, hypotheses=2, seed=seed, **privacy, **recipe), problem=problem)


def table_2_4(noises: Iterable[float], seeds: Iterable[int], **options: Any) -> list[dict[str, Any]]:
    """One row per nu: the accuracy of the best models on held-out writers, mean and deviation over seeds."""
    rows = []
    draws = list(seeds)
    for noise in noises:
        accuracies, rounds = [], []
        for seed in draws:
            result = trial(seed, noise, **options).result
            scored = [one.score for one in result.history if one.score is not None]
            accuracies.append(min(scored, key=lambda score: score.loss).accuracy or 0.0)
            rounds.append(len(result.history))
        rows.append(
            {
                "nu": noise,
                "accuracy": float(np.mean(accuracies)),
                "std": float(np.std(accuracies)),
                "rounds": float(np.mean(rounds)),
            }
        )
    return rows
