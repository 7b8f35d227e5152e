"""A gradient in which every record's share is clipped: record-level privacy at the client (003 section VI-D)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from sordina.federated.clients.work import sizes
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Batch, Objective
from sordina.federated.order import Order
from sordina.federated.population import Cohort
from sordina.types import check_positive


@dataclass(frozen=True)
class ClippedGradient:
    """``v_k = -(1/m) sum_i clip(grad f(theta; x_i), C)`` over the client's records, with a *public* divisor m.

    One record more or less changes v_k by at most C / m. Dividing by the client's own count would tell it.
    """

    objective: Objective
    clip: float
    divisor: float
    rows_at_once: int = 4096
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive("clipping threshold per record", self.clip)
        check_positive("public divisor", self.divisor)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def unmoved(self, sent: Arrays) -> Outcome:
        """No records."""
        zero = torch.zeros(1, self.objective.size, dtype=sent["model"].dtype)
        return Outcome(zero, torch.zeros(1), record_bound=self.clip / self.divisor)

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """Every record as a client of one row; then clip, and add up by owner."""
        x, y, owner = cohort.rows()
        model = sent["model"]
        total = torch.zeros(len(cohort), self.objective.size, dtype=model.dtype)
        for first in range(0, len(x), self.rows_at_once):
            rows = slice(first, first + self.rows_at_once)
            batch = Batch(x[rows, None], y[rows, None], torch.ones(len(x[rows]), 1, dtype=model.dtype))
            gradients = self.objective.gradient(model.expand(len(batch.x), -1), batch)
            norms = gradients.norm(dim=1, keepdim=True)
            clipped = torch.where(norms.isfinite(), gradients * (self.clip / norms).clamp(max=1.0), 0.0)
            total.index_add_(0, owner[rows], clipped)
        return Outcome(-total / self.divisor, sizes(cohort), record_bound=self.clip / self.divisor), state
