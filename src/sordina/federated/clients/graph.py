"""Personal models tied along a graph of clients (Smith et al. 2017, Vanhaesebrouck et al. 2017; 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.clients.personal import MET, OWN, Personal, alone, started
from sordina.federated.clients.work import LocalSteps, sizes
from sordina.federated.messages import Arrays, Outcome
from sordina.federated.objective import Objective
from sordina.federated.order import Order
from sordina.federated.population import Cohort
from sordina.federated.stacked import Parts

TABLE, GRAPH = "table", "graph"


@dataclass(frozen=True)
class Neighbours:
    """Local steps from the client's own model on ``F_k(theta_k) + lambda/2 sum_l W_kl |theta_k - theta_l|^2``.

    002's objective with its W written as ``lambda W / 2K``. The ``theta_l`` are the rows of the table that was sent:
    the neighbours' models as last released. The vector is ``theta_k - table_k``, a difference to what everybody knows.
    A client must know its number in the table.
    """

    objective: Objective
    steps: LocalSteps
    weight: float

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise InvalidInput(f"lambda must be >= 0, got {self.weight}.")

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The client's own model, and whether it has one."""
        return {OWN: self.objective.size, MET: 1}

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> tuple[Outcome, Arrays]:
        """Train each client's own model among its neighbours'."""
        rows = self._rows(sent, cohort)
        known, links = sent[TABLE][rows], sent[GRAPH][rows]
        pulls = self.objective.parts(links @ sent[TABLE])
        degrees = links.sum(dim=1)

        def correct(live: Parts) -> Parts:
            own = [part * degrees[: len(part)].view(-1, *[1] * (part.dim() - 1)) for part in live]
            apart = torch._foreach_sub(own, [part[: len(live[0])] for part in pulls])
            return list(torch._foreach_mul(apart, self.weight))

        end, _ = self.steps.run(self.objective, started(state, known), cohort, order, correct)
        return Outcome(end - known, sizes(cohort)), {OWN: end, MET: torch.ones_like(state[MET])}

    def _rows(self, sent: Arrays, cohort: Cohort) -> Tensor:
        numbers = cohort.numbers
        if numbers.max(initial=0) >= len(sent[TABLE]):
            raise InvalidInput(f"the graph has {len(sent[TABLE])} clients, but client {numbers.max()} takes part.")
        return torch.from_numpy(numbers)

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: Order) -> Personal:
        """The client's own model."""
        return alone(started(state, sent[TABLE][self._rows(sent, cohort)]))
