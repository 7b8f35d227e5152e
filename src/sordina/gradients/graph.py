"""Questions to an autograd graph: which parameters escape the taps, and a term that asks it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordina.gradients.norms import Estimate, squared_lengths
from sordina.gradients.terms import contract_rows
from sordina.gradients.weights import Weights


def escaping(
    losses: Tensor, taps: Iterable[tuple[GradientEdge, tuple[Tensor, ...]]], parameters: Iterable[Tensor]
) -> set[int]:
    """The ids of the parameters that the losses depend on outside of the tapped operations.

    A tap is the edge of an operation's output with its inputs: the walk jumps from the one to the others.
    """
    jumps = {(edge.node, edge.output_nr): sources for edge, sources in taps}
    wanted = {id(parameter) for parameter in parameters}
    found: set[int] = set()
    seen: set[Any] = set()
    stack: list[tuple[Any, int]] = [(losses.grad_fn, 0)]
    while stack:
        place = stack.pop()
        if place in jumps:
            edges = [get_gradient_edge(source) for source in jumps[place] if source.requires_grad]
            stack.extend((edge.node, edge.output_nr) for edge in edges if (edge.node, edge.output_nr) != place)
            continue
        node = place[0]
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in wanted:
            found.add(id(leaf))
        stack.extend(edge for edge in node.next_functions if edge[0] is not None)
    return found


def crossed(losses: Tensor, edges: Sequence[GradientEdge | None]) -> set[int]:
    """The places of the edges that a backward pass towards the others runs through: some edge lies below them."""
    marks = {(edge.node, edge.output_nr) for edge in edges if edge is not None}
    nodes: set[Any] = set()
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack.extend(following for following, _ in node.next_functions)
    leads: set[Any] = set()
    for node in sorted(nodes, key=lambda node: node._sequence_nr()):
        if any(edge in marks or edge[0] in leads for edge in node.next_functions):
            leads.add(node)
    return {place for place, edge in enumerate(edges) if edge is not None and edge.node in leads}


def reachable(losses: Tensor, edge: GradientEdge) -> bool:
    """Whether the losses depend on what lies at ``edge``."""
    seen: set[Any] = set()
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is edge.node:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(following for following, _ in node.next_functions)
    return False


@dataclass(frozen=True)
class Replay:
    """The exact last resort: one backward pass per unit for the norms, one per query for the sums."""

    losses: Tensor
    """Per unit, shape (U,), with their graph."""
    parameter: Tensor

    which: Tensor | None = None
    """The units that are meant; None stands for all."""

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.losses.shape[0] if self.which is None else len(self.which)

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return torch.float64 if self.parameter.dtype == torch.float64 else torch.float32

    def _backward(self, weights: Tensor) -> Tensor:
        (answer,) = torch.autograd.grad(self.losses, self.parameter, weights.to(self.losses), retain_graph=True)
        return answer.flatten().to(weights.dtype)

    def estimate(self) -> Estimate:
        """One backward pass per unit."""
        rows = (self._backward(unit) for unit in self._units(slice(0, self.units)))
        return Estimate(torch.cat([squared_lengths(row[None]) for row in rows]))

    def project(self, direction: Tensor) -> Tensor:
        """As the norms."""
        flat = direction.reshape(-1)
        return torch.stack([self._backward(unit) @ flat for unit in self._units(slice(0, self.units))])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """The sum of the vectors that were measured."""
        contract_rows(self, weights, out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return torch.stack([self._backward(unit) for unit in self._units(where)])

    def take(self, units: Tensor) -> Replay:
        """Some of the units."""
        return Replay(self.losses, self.parameter, units if self.which is None else self.which[units])

    def _units(self, where: slice) -> Tensor:
        each = torch.eye(len(self.losses), dtype=self.kind, device=self.losses.device)
        return each[where] if self.which is None else each[self.which[where]]
