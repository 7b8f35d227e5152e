"""Pictures of an audit: ROC on log axes, empirical epsilon against FPR, AUC against sigma, reconstructions.

Each function writes one PNG and returns its path; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sordina import private_files
from sordina.auditing.bounds import rates_at
from sordina.auditing.findings import AttackResult
from sordina.auditing.scores import FloatArray, Scores


def roc_figure(results: Sequence[AttackResult], path: str | Path) -> Path:
    """TPR against FPR, both on log axes, where attacks differ (000 figure 4.3b; Carlini et al. 2022)."""
    figure, axes = _axes("false positive rate", "true positive rate")
    floor = min(1 / len(result.scores.outside) for result in results) / 2
    for result in results:
        fpr, tpr = np.maximum(result.roc.fpr, floor), np.maximum(result.roc.tpr, floor)
        axes.plot(fpr, tpr, label=f"{result.name} (AUC {result.auc.value:.3f})")
    axes.plot([floor, 1], [floor, 1], color="grey", linestyle=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    return _finish(figure, axes, path)


def epsilon_figure(results: Sequence[AttackResult], path: str | Path) -> Path:
    """Lower bounds on epsilon against FPR (000 figure 4.4, with confidence): each point is a bound by itself."""
    figure, axes = _axes("false positive rate", "epsilon, lower confidence bound")
    for result in results:
        fpr, bounds = epsilon_curve(result.scores, result.bound.delta, result.confidence)
        axes.plot(fpr, bounds, label=result.name)
    claim = results[0].claim
    if claim is not None and np.isfinite(claim.epsilon):
        axes.axhline(claim.epsilon, color="black", linestyle="--", label="claimed")
    axes.set(xscale="log", ylim=(0, None))
    return _finish(figure, axes, path)


def epsilon_curve(scores: Scores, delta: float, confidence: float, points: int = 60) -> tuple[FloatArray, FloatArray]:
    """(FPR, two-rates bound) over thresholds. One threshold chosen from the curve needs evidence of its own."""
    ordered = np.sort(scores.outside)[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), points).astype(int))
    bounds = rates_at(scores, ordered[ranks - 1], confidence).log_ratio(delta)
    return ranks / len(ordered), np.maximum(bounds, 0.0)


def sigma_figure(tried: Sequence[Sequence[float]], path: str | Path) -> Path:
    """AUC against the noise of the neighbours: one peak (000 figure 4.2). Takes the pairs that the search tried."""
    figure, axes = _axes("sigma of the noisy neighbours", "AUC on the tuning split")
    points = sorted((float(sigma), float(value)) for sigma, value in tried)
    axes.plot([sigma for sigma, _ in points], [value for _, value in points], marker="o")
    axes.axhline(0.5, color="grey", linestyle=":")
    axes.set(xscale="log")
    return _finish(figure, axes, path)


def reconstruction_figure(
    originals: Tensor, rows: Sequence[tuple[str, Tensor]], path: str | Path, captions: Sequence[Sequence[str]] = ()
) -> Path:
    """A grid: the originals, then one row per defence (000 figure 2.5). Images are (N, channels, height, width)."""
    from matplotlib.figure import Figure

    table = [("original", originals), *rows]
    size = (1.1 * len(originals) + 1.6, 1.25 * len(table))
    figure = Figure(figsize=size)
    grid = figure.subplots(len(table), len(originals), squeeze=False)
    for line, (name, images) in enumerate(table):
        for column, image in enumerate(images):
            axes = grid[line][column]
            axes.imshow(image.detach().clamp(0, 1).mean(dim=0).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if line and captions:
                axes.set_xlabel(captions[line - 1][column], fontsize=6, labelpad=1)
        grid[line][0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return _save(figure, path)


def class_figure(images: Tensor, confidences: Sequence[float], path: str | Path) -> Path:
    """What a model thinks its classes look like, with how sure it is. Images are (classes, height, width)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * len(images), 1.5))
    for axes, image, sure in zip(figure.subplots(1, len(images), squeeze=False)[0], images, confidences, strict=True):
        axes.imshow(image.detach().numpy(), cmap="gray")
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"{sure:.0%}", fontsize=7, labelpad=1)
    return _save(figure, path)


def _axes(horizontal: str, vertical: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.grid(alpha=0.3)
    return figure, axes


def _finish(figure: Any, axes: Any, path: str | Path) -> Path:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)
    return _save(figure, path)


def _save(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    private_files.make_folder(path.parent)
    private_files.write(path, lambda file: figure.savefig(file, dpi=150, bbox_inches="tight", format="png"))
    return path
