"""A federation ready to be trained: its objective, its clients and its first models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordina.fairness import Fairness, measure
from sordina.federated import losses
from sordina.federated.clients.hypotheses import best
from sordina.federated.data.federation import Federation
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population
from sordina.federated.validation import Validation, choose
from sordina.models import build
from sordina.models.metrics import predicted_class


@dataclass(frozen=True)
class Problem:
    """What is to be learnt, and from whom."""

    federation: Federation
    objective: Objective
    train: Population
    held_out: Population | None
    """None: there is nothing to validate on."""
    names: tuple[str, ...] = ()
    """The clients' names, where they have any."""

    @classmethod
    def of(cls, federation: Federation, *, loss: str | None = None, root: bool | None = None) -> Problem:
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
