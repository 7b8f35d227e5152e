"""One sample at a time: always exact, whatever the model does, because no two samples ever meet.

The model runs on each sample alone. The user gets the results put together, cut off from the graphs behind them. One
backward pass through the loss gives the gradient of every sample's result; from there each sample goes back alone,
through a graph that holds nobody else. A value that is not finite stays with its sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sordina.errors import Unsupported
from sordina.gradients._hooks import Gathering, leaf_edges
from sordina.gradients._kept_state import same
from sordina.gradients._rehearsal import Dims, gone_back, part
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.layout import widen
from sordina.gradients.norms import NormEstimate, Weights, measure, squared_lengths
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

    def disputed(self) -> frozenset[int]:
        """The places of tensors without rows of samples that are not the same for all samples."""
        loose = [number for number, placement in enumerate(self.placements) if placement is None]
        return frozenset(n for n in loose if not all(same(each[n], self.parts[0][n]) for each in self.parts[1:]))

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


def piece_of(
    row: int, tensors: Sequence[Tensor], places: SamplePlacements, spread: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Of the results of a sample that ran alone those with a gradient, and what they get of the gradients of all.

    Args:
        row: Which sample it is.
        tensors: Its results.
        places: Where samples lie in them.
        spread: The gradients of the results of all samples.
    """
    chosen = [
        (tensor, weight.narrow(place.dim, row * tensor.shape[place.dim], tensor.shape[place.dim]))
        for tensor, place, weight in zip(tensors, places, spread, strict=True)
        if place is not None and tensor.requires_grad
    ]
    return [tensor for tensor, _ in chosen], [weight for _, weight in chosen]


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
    forward: Callable[..., Any],
    value: tuple[Any, Any],
    dims: Dims,
    rows: int,
    placements: SamplePlacements,
    put_back: Callable[[], None],
) -> tuple[Any, Apart]:
    """The model's result on ``rows`` samples, each run alone, and how to go back from it.

    Each begins with the model as it was, which ``put_back`` sees to: what counts calls counts batches.
    """
    results = []
    for row in range(rows):
        if row:
            put_back()
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
        self._edges: dict[int, list[tuple[str, GradientEdge]]] = {}
        self._squares: dict[str, Tensor] | None = None
        self._sums: tuple[Tensor, dict[str, Tensor]] | None = None

    def unit(self, place: int, only: str | None = None) -> dict[str, Tensor]:
        """The gradients of one unit by parameter, flat; those that are zero for certain are left out.

        Where they were measured before they are no longer than that: a backward pass may go by chance.
        """
        found = self._gone_back(place, only)
        if self._squares is not None:
            for name, gradient in found.items():
                measured, now = float(self._squares[name][place]), float(squared_lengths(gradient[None])[0])
                if not now <= measured:
                    found[name] = gradient * (measured / now) ** 0.5 if now < math.inf else torch.zeros_like(gradient)
        return found

    def _gone_back(self, place: int, only: str | None) -> dict[str, Tensor]:
        piece = self.pieces[place]
        wanted = [(name, edge) for name, edge in self._leaves(place) if only is None or name == only]
        if not wanted:
            return {}
        asked: list[Any] = [edge for _, edge in wanted]
        with Gathering() if self.heard else nullcontext():
            found = torch.autograd.grad(piece.outputs, asked, piece.gradients, retain_graph=True, allow_unused=True)
        gone: dict[str, Tensor] = {}
        for (name, _), each in zip(wanted, found, strict=True):
            if each is not None:
                flat = widen(each.to_dense() if each.is_sparse else each).flatten()
                gone[name] = gone[name] + flat if name in gone else flat
        return gone

    def _leaves(self, place: int) -> list[tuple[str, GradientEdge]]:
        """Where a unit's results lead to the parameters."""
        if place not in self._edges:
            found = leaf_edges(self.pieces[place].outputs)
            own = [(name, edge) for name, each in self.parameters.items() for edge in found.get(id(each), ())]
            self._edges[place] = own
        return self._edges[place]

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
            squares = {key: torch.zeros(len(self.pieces), dtype=torch.float64) for key in self.parameters}
            for place in range(len(self.pieces)):
                for key, gradient in self.unit(place).items():
                    squares[key][place] = squared_lengths(gradient[None])[0]
            self._squares = squares
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


