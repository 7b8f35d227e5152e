"""004 section 5.3: what composition costs a logistic regression and a network, and Abadi's private PCA and network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordina import datasets
from sordina.accounting import Composed, Event, Gaussian, Repeated, accountant, noise_multiplier
from sordina.clipping import Fixed
from sordina.estimators import PCA
from sordina.privacy import Adjacency, Budget
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.training import Trainer, evaluate
from sordina.training.trainer import make_schedule

COMPOSITIONS = ("basic", "advanced", "zcdp", "rdp", "pld")
"""As 004 orders them: naive, advanced, zCDP, RDP; and the numerical one that came later."""


def accuracy_loss(job: Job) -> ExperimentFindings:
    """Figures 5.2 and 5.3: ``1 - private accuracy / accuracy without privacy`` against epsilon, by composition."""
    given = job.settings
    train, test, source = _rows(given)
    values, panels = [], []
    for model in ("logistic regression", "network"):
        ordinary = {**given, "learning_rate": given["plain_learning_rate"]}  # gradients are not clipped then
        seeds = range(given["seeds"])
        plain = np.mean([_accuracy(model, train, test, Budget(math.inf, 0.0), None, ordinary, seed) for seed in seeds])
        curves = []
        for composition in COMPOSITIONS:
            losses, spreads = [], []
            for epsilon in given["epsilons"]:
                budget = Budget(epsilon, given["delta"])
                noise = noise_multiplier(_steps(given["steps"]), budget, accountant=composition)
                found = [1 - _accuracy(model, train, test, budget, noise, given, seed) / plain for seed in seeds]
                losses.append(float(np.mean(found)))
                spreads.append(float(np.std(found, ddof=1)) if len(found) > 1 else 0.0)
                what = {"model": model, "composition": composition, "epsilon": f"{epsilon:g}"}
                values.append(Value(what, losses[-1], spreads[-1] or None, note=f"noise multiplier {noise:.4g}"))
            curves.append(PlottedCurve(composition, given["epsilons"], losses, spreads))
        panels.append(Panel(f"{model} ({plain:.3f} without privacy)", "epsilon", "accuracy loss", curves, log_x=True))
    remarks = [
        "004 shows CIFAR-100 (Jayaraman and Evans 2019), which is not here; what it concludes is compared: naive and "
        "advanced composition are of no use below epsilon 10 and more, zCDP and RDP are far better.",
        f"{given['steps']} steps over all rows, so that every accountant knows the event; the same steps, threshold "
        "and learning rate for all, only the noise differs. Without privacy: as many steps, not clipped, at a learning "
        f"rate of {given['plain_learning_rate']:g}; what is lost at the largest epsilons is lost to clipping.",
    ]
    return ExperimentFindings(source, values, panels, [*remarks, *job.caveats])


def pca_network(job: Job) -> ExperimentFindings:
    """Abadi et al. 2016 as 004 section 5.3 tells it: private PCA of the images, then a network of one hidden layer."""
    given = job.settings
    train, test, source = _rows(given)
    values = []
    for place, epsilon in enumerate(given["epsilons"]):
        found = [
            _pca_accuracy(train, test, Budget(epsilon, given["delta"]), given["epochs"][place], given, seed)
            for seed in range(given["seeds"])
        ]
        spent = max(one[1] for one in found)
        scores = [one[0] for one in found]
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        what = {"epsilon": f"{epsilon:g}", "quantity": "test accuracy"}
        note = f"epsilon {spent:.4f} for components and network together"
        values.append(Value(what, float(np.mean(scores)), spread, given["accuracies"][place], note=note))
    remarks = [
        f"{given['components']} components of a Gram matrix of rows shortened to norm {given['row_norm']:g} (errata "
        "1), "
        f"a tenth of the budget; then {given['hidden']} hidden units, batches of {given['batch_size']}.",
    ]
    return ExperimentFindings(source, values, (), [*remarks, *job.caveats])


def _rows(given: dict[str, Any]) -> tuple[TensorDataset, TensorDataset, str]:
    data = datasets.load(given["dataset"])
    rows = given.get("rows")
    (x, y), (u, v) = (part.tensors for part in (data.train, data.test))
    return TensorDataset(x[:rows].flatten(1), y[:rows]), TensorDataset(u.flatten(1), v), data.source


def _steps(count: int) -> Any:
    def event(noise: float) -> Event:
        return Repeated(Gaussian(noise), count)

    return event


def _build(model: str, inputs: int, classes: int, hidden: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model == "network":
            return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        return nn.Linear(inputs, classes)


def _accuracy(
    model: str, train: TensorDataset, test: TensorDataset, budget: Budget, noise: float | None, given: dict[str, Any],
    seed: int,
) -> float:  # fmt: skip
    module = _build(model, train.tensors[0].shape[1], int(train.tensors[1].max()) + 1, given["hidden"], seed)
    trainer = Trainer(
        module, nn.functional.cross_entropy, budget, clipping=Fixed(given["threshold"]), batch_size=len(train),
        steps=given["steps"], learning_rate=given["learning_rate"], noise_multiplier=noise, seed=seed,
    )  # fmt: skip
    trainer.fit(train)
    return float(evaluate(module, nn.functional.cross_entropy, test)["accuracy"])


def _pca_accuracy(
    train: TensorDataset, test: TensorDataset, budget: Budget, epochs: float, given: dict[str, Any], seed: int
) -> tuple[float, float]:
    (x, y), (u, v) = train.tensors, test.tensors
    whole = noise_multiplier(Gaussian, budget)
    share = accountant("pld").epsilon(Gaussian(whole / math.sqrt(0.1)), budget.delta, Adjacency.ADD_REMOVE)
    pca = PCA(given["components"], Budget(share, budget.delta), row_norm=given["row_norm"], random_state=seed).fit(
        x.numpy()
    )

    def projected(rows: Tensor) -> Tensor:
        return torch.from_numpy(pca.transform(rows.numpy())).float()

    sampler, steps = make_schedule(
        len(y), batch_size=given["batch_size"], epochs=epochs, steps=None, sampling="poisson", population=None
    )
    noise = noise_multiplier(lambda nu: Composed((pca.event_, Repeated(sampler.event(Gaussian(nu)), steps))), budget)
    module = _build("network", given["components"], int(y.max()) + 1, given["hidden"], seed)
    trainer = Trainer(
        module, nn.functional.cross_entropy, budget, clipping=Fixed(given["threshold"]), seed=seed,
        batch_size=given["batch_size"], epochs=epochs, noise_multiplier=noise,
    )  # fmt: skip
    run = trainer.fit(TensorDataset(projected(x), y))
    event = Composed((pca.event_, run.plan.event(run.steps)))
    spent = accountant("pld").epsilon(event, budget.delta, Adjacency.ADD_REMOVE)
    scores = evaluate(module, nn.functional.cross_entropy, TensorDataset(projected(u), v))
    return float(scores["accuracy"]), spent
