"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020; the algorithm of 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sordina.federated.clients.work import LocalSteps, everyone, sizes
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Objective
from sordina.federated.order import Order
from sordina.federated.population import Cohort
from sordina.federated.stacked import Parts

CONTROL = "control"


@dataclass(frozen=True)
class ScaffoldClient:
    """Local steps along ``grad F_k - c_k + c``, then ``c_k+ = c_k - c + (theta - theta_k) / (L rate)``.

    The vector is ``[theta_k - theta, rate (c_k+ - c_k)]``: the public factor ``rate`` brings both halves to the scale
    of a step, so that one clipping bound can serve them together; the server divides it out.
    """

    objective: Objective
    steps: LocalSteps

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """One control variate per client."""
        return {CONTROL: self.objective.size}

    def width(self, sent: Arrays) -> int:
        """Model and control variate."""
        return 2 * self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """Train with corrected gradients and renew the control variates."""
        model, common, own = everyone(sent["model"], cohort), sent[CONTROL], state[CONTROL]
        shift = self.objective.parts(common - own)

        def correct(live: Parts) -> Parts:
            return [part[: len(live[0])] for part in shift]

        end, taken = self.steps.run(self.objective, model, cohort, order, correct)
        moved = end - model
        gained = torch.where(
            taken[:, None] > 0, -common - moved / (taken.clamp(min=1)[:, None] * self.steps.rate), torch.zeros_like(own)
        )
        vectors = torch.cat([moved, self.steps.rate * gained], dim=1)
        return Outcome(vectors, sizes(cohort)), {CONTROL: own + gained}
