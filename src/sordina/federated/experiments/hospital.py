"""000 section 2.5.1, hospital charges: leakage (table 2.3, figure 2.3) and RMSE (figure 2.4)."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from sordina import randomness
from sordina.federated.data import load
from sordina.federated.problem import Problem
from sordina.federated.recipe import HABITS, Recipe, run
from sordina.federated.setup import Finished

PARAMETERS = 11
TRAINING_CLIENTS = 2062
"""Seven tenths of 2947 (the caption of figure 2.3)."""


def trial(seed: int, hypotheses: int, noise: float, **recipe: Any) -> Finished:
    """One run; ``noise = 0`` is without privacy."""
    problem = Problem.of(load("hospital", randomness.seeded(seed)))
    privacy: dict[str, Any] = {"privacy": "metric", "noise": noise} if noise else {"privacy": "none"}
    return run(Recipe("hospital", hypotheses=hypotheses, seed=seed, **privacy, **recipe), problem=problem)


def table_2_3(
    noises: Iterable[float], hypotheses: Iterable[int], seeds: Iterable[int], **recipe: Any
) -> list[dict[str, Any]]:
    """One row per (nu, k): median and largest leakage over clients and the RMSE, averaged over seeds."""
    rows = []
    counts, draws = list(hypotheses), list(seeds)
    for noise in noises:
        for count in counts:
            results = [trial(seed, count, noise, **recipe).result for seed in draws]
            errors = [min(result.losses) for result in results]
            rows.append(
                {
                    "nu": noise,
                    "hypotheses": count,
                    "rounds": float(np.mean([len(result.history) for result in results])),
                    "median_leakage": float(np.mean([np.median(result.leakage) for result in results])),
                    "largest_leakage": float(np.mean([result.leakage.max() for result in results])),
                    "rmse": float(np.mean(errors)),
                    "rmse_std": float(np.std(errors)),
                }
            )
    return rows


def leakage_after(
    noise: float, rounds: int, seeds: Iterable[int], *, clients: int = TRAINING_CLIENTS, per_round: int | None = None
) -> tuple[float, float]:
    """Median and largest leakage after ``rounds`` rounds of fresh cohorts, which only chance decides: no training.

    >>> median, largest = leakage_after(1.0, 68, range(3))
    >>> median, 88 <= largest <= 154
    (33.0, True)
    """
    share = float(Fraction(PARAMETERS) / Fraction(repr(noise)))
    batch = per_round or HABITS["hospital"].clients_per_round
    medians, largest = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        counts = np.zeros(clients)
        for _ in range(rounds):
            counts[rng.choice(clients, batch, replace=False)] += 1
        medians.append(np.median(counts) * share)
        largest.append(counts.max() * share)
    return float(np.mean(medians)), float(np.mean(largest))


def closest_rounds(noise: float, median: float, largest: float, seeds: Iterable[int]) -> tuple[int, float, float]:
    """The number of rounds after which both leakages come closest to printed ones, and what they are then.

    Table 2.3 prints means over runs that stopped at different times, and not how many rounds they took.
    """
    draws = list(seeds)
    rounds = median * noise / PARAMETERS * TRAINING_CLIENTS / HABITS["hospital"].clients_per_round
    best: tuple[float, int, float, float] | None = None
    for near in range(int(0.9 * rounds), int(1.15 * rounds) + 1, max(1, int(rounds / 50))):
        ours = leakage_after(noise, near, draws)
        error = max(abs(ours[0] / median - 1), abs(ours[1] / largest - 1))
        if best is None or error < best[0]:
            best = error, near, *ours
    assert best is not None
    return best[1:]
