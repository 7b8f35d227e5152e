"""FedAvg and FedProx: some local steps, sent as the difference to the global model (002; 004 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sordina.errors import InvalidInput
from sordina.federated.clients.work import LocalSteps, everyone, sizes, towards
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Objective
from sordina.federated.order import Order
from sordina.federated.population import Cohort


@dataclass(frozen=True)
class LocalTraining:
    """``v_k = theta_k - theta`` after local SGD on ``F_k + mu/2 |theta_k - theta|^2``; FedAvg is ``mu = 0``."""

    objective: Objective
    steps: LocalSteps
    mu: float = 0.0
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise InvalidInput(f"the proximal weight mu must be >= 0, got {self.mu}.")

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """Train every client from the global model."""
        model = everyone(sent["model"], cohort)
        correct = towards(self.objective.parts(model), self.mu) if self.mu else None
        end, _ = self.steps.run(self.objective, model, cohort, order, correct)
        return Outcome(end.sub_(model), sizes(cohort)), state
