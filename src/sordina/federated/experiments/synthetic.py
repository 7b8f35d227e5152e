"""000 section 2.5.1, synthetic data: do the hypotheses find the two optima? (figures 2.1 and 2.2)"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sordina import randomness
from sordina.federated import record
from sordina.federated.data import load
from sordina.federated.problem import Problem, distance_to_optima
from sordina.federated.recipe import Recipe, run
from sordina.federated.setup import Finished

PARAMETERS = 2
CLOSE = 0.5
"""A hypothesis this near to its optimum has found it."""


def trial(seed: int, *, root: bool = True, observe: Any = None, **recipe: Any) -> Finished:
    """One run on synthetic clients drawn from ``seed``, who minimise the RMSE of eq. 2.13 or, by choice, the MSE."""
    problem = Problem.of(load("synthetic", randomness.seeded(seed)), root=root)
    return run(Recipe("synthetic", seed=seed, **recipe), observe, problem)


def recovery(seeds: Iterable[int], **options: Any) -> dict[str, Any]:
    """How often both optima are found, by the best models on held-out clients and by the last, and at what leakage."""
    finished = [trial(seed, **options) for seed in seeds]
    optima = finished[0].problem.federation.optima
    best = [distance_to_optima(one.result.best, optima) for one in finished]
    last = [distance_to_optima(one.result.models, optima) for one in finished]
    most = [float(one.result.leakage.max()) for one in finished]
    return {
        "runs": len(finished),
        "found": sum(distance <= CLOSE for distance in best),
        "found_at_the_end": sum(distance <= CLOSE for distance in last),
        "median_distance": float(np.median(best)),
        "mean_rounds": float(np.mean([len(one.result.history) for one in finished])),
        "mean_largest_leakage": float(np.mean(most)),
        "largest_leakage": max(most),
        "median_leakage": float(np.mean([np.median(one.result.leakage) for one in finished])),
    }


PAPER: dict[str, Any] = {"strategy": "metric-pfl", "root": True}
"""Algorithm 1 as printed: U = 7, s = 0.1, patience 6, hypotheses ~ N(0, I), fresh cohorts."""
STEADY: dict[str, Any] = {"strategy": "metric-pfl-steady", "root": False, "patience": 0}
"""The same clients, noise and step with the steady server, taking turns until the leakage limit."""


def figure_2_1(folder: Path, seed: int = 0, noise: float = 5.0, **options: Any) -> dict[str, Any]:
    """The three rows of figure 2.1: one hypothesis, two, and two with noise; then the last with the steady server."""
    noisy: dict[str, Any] = {"hypotheses": 2, "privacy": "metric", "noise": noise}
    rows: dict[str, dict[str, Any]] = {
        "one hypothesis, no noise": {"hypotheses": 1, "privacy": "none"},
        "two hypotheses, no noise": {"hypotheses": 2, "privacy": "none"},
        "two hypotheses, noise": noisy,
        "two hypotheses, noise, steady server": {**STEADY, **noisy, "leakage_limit": 6 * PARAMETERS / noise},
    }
    report = {}
    for number, (name, row) in enumerate(rows.items()):
        trace = record.Trace()
        finished = trial(seed, observe=trace, **{**PAPER, **options, **row})
        report[name] = record.write(finished, trace, folder / f"row{number + 1}")
    return report


def figure_2_2(seed: int = 0, noise: float = 5.0, **options: Any) -> list[list[float]]:
    """The largest leakage among the clients of each cluster, round by round."""
    trace = record.Trace()
    finished = trial(seed, observe=trace, **{**PAPER, "noise": noise, **options})
    clusters = finished.problem.federation.clusters
    assert clusters is not None
    table, kinds = np.stack(trace.leakage), np.array(clusters[0])
    return [table[:, kinds == kind].max(axis=1).tolist() for kind in sorted(set(clusters[0]))]
