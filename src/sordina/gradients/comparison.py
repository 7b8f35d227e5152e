"""Whether two computations agree: results of a sample in company and alone, an engine's answers and autograd's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sordina.gradients.norms import Weights, measure
from sordina.gradients.one_by_one import SamplePlacements
from sordina.gradients.terms import Term

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
"""How far two computations of the same value may differ, relative to its size; a tenth for shorter numbers."""

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
        found = torch.autograd.grad(piece[0], list(self.parameters.values()), piece[1], allow_unused=True)
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

    @property
    def spoke(self) -> bool:
        """Whether the gradient of every parameter that was used is finite, and not zero for all samples."""
        return all(bool(self.norms[name].any()) and bool(self.norms[name].isfinite().all()) for name in self.met)

    def differing(self, terms: Mapping[str, Term]) -> str:
        """The first parameter of which ``terms`` say something else."""
        size = float(torch.stack(list(self.norms.values())).square().sum(0).sqrt().max())
        for name, parameter in self.parameters.items():
            term, norms = terms.get(name), self.norms[name]
            tolerance = TOLERANCE.get(parameter.dtype, 0.1)
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
    tolerance = TOLERANCE.get(one.dtype, 0.1) if tolerance is None else tolerance
    step = max(1, PIECE * one.shape[dim or 0] // max(1, one.numel()))
    pairs = [torch.split(x.detach().movedim(dim or 0, 0), step) for x in (one, two)]
    largest, missing = 0.0, [torch.zeros(0, dtype=torch.float64, device=one.device)]
    for a, b in zip(*pairs, strict=True):
        gaps, sizes = _gaps(a, b)
        rows = sizes.amax(-1, keepdim=True) if a.dim() > 1 and sizes.shape[-1] else sizes
        largest = max(largest, float(sizes.max()) if sizes.numel() else 0.0)
        missing.append((gaps - tolerance * rows).flatten().amax()[None] if gaps.numel() else missing[0])
    return bool((torch.cat(missing) <= 1e-3 * tolerance * largest).all())


def _gaps(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """By sample and place how far two results are apart, and how large they are where both are finite."""
    a, b = (x.double().flatten(min(1, x.dim() - 1)) for x in (one, two))
    gaps = (a - b).abs().masked_fill((a == b) | ((a != a) & (b != b)), 0)
    return gaps, torch.where(a.isfinite() & b.isfinite(), torch.maximum(a.abs(), b.abs()), 0)


def _length(vector: Tensor) -> float:
    """The norm of a vector in double precision, without a copy of all of it."""
    return float(torch.linalg.vector_norm(torch.stack([_norm(part.double()) for part in torch.split(vector, PIECE)])))


def _norm(vector: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vector)
    return norm


def others_same(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    places: SamplePlacements,
    sample: int,
    rows: int,
    rough: float = 1.0,
) -> bool:
    """Whether the results of all samples but ``sample`` are the same."""
    if len(before) != len(after):
        return False
    for one, two, place in zip(before, after, places, strict=True):
        if place is None:
            continue
        if one.shape != two.shape:
            return False
        size = one.shape[place.dim] // rows
        others = [row for row in range(one.shape[place.dim]) if row // size != sample] if size else []
        index = torch.tensor(others, dtype=torch.long, device=one.device)
        a, b = (x.detach().index_select(place.dim, index) for x in (one, two))
        if not close(a, b, place.dim, rough * TOLERANCE.get(one.dtype, 1.0) / 20):
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
        if not close(kept, two.detach(), place.dim, rough * TOLERANCE.get(one.dtype, 1.0) / 20):
            return False
    return True
