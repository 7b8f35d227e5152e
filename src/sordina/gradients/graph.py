"""Questions to an autograd graph: what a backward pass runs through, and what the losses depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge


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
