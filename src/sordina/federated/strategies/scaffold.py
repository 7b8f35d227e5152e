"""SCAFFOLD at the server (Karimireddy et al. 2020; the algorithm of 002)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.clients.scaffold import CONTROL
from sordina.federated.messages import Arrays, Release
from sordina.types import check_positive


@dataclass(frozen=True)
class ScaffoldServer:
    """``theta <- theta + rate * mean dtheta_k``, ``c <- c + (m / K) * mean dc_k``.

    ``share`` is m / K, the public share of clients that take part in a round; ``local_rate`` undoes the scale in
    which clients send the second half of their vector.
    """

    share: float
    local_rate: float
    rate: float = 1.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"the share of clients per round must lie in (0, 1], got {self.share}.")
        check_positive("server rate", self.rate)
        check_positive("local rate", self.local_rate)

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
        return state[0] + self.rate * moved, state[1] + self.share / self.local_rate * gained

    def models(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """The one model."""
        return state[0][None]
