"""Sub-FedAvg: each client trains a sub-network of its own (Vahidian et al. 2021, unstructured; 004 2.4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes
from sordina.federated.algorithms.personal import Personal, alone
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder
from sordina.privacy import check_positive

PRUNED = "pruned"


@dataclass(frozen=True)
class SubNetwork:
    """Train ``m_k * theta``, then prune: of every weight matrix the ``pace`` smallest share of what is left goes.

    Pruning ends when a ``target`` share is gone; vectors such as biases are never pruned. The paper also waits until
    the client's accuracy and the change of its mask pass two thresholds; here a client prunes whenever it takes part.
    The mask stays with the client for its own use. The vector is ``[m_k * (theta_k - theta), rate (1 - m_k)]``: what
    the client moved, and, in units of a step, what it does not have.
    """

    objective: Objective
    steps: LocalSteps
    target: float
    pace: float = 0.1

    def __post_init__(self) -> None:
        if not (0 <= self.target < 1 and 0 < self.pace <= 1):
            raise InvalidInput(
                f"pruning needs a target in [0, 1) and a pace in (0, 1], got {self.target} and {self.pace}."
            )

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """1 where a parameter is pruned."""
        return {PRUNED: self.objective.size}

    def width(self, sent: Arrays) -> int:
        """Model and mask."""
        return 2 * self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Train the sub-network and prune it further."""
        model, mask = everyone(sent["model"], cohort), 1 - state[PRUNED]
        end, _ = self.steps.run(self.objective, model, cohort, order, mask=mask)
        pruned = self._prune(end, state[PRUNED])
        vectors = torch.cat([(1 - pruned) * (end - model), self.steps.learning_rate * pruned], dim=1)
        return ClientResult(vectors, sizes(cohort)), {PRUNED: pruned}

    def _prune(self, flat: Tensor, pruned: Tensor) -> Tensor:
        """The next mask, matrix by matrix."""
        fresh = pruned.clone()
        first = 0
        for length, shape in zip(self.objective.lengths, self.objective.shapes, strict=True):
            if len(shape) > 1:
                block = slice(first, first + length)
                gone = pruned[:, block].sum(dim=1, keepdim=True)
                more = (self.pace * (length - gone)).floor()
                wanted = torch.minimum(gone + more, torch.full_like(gone, self.target * length).floor()).maximum(gone)
                magnitude = torch.where(pruned[:, block] > 0, -1.0, flat[:, block].abs())
                rank = magnitude.argsort(dim=1, stable=True).argsort(dim=1)
                fresh[:, block] = (rank < wanted).to(fresh)
            first += length
        return fresh

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """The sub-network after the local steps of a round."""
        model = everyone(sent["model"], cohort)
        return alone(self.steps.run(self.objective, model, cohort, order, mask=1 - state[PRUNED])[0])


# Sub-FedAvg at the server: average every parameter over the clients that have it (Vahidian et al. 2021; 004 2.4.6).


@dataclass(frozen=True)
class Intersection:
    """``theta_j <- theta_j + sum_k m_kj (theta_k - theta)_j / sum_k m_kj``: two means and their quotient.

    ``learning_rate`` is the unit in which clients tell what they pruned. A parameter that less than ``least`` of the
    clients have moves by less, and one that nobody has stays: a noised share near zero must not blow a step up.
    """

    learning_rate: float
    least: float = 0.05
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("learning rate", self.learning_rate)
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
        kept = 1 - pruned / self.learning_rate
        return state + moved / kept.clamp(min=self.least)

    def models(self, state: Tensor) -> Tensor:
        """The one network."""
        return state[None]