def as_in_company(gradient: Tensor, term: Term | None, kind: torch.dtype) -> Term:
    """The term of a unit that is alone in its batch, from autograd's ``gradient`` and the ``term`` that rules give.

    In company the norms of some terms are up to `sordina.queries.SLACK` above the truth, and gradients of parameters of
    a short ``kind`` are not rounded to it. If a unit had something else where it is alone, it would add another vector
    than in company, and who is there would show in it. But where samples are told by the size of a batch, a batch of
    one may mislead rules: then what they sum up to is not the gradient, by more than rounding can explain, and the
    gradient as it is takes their place.
    """
    exact = Dense(gradient[None])
    if term is None:
        return exact
    _, majorant, _, sum_error = term.estimate()
    cancelled = 0.0 if majorant is None else float((2 * sum_error * majorant).sum())
    total = gradient.new_empty(1, len(gradient), dtype=term.kind)
    term.contract(Weights(total.new_ones(1, 1)), total)
    gap, size = _length(total[0] - gradient), _length(gradient)
    return term if gap <= cancelled + max(1e-5, 4 * torch.finfo(kind).eps) * size else exact


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


# Whether two computations agree: results of a sample in company and alone, an engine's answers and autograd's.

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
SHORT = 0.1
"""How far two computations of the same value may differ, relative to its size; `SHORT` for shorter numbers."""

PIECE = 1 << 21
"""About how many values are compared in double precision at a time: results of large models are large."""


class Truth:
    """Norms and a weighted sum of the gradients of samples that ran alone, by parameter."""

    def __init__(self, parameters: Mapping[str, Tensor], weights: Tensor) -> None:
        self.parameters, self.weights = parameters, weights
        self.norms = {name: torch.zeros(len(weights), dtype=torch.float64) for name in parameters}
        self.sums: dict[str, Tensor] = {}
        self.met: set[str] = set()

    def add(self, row: int, piece: tuple[list[Tensor], list[Tensor]]) -> None:
        """Go back from a sample's results."""
        if not piece[0]:
            return
        found = gone_back(piece[0], list(self.parameters.values()), piece[1])
        gradients = dict(zip(self.parameters, found, strict=True))
        del found
        for name in self.parameters:
            gradient = gradients.pop(name)
            if gradient is None:
                continue
            self.met.add(name)
            flat = (gradient.to_dense() if gradient.is_sparse else gradient).flatten()
            self.norms[name][row] = _length(flat)
            if name in self.sums:
                self.sums[name].add_(flat, alpha=float(self.weights[row]))
            else:
                self.sums[name] = flat * float(self.weights[row])

    def spoke(self, terms: Mapping[str, Term], taps: Collection[str]) -> bool:
        """Whether the gradient of every parameter that was used is finite, and not zero for all samples.

        But for recurrent weights, which get exactly nothing where only the first step of a direction is used. They
        have one tap (among ``taps``, those of recurrent layers) and one rule with the weights of the direction's
        inputs: where these speak, it is seen whose rows are whose in all that the recurrent ones would be told from.
        """

        def speaks(name: str) -> bool:
            norms = self.norms[name]
            return bool(norms.any()) and bool(norms.isfinite().all())

        def vouched(name: str) -> bool:
            module, recurrent, direction = name.rpartition("weight_hh_")
            inputs = f"{module}weight_ih_{direction}"
            tapped = bool(recurrent) and f"{module}{direction}" in taps and {name, inputs} <= terms.keys()
            silent = tapped and not self.norms[name].any() and not measure(terms[name]).squares.any()
            return bool(silent) and speaks(inputs)

        return all(speaks(name) or vouched(name) for name in self.met)

    def differing(self, terms: Mapping[str, Term]) -> str:
        """The first parameter of which ``terms`` say something else."""
        size = float(torch.stack(list(self.norms.values())).square().sum(0).sqrt().max())
        for name, parameter in self.parameters.items():
            term, norms = terms.get(name), self.norms[name]
            tolerance = TOLERANCE.get(parameter.dtype, SHORT)
            slack = tolerance * norms + 1e-3 * tolerance * size
            if term is None:
                if bool((norms > slack).any()):
                    return f"parameter {name!r} is used in a way no rule covers"
                continue
            said = measure(term).squares.sqrt().cpu()
            wrong = (said < norms - slack) | (said > norms * 1.1 + slack)
            if bool(wrong.any()) or not self._same_sum(name, term, float(slack.sum())):
                return f"the rule for parameter {name!r} does not hold as it is used here"
        return ""

    def _same_sum(self, name: str, term: Term, slack: float) -> bool:
        like = torch.empty(0, dtype=term.kind, device=self.parameters[name].device)
        out = like.new_empty(1, self.parameters[name].numel())
        term.contract(Weights(self.weights.to(like)[None]), out)
        expected = self.sums.get(name)
        gap = out[0] if expected is None else out[0] - expected.to(like)
        return float(torch.linalg.vector_norm(gap)) <= 3 * slack


