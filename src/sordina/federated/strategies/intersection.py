"""Sub-FedAvg at the server: average every parameter over the clients that have it (Vahidian et al. 2021; 004 2.4.6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.messages import Arrays, Release
from sordina.types import check_positive


@dataclass(frozen=True)
class Intersection:
    """``theta_j <- theta_j + sum_k m_kj (theta_k - theta)_j / sum_k m_kj``: two means and their quotient.

    ``local_rate`` is the unit in which clients tell what they pruned. A parameter that less than ``least`` of the
    clients have moves by less, and one that nobody has stays: a noised share near zero must not blow a step up.
    """

    local_rate: float
    least: float = 0.05
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("local rate", self.local_rate)
        check_positive("least share", self.least)

    def init(self, models: Tensor) -> Tensor:
        """The whole network."""
        if len(models) != 1:
            raise InvalidInput(f"Sub-FedAvg trains one network, got {len(models)}; use ifca or metric-pfl for several.")
        return models[0].clone()

    def configure(self, state: Tensor) -> Arrays:
        """The whole network; clients know their part."""
        return {"model": state}

    def update(self, state: Tensor, release: Release) -> Tensor:
        """Step along the quotient."""
        moved, pruned = torch.split(release.mean, len(state))
        kept = 1 - pruned / self.local_rate
        return state + moved / kept.clamp(min=self.least)

    def models(self, state: Tensor) -> Tensor:
        """The one network."""
        return state[None]
