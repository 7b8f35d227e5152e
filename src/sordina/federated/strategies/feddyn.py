"""FedDyn at the server (Acar et al. 2021, Algorithm 1; 004 2.4.5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.messages import Arrays, Release


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
