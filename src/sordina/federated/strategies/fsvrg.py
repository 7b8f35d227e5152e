"""FSVRG at the server: two exchanges make one step (Konecny et al. 2016; 004 2.4.4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.clients.fsvrg import GRADIENT, PHASE
from sordina.federated.messages import Arrays, Release
from sordina.types import check_positive


@dataclass(frozen=True)
class FsvrgState:
    """The model, the last full gradient, and which exchange comes next: 0 asks for gradients, 1 for steps."""

    model: Tensor
    gradient: Tensor
    phase: int = 0


@dataclass(frozen=True)
class FsvrgServer:
    """Even rounds: ``grad F = mean_k grad F_k``. Odd rounds: ``theta <- theta + rate * mean_k (theta_k - theta)``.

    Each exchange is a round of its own and is charged as one. ``step`` is the clients' h, in units of which they
    send their gradients.
    """

    step: float
    rate: float = 1.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("FSVRG's step", self.step)
        check_positive("server rate", self.rate)

    def init(self, models: Tensor) -> FsvrgState:
        """The model, before its first gradient."""
        if len(models) != 1:
            raise InvalidInput(f"FSVRG trains one model, got {len(models)}; use ifca or metric-pfl for several.")
        return FsvrgState(models[0].clone(), torch.zeros_like(models[0]))

    def configure(self, state: FsvrgState) -> Arrays:
        """Model, gradient and what is wanted."""
        return {"model": state.model, GRADIENT: state.gradient, PHASE: torch.tensor(state.phase)}

    def update(self, state: FsvrgState, release: Release) -> FsvrgState:
        """Keep the gradient, or step along the mean."""
        if not state.phase:
            return FsvrgState(state.model, -release.mean / self.step, 1)
        return FsvrgState(state.model + self.rate * release.mean, state.gradient)

    def models(self, state: FsvrgState) -> Tensor:
        """The one model."""
        return state.model[None]
