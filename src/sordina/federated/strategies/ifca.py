"""IFCA at the server: gradient averaging for k hypotheses (Ghosh et al. 2020, option I)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordina.federated.clients.hypotheses import HYPOTHESES
from sordina.federated.messages import Arrays, Release
from sordina.types import check_positive


@dataclass(frozen=True)
class IfcaServer:
    """``theta_j <- theta_j + (rate / m) sum over the clients that chose j``, with m *all* clients of the round.

    Dividing by m, as the paper does, and not by the number that chose j, keeps that number out of the release.
    """

    rate: float = 1.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("server rate", self.rate)

    def init(self, models: Tensor) -> Tensor:
        """The hypotheses."""
        return models.clone()

    def configure(self, state: Tensor) -> Arrays:
        """All hypotheses."""
        return {HYPOTHESES: state}

    def update(self, state: Tensor, release: Release) -> Tensor:
        """Step every hypothesis along its block."""
        return state + self.rate * release.mean.view_as(state)

    def models(self, state: Tensor) -> Tensor:
        """The hypotheses."""
        return state
