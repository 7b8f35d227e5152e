"""One sample at a time: always exact, whatever the model does, because no two samples ever meet.

The model runs on each sample alone. The user gets the results put together, cut off from the graphs behind them. One
backward pass through the loss gives the gradient of every sample's result; from there each sample goes back alone,
through a graph that holds nobody else. A value that is not finite stays with its sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sordina.errors import Unsupported
from sordina.gradients._hooks import Gathering
from sordina.gradients._rehearsal import Dims, part
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.layout import widen
from sordina.gradients.norms import NormEstimate, Weights, squared_lengths
from sordina.gradients.terms import Dense, Term

KEPT_BYTES = 1 << 28
"""Per-sample gradients of up to this size are written down; larger ones are computed again when asked for."""


@dataclass(frozen=True)
class SamplePlacement:
    """Where the samples lie in a tensor."""

    dim: int
    single: bool
    """Whether each sample has one row there; if not, several that lie next to one another."""


SamplePlacements = tuple[SamplePlacement | None, ...]


@dataclass(frozen=True)
class Apart:
    """A forward pass of each sample alone."""

    parts: list[list[Tensor]]
    """By sample the tensors of the result, with their graphs."""
    border: list[Tensor]
    """The same put together, without a graph behind them."""
    placements: SamplePlacements

    def pieces(self, gradients: Sequence[Tensor | None]) -> list[BackwardPiece]:
        """By sample its results and their gradients, from the ``gradients`` of the tensors at the border."""
        pieces: list[BackwardPiece] = [BackwardPiece() for _ in self.parts]
        for number, (placement, gradient) in enumerate(zip(self.placements, gradients, strict=True)):
            if gradient is None:
                continue
            if placement is None:
                raise Unsupported(NOT_PER_SAMPLE)
            start = 0
            for piece, tensors in zip(pieces, self.parts, strict=True):
                size = tensors[number].shape[placement.dim]
                if tensors[number].requires_grad:
                    piece.outputs.append(tensors[number])
                    piece.gradients.append(gradient.narrow(placement.dim, start, size))
                start += size
        return pieces


NOT_PER_SAMPLE = (
    "samples mix: the losses depend on a result of the model that is not one per sample (a mean over the batch, a "
    "load-balancing term), so no per-sample bound exists. Compute it per sample, or leave it out."
)


@dataclass(frozen=True)
class BackwardPiece:
    """What a backward pass starts from."""

    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)


def run_apart(
    forward: Callable[..., Any], value: tuple[Any, Any], dims: Dims, rows: int, placements: SamplePlacements
) -> tuple[Any, Apart]:
    """The model's result on ``rows`` samples, each run alone, and how to go back from it."""
    results = []
    for row in range(rows):
        args, kwargs = part(value, dims, row)
        results.append(forward(*args, **kwargs))
    parts = [list(tensors_in([result])) for result in results]
    if any(len(tensors) != len(placements) for tensors in parts):
        raise Unsupported("the model's result has another form than when its structure was learned.")
    border = [_together([tensors[n] for tensors in parts], place) for n, place in enumerate(placements)]
    whole = iter(border)
    return changed(results[0], lambda _: next(whole).clone()), Apart(parts, border, placements)


def _together(tensors: list[Tensor], placement: SamplePlacement | None) -> Tensor:
    if placement is not None:
        whole = torch.cat([tensor.detach() for tensor in tensors], placement.dim)
    elif tensors[0].dim() == 0 and tensors[0].is_floating_point():
        whole = torch.stack([tensor.detach() for tensor in tensors]).mean()
    else:
        whole = tensors[0].detach().clone()
    return whole.requires_grad_(any(tensor.requires_grad for tensor in tensors))


