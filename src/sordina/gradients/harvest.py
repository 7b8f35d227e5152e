"""The one backward pass: every tap's gradient becomes terms, most of them while the pass is still running.

Where the pass goes on below a tap, a hook on the graph's node builds the terms at once, while the gradient is fresh in
the cache, and lets go of it and of the layer's input. The other taps are what the pass is asked for. So the memory of
the pass stays near that of ordinary training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sordina.errors import Unsupported
from sordina.gradients.capture import Tap
from sordina.gradients.graph import reachable
from sordina.gradients.terms import Term

Builder = Callable[[Tap, Tensor], Iterable[tuple[Tensor, Term]]]


def harvest(
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
        return found
    edges: list[Any] = [tap.edge for tap in asked]
    answers = torch.autograd.grad(losses, edges, torch.ones_like(losses), retain_graph=retain, allow_unused=True)
    for tap, gradient in zip(asked, answers, strict=True):
        if gradient is not None:
            found.extend(build(tap, gradient))
    if waiting and any(reachable(losses, tap.edge) for tap in waiting.values()):
        raise Unsupported("the model's structure changed between two steps: make a new engine for the new structure.")
    return found


def observe(loss: Tensor, taps: Sequence[Tap], passed: Collection[int], see: Callable[[int, Tensor], None]) -> None:
    """Show every tap's gradient of one loss to ``see``, with its place; the graph is kept.

    Those at the places ``passed`` are shown one by one, so that the gradients are never all in memory at once.
    """

    def hear(place: int, gradients: tuple[Tensor | None, ...]) -> None:
        if (gradient := gradients[taps[place].edge.output_nr]) is not None:
            see(place, gradient)

    handles = [taps[place].edge.node.register_prehook(partial(hear, place)) for place in passed]
    asked = [place for place in range(len(taps)) if place not in passed]
    edges: list[Any] = [taps[place].edge for place in asked]
    answers = torch.autograd.grad(loss, edges, retain_graph=True, allow_unused=True)
    for handle in handles:
        handle.remove()
    for place, gradient in zip(asked, answers, strict=True):
        if gradient is not None:
            see(place, gradient)
