"""Do the defaults let anybody down? Every cell of a matrix of data, budgets and schedules against a grid of Fixed runs.

A cell is a data set, a model, a batch size, a number of epochs and an epsilon. In it the default (nothing tuned) and
every setting of a small grid of Fixed runs are trained from the same seeds. A cell is red when the default

- is worse than the *best* of the grid, chosen in hindsight on the test rows, by more than 2 points of accuracy (or R2)
  and by more than 5 % of log loss (or of squared error), beyond two standard errors;
- is worse than the constant answer, in accuracy (R2) or in log loss (squared error), beyond two standard errors;
- is worse than the same cell at a smaller epsilon, beyond two standard errors of the difference;
- diverged: a score that is no number.

Finished runs are files in the experiment's folder, so that a matrix can be computed over days, in parts.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import datasets, private_files
from sordina.clipping import FallingNorm, Fixed, TypicalNorm
from sordina.errors import InvalidInput, TrainingFailed
from sordina.privacy import Budget
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.training import AutomaticRate, Trainer, evaluate
from sordina.training.convexity import facts_of_loss

Rows = tuple[Tensor, Tensor]
_TEST = 3000
_POINTS, _SHARE, _LEAST = 0.02, 0.05, 0.002


@dataclass(frozen=True)
class Source:
    """Rows to train and to test on, and the number of classes (0: numbers or pictures are predicted)."""

    train: Rows
    test: Rows
    classes: int

    def model(self, kind: str, seed: int) -> nn.Module:
        """A linear model, a network of one hidden layer or a small convolutional one, its weights drawn from a seed.

        Args:
            kind: linear, mlp, cnn or cnn-group-norm.
            seed: Of the first weights.
        """
        shape, outputs = self.train[0].shape[1:], max(1, self.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.train[1].ndim == 4:
                return autoencoder(kind, shape)
            if kind == "linear":
                return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))
            if kind == "mlp":
                hidden = nn.Linear(math.prod(shape), 32)
                return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(32, outputs))
            if kind == "cnn" and len(shape) == 3:
                places = (shape[1] // 2) * (shape[2] // 2)
                first = nn.Conv2d(shape[0], 8, 3, padding=1)
                return nn.Sequential(
                    first, nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * places, 32), nn.Tanh(),
                    nn.Linear(32, outputs),
                )  # fmt: skip
            if kind == "cnn-group-norm" and len(shape) == 3:
                places = (shape[1] // 2) * (shape[2] // 2)
                return nn.Sequential(
                    nn.Conv2d(shape[0], 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
                    nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
                    nn.Flatten(), nn.Linear(16 * places, outputs),
                )  # fmt: skip
        raise InvalidInput(f"no model of the matrix is called {kind!r} for rows of shape {tuple(shape)}.")

    def loss(self) -> Callable[..., Tensor]:
        """Cross-entropy or squared error."""
        return nn.functional.cross_entropy if self.classes else nn.functional.mse_loss


def autoencoder(kind: str, shape: Sequence[int]) -> nn.Module:
    """A model of ``kind`` that gives back pictures of ``shape``, every pixel between zero and one."""
    size = math.prod(shape)
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(shape[0], 8, 3), nn.LeakyReLU(), nn.Conv2d(8, 16, 3), nn.LeakyReLU(),
            nn.ConvTranspose2d(16, 8, 3), nn.LeakyReLU(), nn.ConvTranspose2d(8, shape[0], 3), nn.Sigmoid(),
        )  # fmt: skip
    hidden = [nn.Linear(size, size)] if kind == "linear" else [nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, size)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Sigmoid(), nn.Unflatten(1, tuple(shape)))


# Data: synthetic tables of every balance, size and scale, and public ones.


def table(
    rows: int, positive: float, *, scale: float = 1.0, width: int = 20, bent: bool = False, unit: float = 1.0
) -> Source:
    """A made-up table with a share of ``positive`` labels (0: a number is predicted, which counts in ``unit``)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows + _TEST, width))
    score = x @ (rng.normal(size=width) * 2 / math.sqrt(width))
    if bent:
        score = 0.5 * score + 2 * np.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2]
    inputs = torch.from_numpy(x * scale).float()
    if not positive:
        target = score + 0.5 * rng.normal(size=len(score))
        numbers = torch.from_numpy(unit * (target - target.mean()) / target.std()).float()[:, None]
        return Source((inputs[:rows], numbers[:rows]), (inputs[rows:], numbers[rows:]), 0)
    score = score + 0.35 * rng.logistic(size=len(score))
    labels = torch.from_numpy((score > np.quantile(score, 1 - positive)).astype(np.int64))
    return Source((inputs[:rows], labels[:rows]), (inputs[rows:], labels[rows:]), 2)


