"""Questions to an autograd graph: which parameters escape the captured edges, and a term that asks it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge


def escaping(losses: Tensor, taps: Iterable[tuple[GradientEdge, Tensor]], parameters: Iterable[Tensor]) -> set[int]:
    """The ids of the parameters that the losses depend on outside of the tapped layers.

    A tap is the edge of a layer's output with the layer's input: the walk jumps from one to the other.
    """
    jumps = {(edge.node, edge.output_nr): source for edge, source in taps}
    wanted = {id(parameter) for parameter in parameters}
    found: set[int] = set()
    start: Any = losses.grad_fn
    seen, stack = set(), [(start, 0)]
    while stack:
        node, output = stack.pop()
        if (node, output) in jumps:
            source = jumps[node, output]
            if source.requires_grad:
                edge = get_gradient_edge(source)
                stack.append((edge.node, edge.output_nr))
            continue
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in wanted:
            found.add(id(leaf))
        stack.extend(edge for edge in node.next_functions if edge[0] is not None)
    return found


@dataclass(frozen=True)
class Replay:
    """The exact last resort: one backward pass per unit for the norms, one per query for the sums."""

    losses: Tensor
    """Per unit, shape (U,), with their graph."""
    parameter: Tensor

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.losses.shape[0]

    def _backward(self, weights: Tensor) -> Tensor:
        (answer,) = torch.autograd.grad(self.losses, self.parameter, weights.to(self.losses), retain_graph=True)
        return answer.flatten()

    def squared_norms(self) -> Tensor:
        """One backward pass per unit."""
        return torch.linalg.vector_norm(self.rows(slice(0, self.units)), dim=1).square_()

    def project(self, direction: Tensor) -> Tensor:
        """As the norms."""
        return self.rows(slice(0, self.units)) @ direction.reshape(-1)

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """One backward pass per query."""
        for weight, target in zip(weights, out, strict=True):
            target.copy_(self._backward(weight))

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        units = torch.eye(self.units, device=self.losses.device)[where]
        return torch.stack([self._backward(unit) for unit in units])
