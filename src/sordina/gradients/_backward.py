"""The one backward pass: what it runs through, and how every tap's gradient becomes terms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sordina.errors import Unsupported
from sordina.gradients._hooks import Gathering, Tap
from sordina.gradients.combined_terms import combine
from sordina.gradients.layout import Fold
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.terms import Term

# Questions to an autograd graph: what a backward pass runs through, and what the losses depend on.


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


def passed_through(
    losses: Tensor, taps: Sequence[Tap], places: Mapping[tuple[str, int], SamplePlacement | None]
) -> frozenset[tuple[str, int]]:
    """The keys of taps below which a backward pass always goes on."""
    used = [tap.edge if tap.build and places[tap.key] is not None else None for tap in taps]
    through = crossed(losses, used)
    ends = {tap.key for place, tap in enumerate(taps) if place not in through or len(tap.shape) < 3}
    return frozenset(tap.key for tap in taps if tap.key not in ends)


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


# The one backward pass: every tap's gradient becomes terms, most of them while the pass is still running.
#
# Where the pass goes on below a tap, a hook on the graph's node builds the terms at once, while the gradient is fresh
# in the cache, and lets go of it and of the layer's input. The other taps are what the pass is asked for. So the memory
# of the pass stays near that of ordinary training.

_run_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
"""What stands behind `torch.autograd.grad`, whose checks of its arguments take as long as a small layer."""
Builder = Callable[[Tap, Tensor], Iterable[tuple[Tensor, Term]]]


def names_of(parameters: Mapping[str, Tensor]) -> dict[int, str]:
    """The names of parameters by their identity."""
    return {id(parameter): name for name, parameter in parameters.items()}


CHANGED = "the model's structure changed between two steps: make a new engine for the new structure."


def terms_of(
    losses: Tensor,
    taps: list[Tap],
    places: Mapping[tuple[str, int], SamplePlacement | None],
    passed: Collection[tuple[str, int]],
    parameters: Mapping[str, Tensor],
    names: Mapping[int, str],
    units: int,
    rows_per_unit: int,
) -> dict[str, Term]:
    """By parameter the term of all units, from one backward pass; ``places`` says where the samples lie in each tap.

    ``names`` are the names of ``parameters`` by their identity (`names_of`).
    """
    rows = units * rows_per_unit

    def build(tap: Tap, gradient: Tensor) -> Iterable[tuple[Tensor, Term]]:
        place = places[tap.key]
        assert place is not None
        assert tap.build is not None
        fold = Fold(units, tap.shape[place.dim] // rows * rows_per_unit, place.dim)
        return tap.build(gradient if gradient.shape == tap.shape else gradient.view(tap.shape), fold)

    usable = [tap for tap in taps if tap.build and places[tap.key] is not None]
    found: dict[str, list[Term]] = {}
    for parameter, term in gather_terms(losses, usable, passed, build, retain=False):
        if (name := names.get(id(parameter))) is not None:
            found.setdefault(name, []).append(term)
    return {
        name: parts[0] if len(parts) == 1 else combine(parts, parameters[name].numel()) for name, parts in found.items()
    }


def gradients(losses: Tensor, edges: Sequence[GradientEdge], retain: bool) -> Sequence[Tensor | None]:
    """What `torch.autograd.grad` says of the sum of the losses at some edges."""
    ones = torch.ones_like(losses)
    if _run_backward is None:
        asked: list[Any] = list(edges)
        return torch.autograd.grad(losses, asked, ones, retain_graph=retain, allow_unused=True)
    found: Sequence[Tensor | None] = _run_backward(
        (losses,), (ones,), retain, False, tuple(edges), allow_unreachable=True, accumulate_grad=False
    )
    return found


def gather_terms(
    losses: Tensor, taps: list[Tap], passed: Collection[tuple[str, int]], build: Builder, retain: bool
) -> list[tuple[Tensor, Term]]:
    """The parameters' terms from one backward pass; empties ``taps``."""
    found: list[tuple[Tensor, Term]] = []
    asked: list[Tap] = []
    waiting: dict[int, Tap] = {}

    def hear(place: int, gradients: tuple[Tensor | None, ...]) -> None:
        tap = waiting.pop(place, None)
        if tap is not None and (gradient := gradients[tap.edge.output_nr]) is not None:
            found.extend(build(tap, gradient))

    for place, tap in enumerate(taps):
        if tap.key in passed:
            waiting[place] = tap
            tap.edge.node.register_prehook(partial(hear, place))
        else:
            asked.append(tap)
    taps.clear()
    if not asked:
        if waiting:
            raise Unsupported(CHANGED)
        return found
    with Gathering():
        answers = gradients(losses, [tap.edge for tap in asked], retain)
    for tap, gradient in zip(asked, answers, strict=True):
        if gradient is not None:
            found.extend(build(tap, gradient))
    if waiting and any(reachable(losses, tap.edge) for tap in waiting.values()):
        raise Unsupported(CHANGED)
    return found