def words(rows: int = 4000, vocabulary: int = 300) -> Source:
    """Made-up texts as counts of words of unit length, on four topics."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(vocabulary, 0.1), size=4)
    labels = rng.integers(4, size=rows + _TEST)
    counts = np.stack([rng.multinomial(25, 0.6 * topics[label] + 0.4 / vocabulary) for label in labels])
    inputs = torch.from_numpy(counts / np.linalg.norm(counts, axis=1, keepdims=True)).float()
    targets = torch.from_numpy(labels)
    return Source((inputs[:rows], targets[:rows]), (inputs[rows:], targets[rows:]), 4)


def digits() -> Source:
    """Images of 8 by 8."""
    data = datasets.load("digits")
    train, test = (tuple(part.tensors) for part in (data.train, data.test))
    return Source((train[0].float().view(-1, 1, 8, 8), train[1]), (test[0].float().view(-1, 1, 8, 8), test[1]), 10)


def pictures() -> Source:
    """Images of 8 by 8 that are to be given back."""
    (train, _), (test, _) = digits().train, digits().test
    return Source((train, train), (test, test), 0)


def public(name: str) -> Source:
    """A table of scikit-learn, every fourth row held out, scaled by constants of its documentation or not at all."""
    from sklearn import datasets as tables

    found = getattr(tables, f"load_{name}")()
    x, y = torch.from_numpy(found.data).float(), torch.from_numpy(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(x) // 4], order[len(x) // 4 :]
    if name == "diabetes":
        y = (y.float()[:, None] - 150) / 80
        return Source((x[train] * 20, y[train]), (x[test] * 20, y[test]), 0)
    x = torch.log1p(x)
    return Source((x[train], y[train]), (x[test], y[test]), int(y.max()) + 1)


SOURCES: dict[str, Callable[[], Source]] = {
    "balanced": lambda: table(4000, 0.5),
    "positive-20": lambda: table(4000, 0.2),
    "positive-5": lambda: table(8000, 0.05),
    "positive-1": lambda: table(16000, 0.01),
    "200-rows": lambda: table(200, 0.5, width=10),
    "100000-rows": lambda: table(100_000, 0.3),
    "bent": lambda: table(8000, 0.4, width=10, bent=True),
    "tiny-scale": lambda: table(4000, 0.5, scale=0.01),
    "huge-scale": lambda: table(4000, 0.5, scale=100.0),
    "regression": lambda: table(4000, 0.0, width=10),
    "regression-in-thousands": lambda: table(4000, 0.0, width=10, unit=1000.0),
    "bent-regression": lambda: table(8000, 0.0, width=10, bent=True),
    "words": words,
    "digits": digits,
    "pictures": pictures,
    "breast-cancer": lambda: public("breast_cancer"),
    "wine": lambda: public("wine"),
    "diabetes": lambda: public("diabetes"),
}


# Cells.


@dataclass(frozen=True)
class Cell:
    """One place of the matrix."""

    source: str
    model: str
    batch_size: int
    epochs: float
    epsilon: float

    @property
    def row(self) -> str:
        """What it shares with the cells of other budgets."""
        return f"{self.source}, {self.model}, batch {self.batch_size}, {self.epochs:g} epochs"


def trained(source: Source, cell: Cell, seed: int, setting: tuple[float, float] | None) -> list[float]:
    """Score (accuracy or R2) and loss (log loss or squared error) of one run; a run that diverged has neither."""
    model = source.model(cell.model, seed)
    options: dict[str, Any] = {}
    if setting is not None:
        threshold, length = setting
        options = {"clipping": Fixed(threshold), "learning_rate": length / threshold}
    batch_size = min(cell.batch_size, len(source.train[0]) // 2)
    trainer = Trainer(
        model, source.loss(), Budget(cell.epsilon, 1e-5), batch_size=batch_size, epochs=cell.epochs, seed=seed,
        accountant="rdp", track_epsilon=False, **options,
    )  # fmt: skip
    try:
        trainer.fit(source.train)
    except TrainingFailed:
        return [-math.inf, math.inf]
    scores = evaluate(model, source.loss(), source.test)
    return [scores["accuracy"] if source.classes else 1 - scores["loss"] / constant(source)[1], scores["loss"]]


def constant(source: Source) -> list[float]:
    """Score and loss of the best constant answer on the test rows."""
    target = source.test[1]
    if not source.classes:
        return [0.0, float(target.var(0, correction=0).mean())]
    shares = target.bincount(minlength=source.classes).double() / len(target)
    return [float(shares.max()), float(-torch.xlogy(shares, shares).sum())]


@dataclass(frozen=True)
class CellResult:
    """Runs of the default and of every setting of the grid: ``(score, loss)`` by seed."""

    cell: Cell
    default: Sequence[Sequence[float]]
    grid: Mapping[str, Sequence[Sequence[float]]]
    constant: Sequence[float]

    def mean(self, which: int) -> tuple[float, float]:
        """Mean and standard error of the default's score (0) or loss (1); an error of one seed is taken as 0.01."""
        values = np.array([run[which] for run in self.default])
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.01
        return float(values.mean()), float(error)

    def best(self) -> tuple[float, float]:
        """The best score and the best loss of the grid, each chosen in hindsight."""
        means = [np.mean(np.array(runs), axis=0) for runs in self.grid.values()]
        return max(float(one[0]) for one in means), min(float(one[1]) for one in means)

    def faults(self, smaller: CellResult | None) -> list[str]:
        """Why the cell is red, if it is; ``smaller`` is the cell at the next smaller epsilon."""
        (score, score_error), (loss, loss_error) = self.mean(0), self.mean(1)
        if not (math.isfinite(score) and math.isfinite(loss)):
            return ["diverged"]
        found = []
        best_score, best_loss = self.best()
        behind = score < best_score - _POINTS - 2 * score_error
        costly = loss > best_loss * (1 + _SHARE) + _LEAST + 2 * loss_error
        if behind and costly:
            found.append(f"behind Fixed: {score:.3f} against {best_score:.3f}, loss {loss:.3f} against {best_loss:.3f}")
        if score < self.constant[0] - 2 * score_error - _LEAST or loss > self.constant[1] + 2 * loss_error + _LEAST:
            found.append(f"below the constant answer: loss {loss:.3f} against {self.constant[1]:.3f}")
        if smaller is not None:
            (before, before_error), (cost, cost_error) = smaller.mean(0), smaller.mean(1)
            worse = score < before - 2 * math.hypot(score_error, before_error) - _LEAST
            if worse and loss > cost + 2 * math.hypot(loss_error, cost_error) + _LEAST:
                found.append(f"worse than at epsilon {smaller.cell.epsilon:g}: {score:.3f} against {before:.3f}")
        return found