class Backwards:
    """Gradients of all parameters, one unit after the other."""

    def __init__(self, pieces: Sequence[BackwardPiece], parameters: Mapping[str, Tensor], heard: bool = False) -> None:
        """``heard`` says whether the forward pass was listened to: checkpoints in it are then computed in that way."""
        self.pieces, self.parameters, self.heard = pieces, parameters, heard
        self._squares: dict[str, Tensor] | None = None
        self._sums: tuple[Tensor, dict[str, Tensor]] | None = None

    def unit(self, place: int, only: str | None = None) -> dict[str, Tensor]:
        """The gradients of one unit by parameter, flat; those that are zero for certain are left out."""
        piece = self.pieces[place]
        wanted = self.parameters if only is None else {only: self.parameters[only]}
        if not piece.outputs:
            return {}
        with Gathering() if self.heard else nullcontext():
            found = torch.autograd.grad(
                piece.outputs, list(wanted.values()), piece.gradients, retain_graph=True, allow_unused=True
            )
        dense = [each.to_dense() if each is not None and each.is_sparse else each for each in found]
        return {name: widen(each).flatten() for name, each in zip(wanted, dense, strict=True) if each is not None}

    def terms(self) -> dict[str, Term]:
        """By parameter the term of all units."""
        size = sum(parameter.numel() * parameter.element_size() for parameter in self.parameters.values())
        if size * len(self.pieces) > KEPT_BYTES:
            return {name: Alone(self, name) for name in self.parameters}
        kept = {
            name: widen(parameter.detach().new_empty(0)).new_zeros(len(self.pieces), parameter.numel())
            for name, parameter in self.parameters.items()
        }
        for place in range(len(self.pieces)):
            for name, gradient in self.unit(place).items():
                kept[name][place] = gradient
        return {name: Dense(vectors) for name, vectors in kept.items()}

    def squares(self, name: str) -> Tensor:
        """The squared norms of all units; of all parameters at once, in one pass over the units."""
        if self._squares is None:
            self._squares = {key: torch.zeros(len(self.pieces), dtype=torch.float64) for key in self.parameters}
            for place in range(len(self.pieces)):
                for key, gradient in self.unit(place).items():
                    self._squares[key][place] = squared_lengths(gradient[None])[0]
        return self._squares[name].to(self.parameters[name].device)

    def sums(self, weights: Tensor, name: str) -> Tensor:
        """The weighted sums of all parameters at once; a unit of weight zero takes no part at all."""
        if self._sums is None or not torch.equal(self._sums[0], weights):
            sums = {key: weights.new_zeros(len(weights), each.numel()) for key, each in self.parameters.items()}
            for place in weights.any(0).nonzero().flatten().tolist():
                for key, gradient in self.unit(place).items():
                    sums[key].addr_(weights[:, place], gradient.to(weights))
            self._sums = (weights, sums)
        return self._sums[1][name]


@dataclass(frozen=True)
class Alone:
    """The vectors of one parameter, computed whenever they are asked for."""

    backwards: Backwards
    name: str
    which: Tensor | None = None
    """The units that are meant; None stands for all."""

    @property
    def units(self) -> int:
        """How many vectors."""
        return len(self.backwards.pieces) if self.which is None else len(self.which)

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return widen(self.backwards.parameters[self.name].detach().new_empty(0)).dtype

    def estimate(self) -> NormEstimate:
        """One backward pass per unit, for all parameters."""
        squares = self.backwards.squares(self.name)
        return NormEstimate(squares if self.which is None else squares[self.which])

    def project(self, direction: Tensor) -> Tensor:
        """One backward pass per unit."""
        flat, places = direction.reshape(-1), range(self.units)
        return torch.cat([self.rows(slice(place, place + 1)) @ flat for place in places])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """One backward pass per unit that takes part, for all parameters and queries."""
        rows = weights.rows
        if self.which is not None:
            rows = rows.new_zeros(len(rows), len(self.backwards.pieces)).index_copy_(1, self.which, rows)
        out.copy_(self.backwards.sums(rows, self.name))

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        nothing = torch.zeros(self.backwards.parameters[self.name].numel(), dtype=self.kind)
        places = range(self.units)[where] if self.which is None else self.which[where].tolist()
        found = [self.backwards.unit(place, self.name).get(self.name) for place in places]
        return torch.stack([nothing if each is None else each for each in found])

    def take(self, units: Tensor) -> Alone:
        """Some of the units."""
        return Alone(self.backwards, self.name, units if self.which is None else self.which[units])


def folded(pieces: Sequence[BackwardPiece], rows_per_unit: int) -> list[BackwardPiece]:
    """The pieces of rows as pieces of units."""
    if rows_per_unit == 1:
        return list(pieces)
    return [
        BackwardPiece(
            [output for piece in pieces[start : start + rows_per_unit] for output in piece.outputs],
            [gradient for piece in pieces[start : start + rows_per_unit] for gradient in piece.gradients],
        )
        for start in range(0, len(pieces), rows_per_unit)
    ]
