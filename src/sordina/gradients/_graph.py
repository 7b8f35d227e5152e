"""Questions to an autograd graph: which parameters lie below a place, by which nodes, and whether they can be seen."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordina.errors import Unsupported

if TYPE_CHECKING:
    from sordina.gradients._calls import ModelCall

REENTRANT = "CheckpointFunctionBackward"
"""The node of a checkpoint that computes the parameters inside of it behind autograd's back."""
NOT_REENTRANT = (
    "gradient checkpointing with use_reentrant=True hides parameters from everybody but backward(), so their "
    "per-sample gradients would be zero: pass use_reentrant=False (with transformers: "
    "gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False}))."
)


def used_outside(losses: Tensor, calls: Sequence[ModelCall], names: Mapping[int, str]) -> list[str]:
    """The parameters (``names`` by their identity) that the losses depend on, not through the results of ``calls``."""
    results: dict[Any, tuple[Tensor, ...]] = {edge[:2]: () for call in calls for edge in call.edges if edge is not None}
    return _named(_leaves([(losses.grad_fn, 0)], results), names)


def untapped(calls: Sequence[ModelCall], names: Mapping[int, str]) -> list[str]:
    """The parameters (``names`` by their identity) that results of calls depend on without a tap between them."""
    taps: dict[Any, tuple[Tensor, ...]] = {
        tap.edge[:2]: tap.sources
        for call in calls
        for tap in call.taps
        if tap.build is None or call.structure.taps.get(tap.key) is not None
    }
    return _named(_leaves([edge[:2] for call in calls for edge in call.edges if edge is not None], taps), names)


def leaf_edges(outputs: Sequence[Tensor]) -> dict[int, list[GradientEdge]]:
    """By the identity of a tensor without a graph behind it where ``outputs`` lead to it.

    That is more than one place if its values were in another precision for a while (`Doubled`): what was computed
    before leads to a node that the tensor itself no longer knows, and who asks for its gradient would hear of none.
    """
    found: dict[int, list[GradientEdge]] = {}
    for node in _leaves([_place(output) for output in outputs if output.requires_grad]):
        found.setdefault(id(node.variable), []).append(GradientEdge(node, 0))
    return found


def leads_to(outputs: Sequence[Tensor], nodes: Collection[Any]) -> bool:
    """Whether one of some nodes lies below ``outputs``."""
    seen: set[Any] = set()
    stack = [output.grad_fn for output in outputs] if nodes else []
    while stack:
        node = stack.pop()
        if node in nodes:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(below for below, _ in node.next_functions)
    return False


def refuse_reentrant(outputs: Sequence[Tensor]) -> None:
    """Refuse results in whose graph a checkpoint hides parameters."""
    leaf_edges(outputs)


def _place(tensor: Tensor) -> Any:
    """Where a tensor lies in its graph: a node and the number of its output."""
    return get_gradient_edge(tensor)[:2] if tensor.is_leaf else (tensor.grad_fn, tensor.output_nr)


def _named(leaves: Iterator[Any], names: Mapping[int, str]) -> list[str]:
    return [names[id(node.variable)] for node in leaves if id(node.variable) in names]


def _leaves(stack: list[Any], jumps: Mapping[Any, tuple[Tensor, ...]] | None = None) -> Iterator[Any]:
    """The nodes at the end of a graph that stand for tensors; from places in ``jumps`` on to what stands there.

    A place is a node and the number of its output.
    """
    jumps = jumps or {}
    seen: set[Any] = set()
    while stack:
        place = stack.pop()
        sources = jumps.get(place)
        if sources is not None:
            for source in sources:
                if source.requires_grad:
                    edge = _place(source)
                    if edge != place:
                        stack.append(edge)
            continue
        node = place[0]
        if node is None or node in seen:
            continue
        seen.add(node)
        below = node.next_functions
        if below:
            if type(node).__name__ == REENTRANT:
                raise Unsupported(NOT_REENTRANT)
            stack.extend(below)
        elif getattr(node, "variable", None) is not None:
            yield node
