"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020; the algorithm of 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina._stacked_models import Parts
from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder
from sordina.privacy import check_positive

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

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Train with corrected gradients and renew the control variates."""
        model, common, own = everyone(sent["model"], cohort), sent[CONTROL], state[CONTROL]
        shift = self.objective.parts(common - own)

        def correct(live: Parts) -> Parts:
            return [part[: len(live[0])] for part in shift]

        end, taken = self.steps.run(self.objective, model, cohort, order, correct)
        moved = end - model
        gained = torch.where(
            taken[:, None] > 0,
            -common - moved / (taken.clamp(min=1)[:, None] * self.steps.learning_rate),
            torch.zeros_like(own),
        )
        vectors = torch.cat([moved, self.steps.learning_rate * gained], dim=1)
        return ClientResult(vectors, sizes(cohort)), {CONTROL: own + gained}


# SCAFFOLD at the server (Karimireddy et al. 2020; the algorithm of 002).


@dataclass(frozen=True)
class ScaffoldServer:
    """``theta <- theta + rate * mean dtheta_k``, ``c <- c + (m / K) * mean dc_k``.

    ``share`` is m / K, the public share of clients that take part in a round; ``learning_rate`` undoes the scale in
    which clients send the second half of their vector.
    """

    share: float
    learning_rate: float
    server_learning_rate: float = 1.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"the share of clients per round must lie in (0, 1], got {self.share}.")
        check_positive("server learning rate", self.server_learning_rate)
        check_positive("learning rate", self.learning_rate)

    def init(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """The model, and a control variate of zero."""
        if len(models) != 1:
            raise InvalidInput(f"SCAFFOLD trains one model, got {len(models)}; use ifca or metric-pfl for several.")
        return models[0].clone(), torch.zeros_like(models[0])

    def configure(self, state: tuple[Tensor, Tensor]) -> Arrays:
        """Model and control variate."""
        return {"model": state[0], CONTROL: state[1]}

    def update(self, state: tuple[Tensor, Tensor], release: Release) -> tuple[Tensor, Tensor]:
        """Step both."""
        moved, gained = torch.split(release.mean, len(state[0]))
        return state[0] + self.server_learning_rate * moved, state[1] + self.share / self.learning_rate * gained

    def models(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """The one model."""
        return state[0][None]
