"""FedSGD: one gradient on all local rows (004 2.4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sordina.federated.clients.work import everyone, sizes
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Objective
from sordina.federated.order import Order
from sordina.federated.population import Cohort


@dataclass(frozen=True)
class LocalGradient:
    """``v_k = -grad F_k(theta)``: an update like any other, so servers add it."""

    objective: Objective
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """One full-batch gradient per client."""
        gradients = self.objective.gradient(everyone(sent["model"], cohort), cohort.whole())
        return Outcome(-gradients, sizes(cohort)), state