def rule() -> str:
    """A hash of the default's own files: runs of an earlier default are not taken for runs of this one."""
    files = [Path(inspect.getfile(part)) for part in (TypicalNorm, FallingNorm, AutomaticRate, facts_of_loss)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def kept(job: Job, facts: dict[str, Any], runs: Callable[[], list[list[float]]]) -> list[list[float]]:
    """The runs that ``facts`` describe, from their file if they were done before."""
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    file = job.folder / "cells" / f"{name}.json"
    if file.exists():
        found: list[list[float]] = json.loads(private_files.read(file))["runs"]
        return found
    done = runs()
    file.parent.mkdir(parents=True, exist_ok=True)
    private_files.write(file, json.dumps(facts | {"runs": done}).encode())
    return done


def measured(job: Job, source: Source, cell: Cell) -> CellResult:
    """The cell's runs; those of a setting are kept by themselves, so that a new default leaves the grid alone."""
    given = job.settings
    facts = {"cell": cell.__dict__, "seeds": given["seeds"]}

    def of(setting: tuple[float, float] | None) -> list[list[float]]:
        what = {"rule": rule()} if setting is None else {"setting": setting}
        return kept(job, facts | what, lambda: [trained(source, cell, seed, setting) for seed in range(given["seeds"])])

    fixed = {f"C {threshold:g}, step {length:g}": of((threshold, length)) for threshold, length in given["grid"]}
    return CellResult(cell, of(None), fixed, constant(source))


def robustness(job: Job) -> ExperimentFindings:
    """The matrix of the job's settings: a value per cell, red ones with their reasons."""
    given = job.settings
    values, curves, red = [], [], 0
    for name in given["sources"]:
        source = SOURCES[name]()
        images, given_back = source.train[0].ndim == 4, source.train[1].ndim == 4
        apt = {"cnn": images, "cnn-group-norm": images and not given_back}
        kinds = [kind for kind in given["models"] if apt.get(kind, True)]
        for kind, batch_size, epochs in product(kinds, given["batch_sizes"], given["epochs"]):
            smaller: CellResult | None = None
            scores = []
            for epsilon in sorted(given["epsilons"]):
                result = measured(job, source, Cell(name, kind, batch_size, epochs, epsilon))
                faults = result.faults(smaller)
                red += bool(faults)
                mean, error = result.mean(0)
                what = {"cell": result.cell.row, "epsilon": f"{epsilon:g}"}
                note = "red: " + "; ".join(faults) if faults else "green"
                values.append(Value(what, mean, error, result.best()[0], note=note))
                scores.append(mean)
                smaller = result
            curves.append(PlottedCurve(f"{name}, {kind}, {batch_size}, {epochs:g}", sorted(given["epsilons"]), scores))
    panel = Panel("The default over budgets", "epsilon", "accuracy, or R2", curves, log_x=True)
    remarks = [
        f"{red} of {len(values)} cells are red. The reference is the best of {len(given['grid'])} Fixed settings, "
        "chosen in hindsight on the test rows.",
        f"{given['seeds']} seed(s), delta 1e-5, RDP accountant.",
        *job.caveats,
    ]
    return ExperimentFindings("made-up tables, digits and tables of scikit-learn", values, [panel], remarks)
