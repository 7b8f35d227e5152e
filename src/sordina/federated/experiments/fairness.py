"""000 section 2.5.2: a personalised against a single model, group by group (figures 2.7 and 2.8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sordina import randomness
from sordina.federated.data import load
from sordina.federated.problem import Problem
from sordina.federated.recipe import Recipe, run

METRICS = ("equal_opportunity_difference", "equalized_odds_difference", "demographic_parity_difference")


def compare(
    noises: Iterable[float],
    seeds: Iterable[int],
    *,
    data: str = "synthetic-fairness",
    folder: Path | None = None,
    options: dict[str, Any] | None = None,
    **recipe: Any,
) -> list[dict[str, Any]]:
    """One row per (nu, one or two hypotheses): the three differences, averaged over seeds."""
    rows = []
    draws = list(seeds)
    for noise in noises:
        for hypotheses in (1, 2):
            reports = []
            for seed in draws:
                problem = Problem.of(load(data, randomness.seeded(seed), **(options or {})))
                job = Recipe(data, hypotheses=hypotheses, noise=noise, seed=seed, **recipe)
                result = run(job, problem=problem).result
                reports.append(next(iter(problem.fairness(result.best).values())))
            means = {name: float(np.mean([asdict(one)[name] for one in reports])) for name in METRICS}
            rows.append({"nu": noise, "hypotheses": hypotheses, **means})
    if folder is not None:
        draw(rows, folder)
    return rows


def draw(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Bars of the three differences, single beside personalised, one pair per nu."""
    from sordina.federated.figures import fairness

    kinds = {"single": 1, "personalised": 2}
    bars = {
        name: {f"{row['nu']:g}": row for row in rows if row["hypotheses"] == count} for name, count in kinds.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    return fairness(bars, folder / "fairness.png", xlabel="nu")


def figure_2_7(folder: Path | None = None, seeds: Iterable[int] = range(3), **recipe: Any) -> list[dict[str, Any]]:
    """Synthetic data, 800 majority and 200 minority clients, nu in {0.1, 1, 2, 4}."""
    return compare((0.1, 1.0, 2.0, 4.0), seeds, folder=folder, **recipe)


def figure_2_8(
    folder: Path | None = None, seeds: Iterable[int] = range(1), noises: Iterable[float] = (0.1, 1.0), **recipe: Any
) -> list[dict[str, Any]]:
    """MNIST by writers, standing in for FEMNIST: a fifth of the writers turned, odd and even the other way round."""
    options = {"probability": 0.2}
    return compare(noises, seeds, data="mnist-writers", folder=folder, options=options, **recipe)
