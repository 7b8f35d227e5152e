"""Terms made of terms: on part of a parameter, through a function of it, or summed over places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from sordina.gradients._hooks import leaf_edges
from sordina.gradients.norms import NormEstimate, Weights, squared_lengths, unit_roundoff
from sordina.gradients.terms import (
    Dense,
    Lookup,
    Outer,
    Pair,
    Term,
    chunks,
    contract_rows,
    cross_outer,
    gram_error,
    outer,
)

# A term that lives on part of a parameter, and a term seen through a function of the parameter.


@dataclass(frozen=True)
class Block:
    """A term on the values ``start .. start + size`` of a flat parameter with ``whole`` values; zero elsewhere."""

    term: Term
    start: int
    size: int
    whole: int

    @property
    def where(self) -> slice:
        """The values the term lives on."""
        return slice(self.start, self.start + self.size)

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.term.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.term.kind

    def estimate(self) -> NormEstimate:
        """Zeros add nothing."""
        return self.term.estimate()

    def project(self, direction: Tensor) -> Tensor:
        """Only the block's part of the direction matters."""
        return self.term.project(direction.reshape(-1)[self.where])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """Zero but for the block."""
        out.zero_()
        self.term.contract(weights, out[:, self.where])

    def rows(self, where: slice) -> Tensor:
        """The vectors with their zeros."""
        part = self.term.rows(where)
        whole = part.new_zeros(len(part), self.whole)
        whole[:, self.where] = part
        return whole

    def take(self, units: Tensor) -> Block:
        """Some of the units."""
        return Block(self.term.take(units), self.start, self.size, self.whole)


@dataclass(frozen=True)
class Pulled:
    """The gradient through ``derived``, a function of the parameter: ``g_i = J^T c_i`` for the term's vectors c_i."""

    term: Term
    derived: Tensor
    """With its graph down to the parameter."""
    parameter: Tensor
    isometric: bool
    """Whether the function only picks or moves values, so that lengths are kept."""

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.term.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.term.kind

    def estimate(self) -> NormEstimate:
        """In pieces of the batch, unless lengths are kept."""
        if self.isometric:
            return self.term.estimate()
        size = max(self.derived.numel(), self.parameter.numel()) * self.parameter.element_size()
        parts = [squared_lengths(self.rows(where)) for where in chunks(self.units, size)]
        return NormEstimate(torch.cat(parts))

    def project(self, direction: Tensor) -> Tensor:
        """``<J^T c_i, u>``."""
        size = max(self.derived.numel(), self.parameter.numel()) * self.parameter.element_size()
        parts = [self.rows(where) @ direction.reshape(-1) for where in chunks(self.units, size)]
        return torch.cat(parts)

    def contract(self, weights: Weights, out: Tensor) -> None:
        """The sum of the vectors; where lengths are kept, pulled back once: ``J^T (sum_i w_i c_i)``.

        Elsewhere ``J`` may take most of a vector away, and the rounding of a sum of what it takes away would remain.
        """
        if not self.isometric:
            contract_rows(self, weights, out)
            return
        sums = out.new_empty(len(out), self.derived.numel())
        self.term.contract(weights, sums)
        out.copy_(self._pull(sums))

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return self._pull(self.term.rows(where))

    def take(self, units: Tensor) -> Pulled:
        """Some of the units."""
        return Pulled(self.term.take(units), self.derived, self.parameter, self.isometric)

    def _pull(self, cotangents: Tensor) -> Tensor:
        shaped = cotangents.view(-1, *self.derived.shape).to(self.derived.dtype)
        edges: list[Any] = leaf_edges([self.derived])[id(self.parameter)]
        pulled = [plus(torch.autograd.grad(self.derived, edges, one, retain_graph=True)).flatten() for one in shaped]
        return torch.stack(pulled).to(cotangents.dtype)


# Sums of terms: one parameter used in several places (tied weights, modules called more than once).


