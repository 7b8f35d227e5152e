"""003 section VI-D: a support vector machine among 50 clients, with a guarantee for every record that holds."""

from __future__ import annotations

from typing import Any

from sordina import randomness
from sordina.federated.data import load
from sordina.federated.problem import Problem
from sordina.federated.recipe import Recipe, run


def federated_svm(
    seed: int = 0,
    *,
    epsilon: float = 0.8,
    delta: float = 1e-5,
    rounds: int = 20,
    rate: float = 1.0,
    clip: float = 3.0,
    clients: int = 50,
) -> dict[str, Any]:
    """Accuracy of the last model on the test set, and the guarantee. 003 reports 74.94 % without a sound one."""
    problem = Problem.of(load("adult", randomness.seeded(seed), clients=clients))
    job = Recipe(
        "adult",
        strategy="fedsgd",
        privacy="record",
        epsilon=epsilon,
        delta=delta,
        threshold=clip,
        rounds=rounds,
        local_rate=rate,
        clients_per_round=clients,
        seed=seed,
    )
    result = run(job, problem=problem).result
    last = result.history[-1].score
    assert last is not None
    return {
        "accuracy": last.accuracy,
        "epsilon": result.statement.epsilon,
        "delta": delta,
        "clients": clients,
        "rounds": len(result.history),
        "guarantee": result.statement.words,
    }
