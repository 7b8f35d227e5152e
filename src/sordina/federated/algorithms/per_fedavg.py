"""Per-FedAvg: train a model that is good after one step of its own at each client (Fallah et al. 2020; 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes
from sordina.federated.algorithms.personal import Personal, alone
from sordina.federated.messages import Arrays, ClientResult
from sordina.federated.objective import Batch, Objective, own
from sordina.federated.population import Cohort, RowOrder

_SECOND, _THIRD = 0x5EC0, 0x7B1D
"""Added to the seed of the order, for the batches D and D'' of the paper, which are drawn apart from D'."""
_STRETCH = 1e-2
"""How far, relative to the parameters, the Hessian is probed."""


@dataclass(frozen=True)
class MetaTraining:
    """SGD on ``F_k(theta - alpha grad F_k(theta))``, with batches D, D' and D'' of Algorithm 1 of Fallah et al.:

        theta~ <- theta - alpha grad F(theta; D)
        theta  <- theta - rate (I - alpha Hess F(theta; D'')) grad F(theta~; D')

    The Hessian is applied by a central difference of gradients (their HF variant), which is exact for quadratics;
    without ``curvature`` it is left out (FO). ``alpha = 0`` is FedAvg.
    """

    objective: Objective
    steps: LocalSteps
    alpha: float
    curvature: bool = True
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise InvalidInput(f"the inner step alpha must be >= 0, got {self.alpha}.")

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Meta-train every client from the global model."""
        model = everyone(sent["model"], cohort)
        end = own(model)
        others = (RowOrder(order.seed + salt, order.round) for salt in (_SECOND, _THIRD))
        for outer, inner, last in zip(
            self.steps.batches(cohort, order), *(self.steps.batches(cohort, other) for other in others), strict=True
        ):
            live = end[: len(outer.mask)]
            live -= self.steps.learning_rate * self._gradient(live, inner, outer, last)
        return ClientResult(end - model, sizes(cohort)), state

    def _gradient(self, theta: Tensor, inner: Batch, outer: Batch, last: Batch) -> Tensor:
        adapted = theta - self.alpha * self.objective.gradient(theta, inner)
        outside = self.objective.gradient(adapted, outer)
        if not self.curvature or not self.alpha:
            return outside
        lengths = outside.norm(dim=1, keepdim=True).clamp(min=1e-12)
        probe = _STRETCH * (1 + theta.norm(dim=1, keepdim=True)) / lengths
        ahead, behind = (self.objective.gradient(theta + sign * probe * outside, last) for sign in (1, -1))
        curved: Tensor = (ahead - behind) / (2 * probe)
        return outside - self.alpha * curved

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """``theta - alpha grad F_k(theta)`` on all of a client's rows."""
        model = everyone(sent["model"], cohort)
        return alone(model - self.alpha * self.objective.gradient(model, cohort.whole()))
