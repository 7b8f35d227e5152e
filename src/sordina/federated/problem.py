"""A federation ready to be trained, and how good its models are for clients that took no part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.fairness import Fairness, measure
from sordina.federated import losses
from sordina.federated.algorithms.ifca import best, client_losses
from sordina.federated.data.partition import Federation
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Cohort, Population
from sordina.federated.privacy.client_metrics import RandomizedMetrics
from sordina.models import build
from sordina.models.metrics import predicted_class

# How good the models are for clients that took no part in training.
#
# Every held-out client uses the model that fits its own rows best, as it would in use. These clients' losses are read
# as they are: validation is not covered by any guarantee of the training clients. With `RandomizedMetrics` they are not
# read: every client tells a randomised answer, under a guarantee of its own.


@dataclass(frozen=True)
class Score:
    """The mean over clients of their loss, and the share of right classes where there are classes."""

    loss: float
    accuracy: float | None = None
    shares: tuple[float, ...] = ()
    """The share of clients that each model fits best."""


@dataclass(frozen=True)
class Validation:
    """Held-out clients; ``sample`` of them each time, or all."""

    objective: Objective
    population: Population
    classes: bool = False
    sample: int | None = None
    metrics: RandomizedMetrics | None = None
    """How clients tell, if not in the clear."""

    def score(self, models: Tensor, rng: np.random.Generator) -> Score:
        """Let every client choose, then measure."""
        count = len(self.population)
        ids = np.arange(count)
        if self.sample is not None and self.sample < count:
            ids = rng.choice(count, self.sample, replace=False)
        cohort = self.population.cohort(ids)
        table = client_losses(self.objective, models, cohort)
        best, chosen = torch.where(table.isfinite(), table, torch.inf).min(dim=1)
        accuracy = None
        if self.metrics is not None:
            right = self._right(models, cohort, chosen) if self.classes else None
            told = self.metrics.ask(best.double().numpy(), right, chosen.numpy(), len(models))
            return Score(*told)
        if self.classes:
            outputs, targets = choose(self.objective, models, cohort, chosen)
            accuracy = float((predicted_class(outputs) == targets).double().mean())
        shares = torch.bincount(chosen, minlength=len(models)).double() / len(cohort)
        return Score(float(best.double().mean()), accuracy, tuple(shares.tolist()))

    def _right(self, models: Tensor, cohort: Cohort, chosen: Tensor) -> NDArray[np.float64]:
        """The share of right classes of every client."""
        owner = cohort.rows()[2].numpy()
        outputs, targets = choose(self.objective, models, cohort, chosen)
        right = (predicted_class(outputs) == targets).double().numpy()
        rows = np.maximum(np.bincount(owner, minlength=len(cohort)), 1)
        return np.asarray(np.bincount(owner, weights=right, minlength=len(cohort)) / rows)


def choose(objective: Objective, models: Tensor, cohort: Cohort, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs on all rows of the cohort, each by the model its client chose, and the targets."""
    x, y, owner = cohort.rows()
    outputs: Tensor | None = None
    for index, model in enumerate(models):
        mine = chosen[owner] == index
        if not bool(mine.any()):
            continue
        part = objective.predict(model, x[mine])
        if outputs is None:
            outputs = part.new_zeros(len(x), *part.shape[1:])
        outputs[mine] = part
    assert outputs is not None
    return outputs, y


# A federation ready to be trained: its objective, its clients and its first models.


@dataclass(frozen=True)
class FederatedProblem:
    """What is to be learnt, and from whom."""

    federation: Federation
    objective: Objective
    train: Population
    held_out: Population | None
    """None: there is nothing to validate on."""
    names: tuple[str, ...] = ()
    """The clients' names, where they have any."""

    @classmethod
    def of(cls, federation: Federation, *, loss: str | None = None, root: bool | None = None) -> FederatedProblem:
        """The problem of a federation; ``loss`` and ``root`` replace what the federation says."""
        module = build(federation.model, **federation.options)
        chosen = losses.named(loss or federation.loss)
        objective = of_module(module, chosen, root=federation.root if root is None else root)
        return cls(federation, objective, Population.of(federation.train), Population.of(federation.validation))

    @property
    def classes(self) -> bool:
        """Whether rows have classes, so that accuracy means something."""
        return self.federation.metric == "accuracy"

    def initial(self, count: int, rng: np.random.Generator) -> Tensor:
        """``count`` independent first models ``(count, P)``, as the model's own initialisation draws them."""
        seeds = [int(seed) for seed in rng.integers(2**31, size=count)]
        name, options = self.federation.model, self.federation.options
        return torch.stack([flat_parameters(build(name, seed=seed, **options)) for seed in seeds])

    def name(self, client: int) -> str:
        """What client number ``client`` is called."""
        return self.names[client] if self.names else str(client)

    def validation(self, sample: int | None = None) -> Validation | None:
        """The held-out clients, if there are any."""
        if self.held_out is None:
            return None
        return Validation(self.objective, self.held_out, self.classes, sample)

    def fairness(self, models: Tensor) -> dict[str, Fairness]:
        """How the groups among the held-out clients fare, each client using the model that fits it best."""
        if not self.federation.groups or self.held_out is None:
            return {}
        cohort = self.held_out.cohort(np.arange(len(self.held_out)))
        outputs, targets = choose(self.objective, models, cohort, best(self.objective, models, cohort))
        values = predicted_class(outputs) if self.classes else outputs
        report = {}
        for name, groups in self.federation.groups.items():
            codes = torch.cat(groups.validation)
            judge = self.federation.outcome
            truth, decided = (targets, values) if judge is None else (judge(targets, codes), judge(values, codes))
            report[name] = measure(truth.numpy(), decided.numpy(), codes.numpy(), names=groups.names)
        return report


def distance_to_optima(models: Tensor, optima: tuple[Tensor, ...]) -> float:
    """The largest distance of an optimum to the model meant for it, under the best matching of models to optima.

    With fewer models than optima, a model may serve several.

    >>> distance_to_optima(torch.tensor([[0.0, 1.0], [5.0, 5.0]]), (torch.tensor([5.0, 5.0]), torch.tensor([0.0, 0.0])))
    1.0
    """
    from scipy.optimize import linear_sum_assignment

    table = torch.cdist(torch.stack(list(optima)).double(), models.double()).numpy()
    if len(models) < len(optima):
        return float(table.min(axis=1).max())
    bounds = np.unique(table)
    for bound in bounds:
        rows, columns = linear_sum_assignment(table > bound)
        if not (table[rows, columns] > bound).any():
            return float(bound)
    return float(bounds[-1])
