"""FedEM: every client is a mixture of a few common distributions, in shares of its own (Marfoq et al. 2021; 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import Unsupported
from sordina.federated.algorithms.algorithm import LocalSteps, sizes
from sordina.federated.algorithms.ifca import HYPOTHESES
from sordina.federated.algorithms.personal import Personal
from sordina.federated.messages import Arrays, ClientResult
from sordina.federated.objective import Batch, Objective
from sordina.federated.population import Cohort, RowOrder

SHARES = "shares"


@dataclass(frozen=True)
class Mixture:
    """One step of expectation maximisation, Algorithm 1 of Marfoq et al.; the losses are minus log-likelihoods.

        E:  q_i(m) proportional to pi_km exp(-f(theta_m; x_i))
        M:  pi_km <- mean_i q_i(m)
            theta_km <- local SGD from theta_m on (1/n_k) sum_i q_i(m) f(.; x_i)

    The shares ``pi_k`` stay with the client. The vector has one block ``theta_km - theta_m`` per component, so the
    server averages blocks, as for IFCA. One component is FedAvg.
    """

    objective: Objective
    steps: LocalSteps
    components: int

    def __post_init__(self) -> None:
        if self.objective.root:
            raise Unsupported("FedEM weighs rows by their likelihood; a root of a mean has none. Use the loss itself.")

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The client's shares."""
        return {SHARES: self.components}

    def width(self, sent: Arrays) -> int:
        """One block per component."""
        return sent[HYPOTHESES].numel()

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Weigh the rows, renew the shares, train every component."""
        hypotheses, shares = sent[HYPOTHESES], _shares(state[SHARES])
        blocks = hypotheses.expand(len(cohort), -1, -1).clone()
        for batch in self.steps.batches(cohort, order):
            count = len(batch.mask)
            weights = self._responsibilities(hypotheses, shares[:count, None], batch.x, batch.y)
            weights = weights * batch.mask[..., None]
            for m in range(len(hypotheses)):
                blocks[:count, m] -= self.steps.learning_rate * self._gradient(
                    blocks[:count, m], batch, weights[..., m]
                )
        moved = (blocks - hypotheses).flatten(1)
        return ClientResult(moved, sizes(cohort)), {SHARES: self._renewed(hypotheses, shares, cohort)}

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """All components, in shares that fit the client's rows: what new clients do too (section 3.2 of the paper)."""
        shares = _shares(state[SHARES])
        for _ in range(_ROUNDS):
            shares = self._renewed(sent[HYPOTHESES], shares, cohort)
        return Personal(shares, sent[HYPOTHESES].expand(len(cohort), -1, -1))

    def _responsibilities(self, hypotheses: Tensor, shares: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``q`` of rows ``x (U, B, ...)``, shape (U, B, components)."""
        rows, targets = x.flatten(0, 1), y.flatten(0, 1)
        losses = [self.objective.row_losses(theta, rows, targets).view(x.shape[:2]) for theta in hypotheses]
        return torch.softmax(shares.log() - torch.stack(losses, dim=-1), dim=-1)

    def _gradient(self, theta: Tensor, batch: Batch, weights: Tensor) -> Tensor:
        """``(1/B) sum_i q_i grad f(theta; x_i)``; the objective divides by ``max(1, sum_i q_i)`` instead."""
        gradient = self.objective.gradient(theta, Batch(batch.x, batch.y, weights))
        factor = weights.sum(dim=1).clamp(min=1) / batch.mask.sum(dim=1).clamp(min=1)
        return gradient * factor[:, None]

    def _renewed(self, hypotheses: Tensor, shares: Tensor, cohort: Cohort) -> Tensor:
        """``mean_i q_i`` over all rows of each client; one without rows keeps its shares."""
        x, y, owner = cohort.rows()
        if not len(x):
            return shares
        weights = self._responsibilities(hypotheses, shares[owner, None], x[:, None], y[:, None])[:, 0]
        totals = torch.zeros_like(shares).index_add_(0, owner, weights.to(shares))
        counts = torch.from_numpy(cohort.sizes).to(shares)[:, None]
        return torch.where(counts > 0, totals / counts.clamp(min=1), shares)


_ROUNDS = 5
"""Steps of expectation maximisation on the shares alone, before they are used."""


def _shares(state: Tensor) -> Tensor:
    """Shares as kept; a client that has none yet (states start at zero) begins with equal ones."""
    known = state.sum(dim=1, keepdim=True) > 0
    return torch.where(known, state, 1 / state.shape[1])
