"""Personal models: what a client uses for itself, pulled towards the mean of all or tied along a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordina._stacked_models import Parts
from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import ClientWork, LocalSteps, everyone, sizes, towards
from sordina.federated.algorithms.ifca import HYPOTHESES, best
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder

# What a client uses for itself, where that is not simply the server's model. It never leaves the client.

OWN, MET = "personal", "met"


@dataclass(frozen=True)
class Personal:
    """A mixture for each client: ``weights (U, M)`` of ``models (U, M, P)``; mostly M = 1."""

    weights: Tensor
    models: Tensor


@runtime_checkable
class PersonalWork(Protocol):
    """Client work that ends in models of the clients' own."""

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """The models these clients would use after being sent ``sent``."""
        ...


def alone(models: Tensor) -> Personal:
    """One model for each client, ``(U, P)``."""
    return Personal(models.new_ones(len(models), 1), models[:, None])


def started(state: Arrays, model: Tensor) -> Tensor:
    """The clients' own models; one that has none yet begins at ``model``. States start at zero, ``met`` says since."""
    return torch.where(state[MET] > 0, state[OWN], model)


def used(
    work: ClientWork, objective: Objective, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder
) -> Personal:
    """What clients would use: their own models, the hypothesis that fits them best, or the server's model."""
    if isinstance(work, PersonalWork):
        return work.personal(sent, cohort, state, order)
    if HYPOTHESES in sent:
        return alone(sent[HYPOTHESES][best(objective, sent[HYPOTHESES], cohort)])
    return alone(everyone(sent["model"], cohort))


# Personal models that are pulled towards their mean (Hanzely et al. 2020; 002).


@dataclass(frozen=True)
class NearMean:
    """Local steps from the client's own model on ``F_k(theta_k) + lambda/2 |theta_k - mean|^2``, the mean as sent.

    With the server setting the mean of what it gets, this is block-wise descent on 002's objective
    ``(1/K) sum_k F_k(theta_k) + lambda/2K sum_k |theta_k - mean|^2``, whose gradient in theta_k is
    ``(grad F_k(theta_k) + lambda (theta_k - mean)) / K``. The vector is ``theta_k - mean``; theta_k stays.
    """

    objective: Objective
    steps: LocalSteps
    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.weight * self.steps.learning_rate <= 1:
            raise InvalidInput(
                f"lambda must lie in [0, 1 / learning rate = {1 / self.steps.learning_rate:g}], or steps overshoot "
                f"the mean; got {self.weight}."
            )

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The client's own model, and whether it has one."""
        return {OWN: self.objective.size, MET: 1}

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Train each client's own model."""
        mean = everyone(sent["model"], cohort)
        end, _ = self.steps.run(
            self.objective, started(state, mean), cohort, order, towards(self.objective.parts(mean), self.weight)
        )
        return ClientResult(end - mean, sizes(cohort)), {OWN: end, MET: torch.ones_like(state[MET])}

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """The client's own model."""
        return alone(started(state, everyone(sent["model"], cohort)))


# Personal models tied along a graph of clients (Smith et al. 2017, Vanhaesebrouck et al. 2017; 002).

TABLE, GRAPH = "table", "graph"


@dataclass(frozen=True)
class GraphNeighbours:
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

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
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
        return ClientResult(end - known, sizes(cohort)), {OWN: end, MET: torch.ones_like(state[MET])}

    def _rows(self, sent: Arrays, cohort: Cohort) -> Tensor:
        numbers = cohort.numbers
        if numbers.max(initial=0) >= len(sent[TABLE]):
            raise InvalidInput(f"the graph has {len(sent[TABLE])} clients, but client {numbers.max()} takes part.")
        return torch.from_numpy(numbers)

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """The client's own model."""
        return alone(started(state, sent[TABLE][self._rows(sent, cohort)]))


# A graph of clients at the server: given, or learnt from what was released (002; Vanhaesebrouck et al. 2017).


@dataclass(frozen=True)
class GraphState:
    """Every client's model as last released, the weights between them, and who was heard of."""

    table: Tensor
    graph: Tensor
    heard: Tensor


@dataclass(frozen=True)
class GraphServer:
    """Keeps one released model for each of ``clients`` and sends all of them, with the graph.

    A graph is given by ``weights (K, K)``, or learnt: each client is tied to the ``nearest`` ones whose released models
    are closest to its own, with weights that add up to about 1. That reads released vectors only. A client that was
    never heard of has no neighbours. Everybody is sent K models: for tens of clients, not thousands.
    """

    clients: int
    nearest: int = 5
    weights: Tensor | None = None
    needs_vectors: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.nearest < max(2, self.clients):
            raise InvalidInput(f"a client has 1 to {self.clients - 1} neighbours, got {self.nearest}.")
        if self.weights is None:
            return
        if self.weights.shape != (self.clients, self.clients) or not torch.equal(self.weights, self.weights.T):
            raise InvalidInput(f"the graph must be a symmetric matrix over {self.clients} clients.")
        if bool((self.weights < 0).any()) or bool(self.weights.diagonal().any()):
            raise InvalidInput("the graph's weights must be >= 0, and 0 from a client to itself.")

    def init(self, models: Tensor) -> GraphState:
        """Everybody starts at the same model."""
        if len(models) != 1:
            raise InvalidInput(f"a graph of clients starts from one model, got {len(models)}.")
        empty = models.new_zeros(self.clients, self.clients)
        graph = empty if self.weights is None else self.weights.to(models)
        return GraphState(models.repeat(self.clients, 1), graph, torch.zeros(self.clients, dtype=torch.bool))

    def configure(self, state: GraphState) -> Arrays:
        """All models and the graph."""
        return {TABLE: state.table, GRAPH: state.graph}

    def update(self, state: GraphState, release: Release) -> GraphState:
        """Put each vector where it belongs."""
        if release.vectors is None or release.senders is None:
            raise InvalidInput("a graph of clients needs each client's vector and number; this run releases neither.")
        table, heard = state.table.clone(), state.heard.clone()
        rows = torch.tensor(release.senders)
        table[rows] += release.vectors
        heard[rows] = True
        return GraphState(table, state.graph if self.weights is not None else self._learn(table, heard), heard)

    def _learn(self, table: Tensor, heard: Tensor) -> Tensor:
        """``W_kl = (1[l near k] + 1[k near l]) / 2 nearest`` among those heard of."""
        known = torch.nonzero(heard).flatten()
        graph = torch.zeros(self.clients, self.clients, dtype=table.dtype)
        if len(known) > 1:
            distances = torch.cdist(table[known].double(), table[known].double())
            distances.fill_diagonal_(torch.inf)
            near = distances.topk(min(self.nearest, len(known) - 1), dim=1, largest=False).indices
            links = torch.zeros(len(known), len(known), dtype=table.dtype).scatter_(1, near, 1.0)
            graph[known[:, None], known] = (links + links.T) / (2 * self.nearest)
        return graph

    def models(self, state: GraphState) -> Tensor:
        """The mean of the clients' models, for somebody who is not among them."""
        return state.table.mean(dim=0, keepdim=True)
