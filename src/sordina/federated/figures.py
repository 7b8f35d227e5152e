"""The figures of a run, after those of 000 chapter 2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from sordina.federated.recipe import Finished
    from sordina.federated.record import Trace

_METRICS = {
    "equal_opportunity_difference": "equal opportunity",
    "equalized_odds_difference": "equalised odds",
    "demographic_parity_difference": "demographic parity",
}


def draw(finished: Finished, trace: Trace, facts: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what this run has to show; returns the files."""
    files = []
    if trace.lines and any("validation_loss" in one for one in trace.lines):
        files.append(validation(trace, folder / "validation.png"))
    if trace.released and 2 <= finished.problem.objective.size <= 3:
        files.append(parameters(finished, trace, folder / "parameters.png"))
    if finished.recipe.placed == "metric":
        files.append(leakage(finished, trace, folder / "leakage.png"))
        files.append(histogram(finished, folder / "leakage_histogram.png"))
    if facts.get("fairness"):
        files.append(fairness({"this run": facts["fairness"]}, folder / "fairness.png"))
    return files


def _figure(columns: int = 1) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(5 * columns, 3.8), layout="constrained")
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _plot_validation(axes: Any, trace: Trace) -> None:
    points = [(one["round"], one["validation_loss"]) for one in trace.lines if "validation_loss" in one]
    axes.plot(*zip(*points, strict=True))
    axes.set(xlabel="round", ylabel="validation loss", yscale="log")


def validation(trace: Trace, path: Path) -> Path:
    """Validation loss, and accuracy if there is one."""
    accuracy = [(one["round"], one["validation_accuracy"]) for one in trace.lines if "validation_accuracy" in one]
    figure, axes = _figure(2 if accuracy else 1)
    _plot_validation(axes[0] if accuracy else axes, trace)
    if accuracy:
        axes[1].plot(*zip(*accuracy, strict=True))
        axes[1].set(xlabel="round", ylabel="validation accuracy")
    return _save(figure, path)


def parameters(finished: Finished, trace: Trace, path: Path, shown: int = 5) -> Path:
    """Figure 2.1: released vectors, hypotheses and optima, early and late; and the validation loss."""
    figure, axes = _figure(3)
    count = min(shown, len(trace.released))
    spans = {"first": slice(0, count), "last": slice(-count, None)}
    for one, (name, span) in zip(axes[:2], spans.items(), strict=True):
        vectors, models = torch.cat(trace.released[span]), torch.cat(trace.models[span])
        one.scatter(vectors[:, 0], vectors[:, 1], s=12, alpha=0.5, label="released by clients")
        one.scatter(models[:, 0], models[:, 1], s=30, marker="s", label="hypotheses")
        for optimum in finished.problem.federation.optima:
            one.scatter(*optimum[:2].tolist(), marker="*", s=160, color="black")
        one.set(title=f"{name} {count} rounds", xlabel="first parameter", ylabel="second parameter")
    axes[0].legend(loc="best", fontsize="small")
    _plot_validation(axes[2], trace)
    return _save(figure, path)


def leakage(finished: Finished, trace: Trace, path: Path) -> Path:
    """Figure 2.2: the largest leakage among the clients of each cluster, round by round."""
    table = np.stack(trace.leakage)
    clusters = finished.problem.federation.clusters
    figure, axes = _figure()
    rounds = np.arange(1, len(table) + 1)
    if clusters is None:
        axes.plot(rounds, table.max(axis=1), label="largest")
        axes.plot(rounds, np.median(table, axis=1), label="median")
    else:
        for cluster in sorted(set(clusters[0])):
            mine = np.array(clusters[0]) == cluster
            axes.plot(rounds, table[:, mine].max(axis=1), label=f"largest, cluster {cluster + 1}")
    if finished.recipe.leakage_limit is not None:
        axes.axhline(finished.recipe.leakage_limit, linestyle="--", color="black", label="limit")
    axes.set(xlabel="round", ylabel=f"leakage, radius {finished.result.statement.details['radius']}")  # type: ignore[index]
    axes.legend(fontsize="small")
    return _save(figure, path)


def histogram(finished: Finished, path: Path) -> Path:
    """Figure 2.3: how the leakage is distributed over clients."""
    figure, axes = _figure()
    values, counts = np.unique(finished.result.leakage, return_counts=True)
    gap = float(np.diff(values).min()) if len(values) > 1 else 1.0
    axes.bar(values, counts, width=0.8 * gap)
    axes.set(xlabel="leakage", ylabel=f"clients (of {len(finished.result.leakage)})")
    return _save(figure, path)


def fairness(runs: dict[str, dict[str, Any]], path: Path) -> Path:
    """Figure 2.7: the three differences, one bar per run and attribute."""
    figure, axes = _figure(3)
    for one, (key, title) in zip(axes, _METRICS.items(), strict=True):
        bars = {
            f"{name}\n{attribute}": report[key]
            for name, attributes in runs.items()
            for attribute, report in attributes.items()
            if report[key] is not None
        }
        one.bar(list(bars), list(bars.values()))
        one.set(title=title, ylabel="difference", ylim=(0, 1))
        one.tick_params(axis="x", labelsize="small")
    return _save(figure, path)
