"""FedDyn: a regulariser of each client's own aligns its optimum with the global one (Acar et al. 2021; 004 2.4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sordina.federated.clients.work import LocalSteps, everyone, sizes, towards
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Objective
from sordina.federated.order import Order
from sordina.federated.population import Cohort
from sordina.types import check_positive

DUAL = "dual"


@dataclass(frozen=True)
class DynamicRegulariser:
    """Local steps on ``F_k(theta) - <g_k, theta> + alpha/2 |theta - theta_t|^2``.

    Then ``g_k <- g_k - alpha (theta_k - theta_t)``, which is ``grad F_k(theta_k)`` where the local problem was solved
    (Algorithm 1 of Acar et al.). ``g_k`` stays with the client; the vector is ``theta_k - theta_t``.
    """

    objective: Objective
    steps: LocalSteps
    alpha: float

    def __post_init__(self) -> None:
        check_positive("FedDyn's alpha", self.alpha)

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """One gradient per client."""
        return {DUAL: self.objective.size}

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """Train on the regularised loss and renew the gradients."""
        model, dual = everyone(sent["model"], cohort), state[DUAL]
        correct = towards(self.objective.parts(model), self.alpha, self.objective.parts(dual))
        end, _ = self.steps.run(self.objective, model, cohort, order, correct)
        moved = end - model
        return Outcome(moved, sizes(cohort)), {DUAL: dual - self.alpha * moved}
