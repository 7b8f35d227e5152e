"""All federated strategies side by side: on writers that disagree, on skewed labels, and in hostile weather."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordina.federated.experiments import skew, zoo
from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Findings, Value


def strategies(job: Job) -> Findings:
    """Accuracy of what clients use, rounds to an accuracy under label skew, and calm against storm."""
    given = job.settings
    seeds = range(given["seeds"])
    rows = zoo.compare(given["names"], seeds, **given["town"])
    values = [_accuracy(name, rows) for name in given["names"]]
    race = given["race"]
    values += _race(race, seeds)
    values += _storm(zoo.weathered(seeds, **given["storm"]))
    remarks = [
        "Accuracy: on rows each client kept back, with the model, mixture or hypothesis it would use itself. Half of "
        "the writers read the digits differently, so that no one model can serve all.",
        f"Label skew: logistic regression on digits, 20 clients, labels dealt out by Dirichlet({race['alpha']:g}), "
        f"rounds until a test accuracy of {race['target']:g}; {race['rounds']} rounds at most.",
        "The storm: 30 % dropouts a round, one client sending NaN, one 1e30, one resending its first update.",
    ]
    return Findings("MNIST by writer; digits", values, (), [*remarks, *job.caveats])


def _accuracy(name: str, rows: list[dict[str, Any]]) -> Value:
    mine = [row for row in rows if row["strategy"] == name]
    accuracies = [row["accuracy"] for row in mine]
    note = f"{mine[0]['bytes_up'] / 1e6:.3g} MB up and {mine[0]['bytes_down'] / 1e6:.3g} MB down a round"
    what = {"part": "writers, concept shift", "strategy": name, "quantity": "accuracy"}
    return Value(what, float(np.mean(accuracies)), float(np.std(accuracies)), note=note)


def _race(given: dict[str, Any], seeds: range) -> list[Value]:
    rows = skew.compare(given["names"], seeds, alpha=given["alpha"], rounds=given["rounds"])
    values = []
    for name in given["names"]:
        runs = [row["accuracy"] for row in rows if row["strategy"] == name]
        found = [zoo.first_round(run, given["target"]) for run in runs]
        reached = [number for number in found if number is not None]
        mean = float(np.mean(reached)) if len(reached) == len(found) else None
        what = {"part": "label skew", "strategy": name, "quantity": f"rounds to {given['target']:g}"}
        values.append(
            Value(what, mean, note=f"by seed {found}; last accuracy {np.mean([run[-1] for run in runs]):.4f}")
        )
    return values


def _storm(rows: list[dict[str, Any]]) -> list[Value]:
    values = []
    for name in ("calm", "storm"):
        accuracies = [row[name] for row in rows]
        note = "" if name == "calm" else f"turned away {rows[0]['refused']}, {rows[0]['dropped']:.0%} dropped out"
        what = {"part": "weather", "strategy": "fedavg", "quantity": f"accuracy in {name}"}
        values.append(Value(what, float(np.mean(accuracies)), float(np.std(accuracies)), note=note))
    return values
