"""How good the models are for clients that took no part in training.

Every held-out client uses the model that fits its own rows best, as it would in use. These clients' losses are read as
they are: validation is not covered by any guarantee of the training clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordina.federated.clients.hypotheses import losses
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, Population
from sordina.models.metrics import predicted_class


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

    def score(self, models: Tensor, rng: np.random.Generator) -> Score:
        """Let every client choose, then measure."""
        count = len(self.population)
        ids = np.arange(count)
        if self.sample is not None and self.sample < count:
            ids = rng.choice(count, self.sample, replace=False)
        cohort = self.population.cohort(ids)
        table = losses(self.objective, models, cohort)
        best, chosen = torch.where(table.isfinite(), table, torch.inf).min(dim=1)
        accuracy = None
        if self.classes:
            outputs, targets = choose(self.objective, models, cohort, chosen)
            accuracy = float((predicted_class(outputs) == targets).double().mean())
        shares = torch.bincount(chosen, minlength=len(models)).double() / len(cohort)
        return Score(float(best.double().mean()), accuracy, tuple(shares.tolist()))


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
