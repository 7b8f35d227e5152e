"""The figures of a run, after those of 000 chapter 2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from sordina.federated.record import Trace
    from sordina.federated.setup import Finished

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
    if finished.setup.privacy.name == "metric" and trace.leakage:
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
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    points = [(one["round"], one["validation_loss"]) for one in trace.lines if "validation_loss" in one]
    axes.plot(*zip(*points, strict=True))
    axes.set(xlabel="round", ylabel="validation loss", yscale="log")
    losses = [loss for _, loss in points]
    if max(losses) > 10 * min(losses):
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())


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
    optima = torch.stack([optimum[:2] for optimum in finished.problem.federation.optima or (torch.zeros(2),)])
    everything = [optima, *(one[:, :2] for one in (*trace.released[:count], *trace.released[-count:]))]
    low, high = (edge(torch.cat(everything), 0) for edge in (torch.amin, torch.amax))
    margin = 0.06 * (high - low) + 0.1
    for one, (name, span) in zip(axes[:2], spans.items(), strict=True):
        vectors, models = torch.cat(trace.released[span]), torch.cat(trace.models[span])
        one.scatter(vectors[:, 0], vectors[:, 1], s=12, alpha=0.5, label="released by clients")
        one.scatter(models[:, 0], models[:, 1], s=30, marker="s", label="hypotheses")
        if finished.problem.federation.optima:
            one.scatter(optima[:, 0], optima[:, 1], marker="*", s=160, color="black", label="optima")
        one.set(title=f"{name} {count} rounds", xlabel="first parameter", ylabel="second parameter")
        one.set(xlim=_span(low, high, margin, 0), ylim=_span(low, high, margin, 1))
    axes[0].legend(loc="best", fontsize="small")
    _plot_validation(axes[2], trace)
    return _save(figure, path)


def _span(low: torch.Tensor, high: torch.Tensor, margin: torch.Tensor, axis: int) -> tuple[float, float]:
    return float(low[axis] - margin[axis]), float(high[axis] + margin[axis])


def leakage(finished: Finished, trace: Trace, path: Path) -> Path:
    """Figure 2.2: the largest leakage among the clients of each cluster, round by round."""
    table = np.stack(trace.leakage)
    clusters = finished.problem.federation.clusters
    figure, axes = _figure()
    rounds = np.arange(1, len(table) + 1)
    if clusters is None:
        axes.step(rounds, table.max(axis=1), where="post", label="largest")
        axes.step(rounds, np.median(table, axis=1), where="post", label="median")
    else:
        for cluster in sorted(set(clusters[0])):
            mine = np.array(clusters[0]) == cluster
            axes.step(rounds, table[:, mine].max(axis=1), where="post", label=f"largest, cluster {cluster + 1}")
    limit = getattr(finished.setup.privacy, "leakage_limit", None)
    if limit is not None:
        axes.axhline(limit, linestyle="--", color="black", label="limit")
    axes.set(xlabel="round", ylabel=f"leakage, radius {finished.result.statement.details['radius']}")  # type: ignore[index]
    axes.legend(fontsize="small")
    return _save(figure, path)


def histogram(finished: Finished, path: Path) -> Path:
    """Figure 2.3: how the leakage is distributed over clients."""
    figure, axes = _figure()
    values, counts = np.unique(finished.result.leakage, return_counts=True)
    each = float(finished.result.statement.details["per_participation"])  # type: ignore[index]
    axes.bar(values, counts, width=0.8 * each)
    axes.set(xlabel="leakage", ylabel=f"clients (of {len(finished.result.leakage)})", xlim=(-each, values.max() + each))
    return _save(figure, path)


def fairness(runs: dict[str, dict[str, Any]], path: Path, xlabel: str = "") -> Path:
    """Figure 2.7: the three differences; the runs side by side in groups, one group per attribute (or nu)."""
    figure, axes = _figure(3)
    groups = list(dict.fromkeys(group for reports in runs.values() for group in reports))
    width = 0.8 / len(runs)
    for one, (key, title) in zip(axes, _METRICS.items(), strict=True):
        for place, (name, reports) in enumerate(runs.items()):
            shown = [
                (at, reports[group][key])
                for at, group in enumerate(groups)
                if reports.get(group, {}).get(key) is not None
            ]
            x = [at + (place - (len(runs) - 1) / 2) * width for at, _ in shown]
            bars = one.bar(x, [value for _, value in shown], 0.95 * width, label=name)
            one.bar_label(bars, fmt="%.2g", fontsize="x-small")
        one.set(title=title, ylabel="difference", ylim=(0, 1), xlabel=xlabel)
        one.set_xticks(range(len(groups)), groups)
    if len(runs) > 1:
        axes[0].legend(fontsize="small")
    return _save(figure, path)