def close(one: Tensor, two: Tensor, dim: int | None, tolerance: float | None = None) -> bool:
    """Whether two results are the same up to rounding, sample by sample along ``dim``; NaN is the same as NaN."""
    if one.shape != two.shape:
        return False
    if torch.equal(one, two):
        return True
    if not one.is_floating_point() or not one.dim():
        return one.is_floating_point() and close(one[None], two[None], 0, tolerance)
    tolerance = TOLERANCE.get(one.dtype, SHORT) if tolerance is None else tolerance
    step = max(1, PIECE * one.shape[dim or 0] // max(1, one.numel()))
    pairs = [torch.split(x.detach().movedim(dim or 0, 0), step) for x in (one, two)]
    largest, missing = 0.0, [torch.zeros(0, dtype=torch.float64, device=one.device)]
    for a, b in zip(*pairs, strict=True):
        gaps, sizes = _gaps(a, b)
        rows = _scales(gaps, sizes) if a.dim() > 1 and sizes.shape[-1] else sizes
        largest = max(largest, float(rows.max()) if sizes.numel() else 0.0)
        missing.append((gaps - tolerance * rows).flatten().amax()[None] if gaps.numel() else missing[0])
    return bool((torch.cat(missing) <= 1e-3 * tolerance * largest).all())


def _gaps(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """By sample and place how far two results are apart, and how large they are where both are finite."""
    a, b = (x.double().flatten(min(1, x.dim() - 1)) for x in (one, two))
    gaps = (a - b).abs().masked_fill((a == b) | ((a != a) & (b != b)), 0)
    return gaps, torch.where(a.isfinite() & b.isfinite(), torch.maximum(a.abs(), b.abs()), 0)


BEYOND = 100.0
"""What is the same to the last bit says how large values are up to so many times the largest that is not."""


def _scales(gaps: Tensor, sizes: Tensor) -> Tensor:
    """How large the values of each sample are: a class that is masked by -1e9 is not what the others are held to."""
    other = gaps != 0
    differing, equal = (sizes.masked_fill(mask, 0).amax(-1, keepdim=True) for mask in (~other, other))
    return torch.maximum(differing, torch.minimum(equal, BEYOND * differing))


def _length(vector: Tensor) -> float:
    """The norm of a vector in double precision, without a copy of all of it."""
    return float(torch.linalg.vector_norm(torch.stack([_norm(part.double()) for part in torch.split(vector, PIECE)])))


def _norm(vector: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vector)
    return norm


def loosely_differing(
    one: Sequence[Tensor], two: Sequence[Tensor], places: Sequence[SamplePlacement | None]
) -> set[int]:
    """The places of results without rows of samples that differ between two batches."""
    loose = [place for place, each in enumerate(places) if each is None and place < min(len(one), len(two))]
    return {place for place in loose if not close(one[place].detach(), two[place].detach(), None)}


def others_same(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    places: SamplePlacements,
    sample: int | Collection[int],
    rows: int,
    rough: float = 1.0,
) -> bool:
    """Whether the results of all samples but ``sample``, one or several, are the same."""
    gone = {sample} if isinstance(sample, int) else set(sample)
    if len(before) != len(after):
        return False
    for one, two, place in zip(before, after, places, strict=True):
        if place is None:
            continue
        if one.shape != two.shape:
            return False
        size = one.shape[place.dim] // rows
        others = [row for row in range(one.shape[place.dim]) if row // size not in gone] if size else []
        index = torch.tensor(others, dtype=torch.long, device=one.device)
        a, b = (x.detach().index_select(place.dim, index) for x in (one, two))
        if not close(a, b, place.dim, rough * TOLERANCE.get(one.dtype, SHORT) / 20):
            return False
    return True


def part_same(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    places: SamplePlacements,
    start: int,
    count: int,
    rows: int,
    rough: float = 1.0,
) -> bool:
    """Whether ``count`` samples from ``start`` on have the same results ``after`` all others were taken away."""
    if len(before) != len(after):
        return False
    for one, two, place in zip(before, after, places, strict=True):
        if place is None or one.shape[place.dim] % rows:
            continue
        size = one.shape[place.dim] // rows
        kept = one.detach().narrow(place.dim, start * size, count * size)
        if not close(kept, two.detach(), place.dim, rough * TOLERANCE.get(one.dtype, SHORT) / 20):
            return False
    return True
