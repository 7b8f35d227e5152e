"""FSVRG: the full gradient first, then local steps whose variance it reduces (Konecny et al. 2016; 004 2.4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from sordina.federated.clients.work import LocalSteps, everyone, sizes
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Objective, own
from sordina.federated.order import Order
from sordina.federated.population import Cohort

GRADIENT, PHASE = "gradient", "phase"


@dataclass(frozen=True)
class VarianceReduced:
    """Phase 0: ``-h grad F_k(theta)``. Phase 1: ``theta_k - theta`` after one pass of

        theta_k <- theta_k - h_k (grad f_i(theta_k) - grad f_i(theta) + grad F(theta)),   h_k = h / (steps of client k)

    (004 2.4.4: ``h_k = h / n_k`` for n_k steps on one row each, here a batch size of 1; clients then make about equal
    progress, however many rows they have). The factor h in phase 0 is public and brings both phases to the scale
    of one step, so that one clipping bound can serve them.
    """

    objective: Objective
    steps: LocalSteps
    """``rate`` is h."""
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """A gradient or a pass, as the server asks."""
        model = everyone(sent["model"], cohort)
        if not int(sent[PHASE]):
            gradient = self.objective.gradient(model, cohort.whole())
            return Outcome(-self.steps.rate * gradient, sizes(cohort)), state
        full, rate = sent[GRADIENT], self.steps.rate / self._taken(cohort).to(model)[:, None]
        end = own(model)
        for batch in self.steps.batches(cohort, order):
            live = end[: len(batch.mask)]
            noisy = self.objective.gradient(live, batch) - self.objective.gradient(model[: len(live)], batch)
            live -= rate[: len(live)] * (noisy + full)
        return Outcome(end - model, sizes(cohort)), state

    def _taken(self, cohort: Cohort) -> torch.Tensor:
        """The number of steps of each client, at least 1."""
        rows = torch.from_numpy(cohort.sizes)
        if self.steps.steps is not None:
            return torch.full_like(rows, self.steps.steps)
        return (-(-rows // self.steps.batch) * self.steps.epochs).clamp(min=1)