@dataclass(frozen=True)
class Total:
    """The sum of several terms of one parameter with ``size`` values."""

    terms: Sequence[Term]
    size: int

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.terms[0].units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.terms[0].kind

    def estimate(self) -> NormEstimate:
        """``|g + h|^2 = |g|^2 + |h|^2 + 2 <g, h>``; what may cancel is bounded by the sum of the majorants.

        With M_p the majorants of the parts, M their sum, e_p and s_p the errors of their squares and sums: a square is
        off by ``e_p M_p^2``, twice an inner product by ``2 e_pq M_p M_q``, and where vectors are summed or written down
        first (inner products of those are taken in double precision), all of it by ``2 M sum_p s_p M_p`` more.
        """
        parts = [term.estimate() for term in self.terms]
        squares = plus([part.squares for part in parts])
        majorants = [(part.squares.clamp_min(0).sqrt() if part.majorant is None else part.majorant) for part in parts]
        total = plus(majorants)
        sums = plus([part.sum_error * one for part, one in zip(parts, majorants, strict=True)])
        sums = sums + len(parts) * unit_roundoff(self.kind) * total
        errors = plus([part.square_error * one.square() for part, one in zip(parts, majorants, strict=True)])
        errors = errors + 2 * total * sums
        for one, two in combinations(range(len(parts)), 2):
            squares = squares.add(cross(self.terms[one], self.terms[two], self.size), alpha=2)
            error = cross_error(self.terms[one], self.terms[two])
            errors = errors + 2 * error * majorants[one] * majorants[two]
        whole = torch.where(total > 0, total, 1.0)
        return NormEstimate(squares, total, errors / whole.square(), sums / whole)

    def project(self, direction: Tensor) -> Tensor:
        """Projections add up."""
        return plus([term.project(direction) for term in self.terms])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """So do weighted sums."""
        first, *rest = sorted(self.terms, key=lambda term: isinstance(term, Lookup))
        first.contract(weights, out)
        for term in rest:
            if isinstance(term, Lookup):
                term.scatter(weights, out)
            else:
                part = torch.empty_like(out)
                term.contract(weights, part)
                out += part

    def rows(self, where: slice) -> Tensor:
        """And the vectors."""
        return plus([term.rows(where) for term in self.terms])

    def take(self, units: Tensor) -> Total:
        """Some of the units."""
        return Total([term.take(units) for term in self.terms], self.size)


def plus(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def cross(one: Term, two: Term, size: int) -> Tensor:
    """``<g_i, h_i>`` of two terms, written down in pieces only where no formula is known."""
    if isinstance(one, Pair | Outer) and isinstance(two, Pair | Outer):
        return cross_outer(one.places(), two.places())
    if isinstance(one, Lookup) and isinstance(two, Lookup | Pair | Outer):
        return one.cross(two if isinstance(two, Lookup) else two.places())
    if isinstance(two, Lookup) and isinstance(one, Pair | Outer):
        return two.cross(one.places())
    if isinstance(one, Block) and isinstance(two, Block):
        if one.start + one.size <= two.start or two.start + two.size <= one.start:
            return torch.zeros(one.units, dtype=torch.float64)
        if one.where == two.where:
            return cross(one.term, two.term, one.size)
    pieces = ((one.rows(where), two.rows(where)) for where in chunks(one.units, size * 8))
    return torch.cat([torch.linalg.vecdot(left.double(), right.double()) for left, right in pieces])


def cross_error(one: Term, two: Term) -> float:
    """The relative error of `cross`, in units of the product of the majorants.

    The rows that a `Lookup` meets in another term are gathered, not multiplied: one Gram matrix is left, of its values.
    """
    lookup = one if isinstance(one, Lookup) else two if isinstance(two, Lookup) else None
    if lookup is not None and all(isinstance(term, Lookup | Pair | Outer) for term in (one, two)):
        return gram_error(one.kind, *widths(lookup))
    widest = sorted(width for term in (one, two) for width in widths(term))[-2:]
    return gram_error(one.kind, *widest)


def widths(term: Term) -> tuple[int, ...]:
    """Over how many features the inner products of a term run."""
    if isinstance(term, Outer):
        return term.left.shape[2], term.right.shape[2]
    if isinstance(term, Pair):
        return widths(term.places())
    if isinstance(term, Lookup):
        return (term.values.shape[2],)
    return widths(term.term) if isinstance(term, Block | Pulled) else ()


def combine(terms: Sequence[Term], size: int) -> Term:
    """One term for the sum of at least two ``terms`` of a parameter with ``size`` values, in the cheapest form."""
    outers = [term.places() for term in terms if isinstance(term, Pair | Outer)]
    written = [term.vectors for term in terms if isinstance(term, Dense)]
    others: list[Term] = [term for term in terms if not isinstance(term, Pair | Outer | Dense)]
    if len(outers) > 1:
        others.append(
            outer(torch.cat([term.left for term in outers], 1), torch.cat([term.right for term in outers], 1))
        )
    elif outers:
        others.append(outers[0])
    if written:
        others.append(Dense(plus(written)))
    return others[0] if len(others) == 1 else Total(others, size)
