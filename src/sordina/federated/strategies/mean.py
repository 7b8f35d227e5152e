"""FedSGD, FedAvg and FedProx at the server: add the mean update (004 2.3, 2.4.2; 002)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.messages import Arrays, Release
from sordina.types import check_positive


@dataclass(frozen=True)
class AddMean:
    """``theta <- theta + rate * mean_k v_k``, with ``momentum`` on the means if wanted.

    The momentum is the server's own: it reads released means only, so it costs no privacy.
    """

    rate: float = 1.0
    momentum: float = 0.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("server rate", self.rate)
        if not 0 <= self.momentum < 1:
            raise InvalidInput(f"server momentum must lie in [0, 1), got {self.momentum}.")

    def init(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """The model and a resting velocity."""
        if len(models) != 1:
            raise InvalidInput(
                f"this strategy trains one model, got {len(models)}; use ifca or metric-pfl for several."
            )
        return models[0].clone(), models[0] * 0

    def configure(self, state: tuple[Tensor, Tensor]) -> Arrays:
        """The model."""
        return {"model": state[0]}

    def update(self, state: tuple[Tensor, Tensor], release: Release) -> tuple[Tensor, Tensor]:
        """Step along the mean."""
        model, velocity = state
        velocity = self.momentum * velocity + release.mean
        return model + self.rate * velocity, velocity

    def models(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """The one model."""
        return state[0][None]
