"""Learning a model's structure from its first batches: where the samples lie, what escapes, and whether samples mix.

The loss of sample j may depend on row j of a batched tensor and on no other. Two probing backward passes, from the
losses of the first and of the last sample, show along which dimension of every tapped output that holds; if along none,
samples mix and no per-sample bound exists. A walk through the graph finds parameters used outside of all taps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordina.errors import Unsupported
from sordina.gradients.capture import Tap
from sordina.gradients.graph import escaping


@dataclass(frozen=True)
class Plan:
    """What was learned about the taps of a forward pass."""

    dims: Mapping[tuple[str, int], int | None]
    """By the key of a tap the dimension of the samples; None where the tap cannot be used."""
    escaped: frozenset[str]
    """Parameters used outside of all usable taps."""
    certain: bool
    """Whether the batch could tell: it cannot with a single sample, or where all gradients vanish."""


def learn(losses: Tensor, taps: Sequence[Tap], inputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Plan:
    """Probe the graph of ``losses``; refuse a model whose samples mix."""
    rows = len(losses)
    shapes = [tap.shape for tap in taps] + [leaf.shape for leaf in inputs]
    edges = [tap.edge for tap in taps] + [get_gradient_edge(leaf) for leaf in inputs]
    options = _options(losses, shapes, edges)
    dims: dict[tuple[str, int], int | None] = {}
    certain = rows > 1
    for tap, found in zip(taps, options, strict=False):
        allowed = [dim for dim in found or () if tap.any_dim or dim == 0]
        if found is not None and not allowed and tap.batched and rows > 1:
            raise Unsupported(_mixing(tap.label))
        choice = allowed[0] if allowed else None
        dims[tap.key] = choice if dims.get(tap.key, choice) == choice else None
        certain &= tap.build is None or (found is not None and len(allowed) <= 1)
    for found in options[len(taps) :]:
        if found is not None and not found and rows > 1:
            raise Unsupported(_mixing("the input"))
    usable = [tap for tap in taps if dims[tap.key] is not None or tap.build is None]
    names = {id(parameter): name for name, parameter in parameters.items()}
    missed = escaping(losses, ((tap.edge, tap.sources) for tap in usable), parameters.values())
    return Plan(dims, frozenset(names[key] for key in missed), certain)


def _mixing(where: str) -> str:
    return (
        f"samples mix after {where!r}: the loss of one sample depends on other samples, so no per-sample bound exists. "
        "Remove what looks across the batch (batch statistics, contrastive terms)."
    )


def _options(losses: Tensor, shapes: Sequence[torch.Size], edges: Sequence[GradientEdge]) -> list[list[int] | None]:
    """For each edge, the dimensions along which the samples may lie; None where its gradients say nothing."""
    rows = len(losses)
    options: list[list[int]] = [[dim for dim, size in enumerate(shape) if size == rows] for shape in shapes]
    spoke = [False] * len(shapes)
    for sample in {0, rows - 1} if rows > 1 else ():
        gradients: Iterable[Tensor | None] = torch.autograd.grad(
            losses[sample],
            edges,
            retain_graph=True,
            allow_unused=True,
        )
        for place, gradient in enumerate(gradients):
            if gradient is None or not gradient.isfinite().all() or not gradient.any():
                continue
            spoke[place] = True
            shaped = gradient.view(shapes[place])
            options[place] = [dim for dim in options[place] if _confined(shaped, dim, sample)]
    return [dims if said or rows == 1 else (dims or None) for dims, said in zip(options, spoke, strict=True)]


def _confined(gradient: Tensor, dim: int, sample: int) -> bool:
    return bool(gradient.count_nonzero() == gradient.select(dim, sample).count_nonzero())
