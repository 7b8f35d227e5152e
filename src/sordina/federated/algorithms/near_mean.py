"""Personal models that are pulled towards their mean (Hanzely et al. 2020; 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes, towards
from sordina.federated.algorithms.personal import MET, OWN, Personal, alone, started
from sordina.federated.messages import Arrays, ClientResult
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder


@dataclass(frozen=True)
class NearMean:
    """Local steps from the client's own model on ``F_k(theta_k) + lambda/2 |theta_k - mean|^2``, the mean as sent.

    With the server setting the mean of what it gets, this is block-wise descent on 002's objective
    ``(1/K) sum_k F_k(theta_k) + lambda/2K sum_k |theta_k - mean|^2``, whose gradient in theta_k is
    ``(grad F_k(theta_k) + lambda (theta_k - mean)) / K``. The vector is ``theta_k - mean``; theta_k stays.
    """

    objective: Objective
    steps: LocalSteps
    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.weight * self.steps.learning_rate <= 1:
            raise InvalidInput(
                f"lambda must lie in [0, 1 / learning rate = {1 / self.steps.learning_rate:g}], or steps overshoot "
                f"the mean; got {self.weight}."
            )

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The client's own model, and whether it has one."""
        return {OWN: self.objective.size, MET: 1}

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Train each client's own model."""
        mean = everyone(sent["model"], cohort)
        end, _ = self.steps.run(
            self.objective, started(state, mean), cohort, order, towards(self.objective.parts(mean), self.weight)
        )
        return ClientResult(end - mean, sizes(cohort)), {OWN: end, MET: torch.ones_like(state[MET])}

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """The client's own model."""
        return alone(started(state, everyone(sent["model"], cohort)))
