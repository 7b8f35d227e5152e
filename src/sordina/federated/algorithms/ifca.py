"""IFCA: clients are sent several hypotheses and train the one that fits them best (Ghosh et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordina.federated.algorithms.algorithm import LocalSteps, sizes
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder
from sordina.privacy import check_positive

# Clients that are sent several hypotheses and train the one that fits them best (IFCA; Algorithm 1 of 000 and 001).

HYPOTHESES = "hypotheses"


def client_losses(objective: Objective, hypotheses: Tensor, cohort: Cohort) -> Tensor:
    """``F_c(theta_j)`` for every client c and hypothesis j, shape (clients, hypotheses)."""
    x, y, owner = cohort.rows()
    counts = torch.from_numpy(cohort.sizes).to(hypotheses.dtype)
    columns = []
    for hypothesis in hypotheses:
        rows = objective.row_losses(hypothesis, x, y).to(hypotheses.dtype)
        totals = torch.zeros(len(cohort), dtype=hypotheses.dtype).index_add_(0, owner, rows)
        columns.append(objective.reduce(totals, counts))
    return torch.stack(columns, dim=1)


def best(objective: Objective, hypotheses: Tensor, cohort: Cohort) -> Tensor:
    """``argmin_j F_c(theta_j)`` (line 5 of Algorithm 1); a loss that is not finite never wins."""
    value = client_losses(objective, hypotheses, cohort)
    return torch.where(value.isfinite(), value, torch.inf).argmin(dim=1)


@dataclass(frozen=True)
class BestModel:
    """Metric PFL's client: the vector is the whole trained model, which tells neither the choice nor the sample count.

    Lines 5 and 6 of Algorithm 1; line 7 (SanitizeUpdate) is the placement's, which measures the update from the anchor.
    """

    objective: Objective
    steps: LocalSteps
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def width(self, sent: Arrays) -> int:
        """One model."""
        return self.objective.size

    def unmoved(self, sent: Arrays) -> ClientResult:
        """The first hypothesis, untrained."""
        first = sent[HYPOTHESES][:1]
        return ClientResult(first, torch.zeros(1), anchors=first)

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Pick, train, and return the whole parameter vector."""
        start = sent[HYPOTHESES][best(self.objective, sent[HYPOTHESES], cohort)]
        end, _ = self.steps.run(self.objective, start, cohort, order)
        return ClientResult(end, sizes(cohort), anchors=start), state


@dataclass(frozen=True)
class BestUpdate:
    """IFCA's client: ``k`` blocks, the update of the chosen hypothesis in its own, zeros in the others (Ghosh 2020).

    The blocks make the choice part of one vector, so that a sum over clients has a sensitivity like any other.
    """

    objective: Objective
    steps: LocalSteps
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def width(self, sent: Arrays) -> int:
        """One block per hypothesis."""
        return sent[HYPOTHESES].numel()

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Pick, train, and return the update in its block."""
        hypotheses = sent[HYPOTHESES]
        chosen = best(self.objective, hypotheses, cohort)
        start = hypotheses[chosen]
        end, _ = self.steps.run(self.objective, start, cohort, order)
        blocks = torch.zeros(len(cohort), *hypotheses.shape, dtype=end.dtype)
        blocks[torch.arange(len(cohort)), chosen] = end - start
        return ClientResult(blocks.flatten(1), sizes(cohort)), state


# IFCA at the server: gradient averaging for k hypotheses (Ghosh et al. 2020, option I).


@dataclass(frozen=True)
class IfcaServer:
    """``theta_j <- theta_j + (rate / m) sum over the clients that chose j``, with m *all* clients of the round.

    Dividing by m, as the paper does, and not by the number that chose j, keeps that number out of the release.
    """

    learning_rate: float = 1.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("server learning rate", self.learning_rate)

    def init(self, models: Tensor) -> Tensor:
        """The hypotheses."""
        return models.clone()

    def configure(self, state: Tensor) -> Arrays:
        """All hypotheses."""
        return {HYPOTHESES: state}

    def update(self, state: Tensor, release: Release) -> Tensor:
        """Step every hypothesis along its block."""
        return state + self.learning_rate * release.mean.view_as(state)

    def models(self, state: Tensor) -> Tensor:
        """The hypotheses."""
        return state
