"""Learning a model's structure from its first batches: where the samples lie, what escapes, and whether samples mix.

The loss of sample j may depend on row j of a batched tensor and on no other. Two probing backward passes, from the
losses of the first and of the last sample, show along which dimension of every tapped output that holds; if along none,
samples mix and no per-sample bound exists. A walk through the graph finds parameters used outside of all taps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from sordina.errors import Unsupported
from sordina.gradients.capture import Tap
from sordina.gradients.graph import crossed, escaping
from sordina.gradients.harvest import observe


@dataclass(frozen=True)
class Plan:
    """What was learned about the taps of a forward pass."""

    dims: Mapping[tuple[str, int], int | None]
    """By the key of a tap the dimension of the samples; None where the tap cannot be used."""
    escaped: frozenset[str]
    """Parameters used outside of all usable taps."""
    passed: frozenset[tuple[str, int]]
    """The keys of taps below which the backward pass always goes on."""
    certain: bool
    """Whether the batch could tell: it cannot with a single sample, or where all gradients vanish."""


def learn(losses: Tensor, taps: Sequence[Tap], inputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Plan:
    """Probe the graph of ``losses``; refuse a model whose samples mix."""
    rows = len(losses)
    places = crossed(losses, [tap.edge for tap in taps])
    dims: dict[tuple[str, int], int | None] = {}
    certain = rows > 1
    everything = [*taps, *map(_input, inputs)]
    for tap, found in zip(everything, _options(losses, everything, places), strict=True):
        allowed = [dim for dim in found or () if tap.any_dim or dim == 0]
        if found is not None and not allowed and tap.batched and rows > 1:
            raise Unsupported(
                f"samples mix after {tap.label!r}: the loss of one sample depends on other samples, so no per-sample "
                "bound exists. Remove what looks across the batch (batch statistics, contrastive terms)."
            )
        choice = allowed[0] if allowed else None
        dims[tap.key] = choice if dims.get(tap.key, choice) == choice else None
        certain &= tap.build is None or (found is not None and len(allowed) <= 1)
    usable = [tap for tap in taps if dims[tap.key] is not None or tap.build is None]
    names = {id(parameter): name for name, parameter in parameters.items()}
    missed = escaping(losses, ((tap.edge, tap.sources) for tap in usable), parameters.values())
    places = crossed(losses, [tap.edge if dims[tap.key] is not None and tap.build else None for tap in taps])
    ends = {tap.key for place, tap in enumerate(taps) if place not in places or len(tap.shape) < 3}
    return Plan(
        dims,
        frozenset(names[key] for key in missed),
        frozenset(tap.key for tap in taps if tap.key not in ends),
        certain,
    )


def _input(leaf: Tensor) -> Tap:
    """The model's input, looked at like a tap."""
    return Tap(("the input", leaf.dim()), get_gradient_edge(leaf), leaf.shape, None, (), (), True)


def _options(losses: Tensor, taps: Sequence[Tap], passed: Collection[int]) -> list[list[int] | None]:
    """For each tap the dimensions along which the samples may lie; None if its gradients say nothing."""
    rows = len(losses)
    options = [[dim for dim, size in enumerate(tap.shape) if size == rows] for tap in taps]
    spoke = [rows == 1] * len(taps)
    for sample in {0, rows - 1} if rows > 1 else ():

        def see(place: int, gradient: Tensor, sample: int = sample) -> None:
            if gradient.any() and gradient.isfinite().all():
                spoke[place] = True
                shaped = gradient.view(taps[place].shape)
                options[place] = [dim for dim in options[place] if _confined(shaped, dim, sample)]

        observe(losses[sample], taps, passed, see)
    return [dims if said else (dims or None) for dims, said in zip(options, spoke, strict=True)]


def _confined(gradient: Tensor, dim: int, sample: int) -> bool:
    return bool(gradient.count_nonzero() == gradient.select(dim, sample).count_nonzero())
