"""FedDyn: a regulariser of each client's own aligns its optimum with the global one (Acar et al. 2021; 004 2.4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes, towards
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder
from sordina.privacy import check_positive

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

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Train on the regularised loss and renew the gradients."""
        model, dual = everyone(sent["model"], cohort), state[DUAL]
        correct = towards(self.objective.parts(model), self.alpha, self.objective.parts(dual))
        end, _ = self.steps.run(self.objective, model, cohort, order, correct)
        moved = end - model
        return ClientResult(moved, sizes(cohort)), {DUAL: dual - self.alpha * moved}


# FedDyn at the server (Acar et al. 2021, Algorithm 1; 004 2.4.5).


@dataclass(frozen=True)
class FedDynState:
    """The model that is sent, the mean of the clients' last models, and ``drift = -h / alpha``."""

    model: Tensor
    mean: Tensor
    drift: Tensor


@dataclass(frozen=True)
class FedDynServer:
    """``h <- h - alpha (m/K) mean (theta_k - theta)``, then ``theta <- mean theta_k - h / alpha``.

    With ``drift = -h / alpha`` the weight alpha drops out. ``share`` is m / K, the public share of clients that take
    part in a round. What is deployed is the mean of the clients' models, for which Theorem 1 of the paper holds.
    """

    share: float
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"the share of clients per round must lie in (0, 1], got {self.share}.")

    def init(self, models: Tensor) -> FedDynState:
        """The model, and no drift."""
        if len(models) != 1:
            raise InvalidInput(f"FedDyn trains one model, got {len(models)}; use ifca or metric-pfl for several.")
        return FedDynState(models[0].clone(), models[0].clone(), torch.zeros_like(models[0]))

    def configure(self, state: FedDynState) -> Arrays:
        """The model."""
        return {"model": state.model}

    def update(self, state: FedDynState, release: Release) -> FedDynState:
        """Follow the mean, and go beyond it by the drift."""
        drift = state.drift + self.share * release.mean
        mean = state.model + release.mean
        return FedDynState(mean + drift, mean, drift)

    def models(self, state: FedDynState) -> Tensor:
        """The mean of the clients' last models."""
        return state.mean[None]
