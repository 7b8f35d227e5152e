"""The figures of the concept pages, made by the library itself, on data that needs no download.

python docs/figures.py      # rewrites docs/images/*.svg
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot
from scipy.signal import fftconvolve
from torch.nn.functional import cross_entropy

from sordina import accounting, datasets, models
from sordina.accounting._pld.composition import discretise
from sordina.accounting._pld.losses import GaussianLoss
from sordina.accounting._pld.pairs import Removed
from sordina.clipping import Fixed
from sordina.gradients import Engine
from sordina.privacy import best_guess, most_found
from sordina.queries import VectorQuery
from sordina.reproduction.experiment import Job, load
from sordina.reproduction.searches import cosine

IMAGES = Path(__file__).parent / "images"
RATE, NOISE, DELTA = 0.01, 1.0, 1e-5
BATCH = 1024


def odds() -> None:
    """How often the best attacker is right, and what share of members it finds, as epsilon grows."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    epsilons = np.linspace(0.02, 8, 200)
    left.plot(epsilons, [100 * best_guess(float(epsilon), DELTA) for epsilon in epsilons])
    left.axhline(50, color="grey", linestyle=":", label="a coin")
    left.set(xlabel="epsilon", ylabel="right at most, %", title="In or out? Two equally likely cases", ylim=(45, 102))
    left.legend(loc="center right")
    for rate in (0.1, 0.01, 0.001):
        found = [100 * most_found(float(epsilon), DELTA, rate) for epsilon in epsilons]
        right.plot(epsilons, found, label=f"at {rate:.1%} false alarms")
    right.set(xlabel="epsilon", ylabel="found at most, %", title="Finding members among many", ylim=(0, 102))
    right.legend(fontsize=8, loc="center left")
    save(figure, "odds")


def privacy_loss() -> None:
    """The distribution of privacy losses after some steps, and what it costs by every accountant."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    once = discretise(Removed(GaussianLoss(NOISE), RATE), step=1e-3, tail=1e-12)
    for steps in (100, 1000, 3000):
        start, masses = power(once.start, once.masses, steps)
        losses = (start + np.arange(masses.size)) * once.step
        left.plot(losses, masses / once.step, label=f"{steps} steps")
    left.set(xlabel="privacy loss", ylabel="density", xlim=(-2, 4), title=f"Rate {RATE:g}, noise multiplier {NOISE:g}")
    left.legend()
    counts = [int(count) for count in np.geomspace(10, 3000, 13)]
    for name in ("pld", "rdp", "zcdp", "advanced"):
        judge = accounting.accountant(name)
        right.plot(counts, [judge.epsilon(steps_of(count), DELTA) for count in counts], label=name)
    right.set(
        xlabel="steps", ylabel=f"epsilon at delta {DELTA:g}", xscale="log", yscale="log", title="The same, priced"
    )
    right.legend()
    save(figure, "privacy-loss")


def steps_of(count: int) -> accounting.Event:
    """``count`` steps of private training."""
    return accounting.Repeated(accounting.PoissonSampled(RATE, accounting.Gaussian(NOISE)), count)


def power(start: int, masses: np.ndarray, count: int) -> tuple[int, np.ndarray]:
    """The ``count``-fold convolution of ``masses`` on a grid from ``start``, by squaring; thin ends are cut off."""
    total: tuple[int, np.ndarray] = (0, np.ones(1))
    base = (start, masses)
    while count:
        if count & 1:
            total = trimmed(total[0] + base[0], fftconvolve(total[1], base[1]))
        base = trimmed(2 * base[0], fftconvolve(base[1], base[1]))
        count >>= 1
    return total


def trimmed(start: int, masses: np.ndarray) -> tuple[int, np.ndarray]:
    """Without the ends that no eye would see."""
    kept = np.flatnonzero(masses > 1e-12)
    return start + int(kept[0]), masses[kept[0] : kept[-1] + 1]


def clipping() -> None:
    """Figure 3.1 of the thesis, on digits, and beside it where the curves come from: bias and noise."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    settings: dict[str, Any] = {
        "dataset": "digits", "batch_size": BATCH, "learning_rate": 0.5, "noise_multiplier": NOISE, "lowest": 1e-3,
        "highest": 1e3, "draws": 20, "iterations": [10, 100, 400], "thresholds": 37,
    }  # fmt: skip
    job = Job(replace(load("figure-3.1"), scales={"digits": settings}), "digits", IMAGES)
    for curve in cosine(job).panels[0].curves:
        left.plot(curve.x, curve.y, label=curve.label.replace("t =", "step"))
    left.set(xlabel="clipping threshold C", ylabel="cosine with the true gradient", xscale="log", ylim=(0, 1))
    left.set_title("How well the noised gradient points")
    left.legend()
    thresholds = np.geomspace(1e-2, 1e2, 33)
    biases, size = bias(thresholds)
    noises = NOISE * thresholds * math.sqrt(size) / BATCH
    right.plot(thresholds, biases, label="bias: what clipping takes away")
    right.plot(thresholds, noises, label="noise: what privacy adds")
    right.plot(thresholds, np.hypot(biases, noises), color="black", label="both")
    right.set(xlabel="clipping threshold C", ylabel="distance", xscale="log", yscale="log", ylim=(1e-2, 1e2))
    right.set_title("Distance to the true gradient, first step")
    right.legend(fontsize=8)
    save(figure, "clipping")


def bias(thresholds: np.ndarray) -> tuple[np.ndarray, int]:
    """How far clipping at each threshold moves the mean gradient of one batch, and the number of parameters."""
    data = datasets.load("digits")
    model = models.build_for(data, seed=0)
    x, y = (part[:BATCH] for part in data.train.tensors)
    with Engine(model) as engine:
        tape = engine.record(cross_entropy(model(x), y, reduction="none"))
        (total,) = tape.contract([VectorQuery(torch.ones(len(x)))])
        clipped = [tape.contract(Fixed(float(bound)).ask(tape.scalars(), None))[0] for bound in thresholds]
    return np.array([float((one - total).norm()) / BATCH for one in clipped]), len(total)


def save(figure: Any, name: str) -> None:
    """Write an SVG that is the same bytes each time."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """All of them."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "sordina", "svg.fonttype": "none", "font.size": 10})
    for draw in (odds, privacy_loss, clipping):
        draw()


if __name__ == "__main__":
    main()
