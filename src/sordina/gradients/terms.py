"""Per-unit gradients of one parameter, held in the cheapest form that still answers every question.

A *term* stands for vectors ``g_1 .. g_U`` (one per unit of privacy) of one parameter's shape. It knows their norms,
their weighted sums and their inner products with a direction without, where possible, ever writing them down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sordina.gradients.norms import TOO_LARGE, NormEstimate, Weights, lengths, squared_lengths, unit_roundoff

CHUNK_BYTES = 2 << 20
"""Per-unit gradients that must be written down are written in pieces of about this size, which stay in cache."""
IN_CACHE = 1 << 20
"""How many values are moved about cheaply."""
WORTH_THE_TROUBLE = 1 << 23
"""How many multiplications take longer than finding out how to save them."""
FEATURES = 128
"""How many products of a Gram matrix are added in one go: the fewer, the smaller the bound on the rounding."""
ROW = 1024
"""How many products are added in their own precision, in 32 lanes."""
KEPT_BYTES = 64 << 20
"""Vectors that can only be had written down are kept, not written twice, if they take no more than this."""


class Term(Protocol):
    """``U`` vectors of one parameter, flattened."""

    @property
    def units(self) -> int:
        """How many vectors."""
        ...

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        ...

    def estimate(self) -> NormEstimate:
        """``|g_i|^2``, shape (U,), and how far rounding may have taken it from the truth."""
        ...

    def project(self, direction: Tensor) -> Tensor:
        """``<g_i, u>`` for a direction of the parameter's shape, shape (U,)."""
        ...

    def contract(self, weights: Weights, out: Tensor) -> None:
        """Write ``sum_i w_qi g_i`` into ``out[q]`` for every query q; ``out`` has shape (Q, size)."""
        ...

    def rows(self, where: slice) -> Tensor:
        """The vectors of some units, written down: shape (n, size)."""
        ...

    def take(self, units: Tensor) -> Term:
        """The same for some units only, given by their numbers."""
        ...


def chunks(units: int, bytes_each: int, budget: int = CHUNK_BYTES) -> Iterator[slice]:
    """Slices of ``range(units)`` such that each holds about ``budget`` bytes."""
    step = max(1, budget // max(1, bytes_each))
    return (slice(start, min(start + step, units)) for start in range(0, units, step))


class Dense:
    """The vectors themselves, shape (U, size): for biases, scales, and weights small enough to keep."""

    __slots__ = ("_norms", "vectors")

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self._norms: Tensor | None = None

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.vectors.shape[0]

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.vectors.dtype

    def norms(self) -> Tensor:
        """``|g_i|`` by `lengths`, computed once: a layer's weight and bias share it."""
        if self._norms is None:
            self._norms = lengths(self.vectors)
        return self._norms

    def estimate(self) -> NormEstimate:
        """Nothing cancels."""
        return NormEstimate(squared_lengths(self.vectors))

    def project(self, direction: Tensor) -> Tensor:
        """``<g_i, u>``."""
        return self.vectors @ direction.reshape(-1)

    def contract(self, weights: Weights, out: Tensor) -> None:
        """``out[q] = sum_i w_qi g_i``."""
        torch.mm(weights.rows, self.vectors, out=out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors."""
        return self.vectors[where]

    def take(self, units: Tensor) -> Dense:
        """Some of the vectors."""
        return Dense(self.vectors.index_select(0, units))


class Pair(NamedTuple):
    """``g_i = left_i right_i^T`` for left (U, r) and right (U, c): a linear map at one place."""

    left: Dense
    right: Dense

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.left.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.left.kind

    def estimate(self) -> NormEstimate:
        """``|left|^2 |right|^2``: nothing cancels. Where a factor is `TOO_LARGE`, only what is written down tells."""
        left, right = squared_lengths(self.left.vectors), squared_lengths(self.right.vectors)
        squares = left * right
        ordinary = (left < TOO_LARGE**2) & (right < TOO_LARGE**2)
        return NormEstimate(squares, None if bool(ordinary.all()) else squares.sqrt().where(ordinary, torch.nan))

    def project(self, direction: Tensor) -> Tensor:
        """``<l, D r>`` with D the direction as a matrix."""
        matrix = direction.reshape(self.left.vectors.shape[1], -1)
        return (self.right.vectors @ matrix.mT).mul_(self.left.vectors).sum(1)

    def contract(self, weights: Weights, out: Tensor) -> None:
        """``(w o left)^T right``."""
        sum_outer(self.left.vectors, self.right.vectors, weights, out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return (self.left.vectors[where, :, None] * self.right.vectors[where, None, :]).flatten(1)

    def take(self, units: Tensor) -> Pair:
        """Some of the units."""
        return Pair(self.left.take(units), self.right.take(units))

    def places(self) -> Outer:
        """The same with an explicit dimension of places."""
        return Outer(self.left.vectors[:, None], self.right.vectors[:, None])


@dataclass(frozen=True)
class Outer:
    """``g_i = left_i^T right_i`` for left (U, T, r) and right (U, T, c): a linear map over T places."""

    left: Tensor
    right: Tensor

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.left.shape[0]

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.left.dtype

    def estimate(self) -> NormEstimate:
        """The ghost norm ``sum (l l^T) o (r r^T)``; the diagonals of the two matrices give ``M = sum_t |l_t| |r_t|``.

        What underflows in a Gram matrix is below ``tiny`` for every product. As much over ``square_error`` is added to
        the diagonals, so that the bound covers it. Places without a gradient add nothing and no rounding error.
        """
        kind, (units, places, r), c = self.left.dtype, self.left.shape, self.right.shape[2]
        square_error = gram_error(kind, r, c)
        floor = max(r, c) * torch.finfo(kind).tiny / square_error
        squares, majorant, count = (self.left.new_empty(units, dtype=torch.float64) for _ in range(3))
        for where in chunks(units, places * places * self.left.element_size()):
            left, right = gram(self.left[where], self.left[where]), gram(self.right[where], self.right[where])
            one, two = (x.diagonal(dim1=1, dim2=2).double() for x in (left, right))
            squares[where] = all_places(left.mul_(right))
            count[where] = ((one > 0) & (two > 0)).sum(1, dtype=torch.float64)
            majorant[where] = ((one + floor) * (two + floor)).sqrt_().sum(1)
        return NormEstimate(squares, majorant, square_error, (count + 3) * unit_roundoff(kind))

    def project(self, direction: Tensor) -> Tensor:
        """``sum_t <l_t, D r_t>`` with D the direction as a matrix."""
        matrix = direction.reshape(self.left.shape[2], self.right.shape[2])
        return (self.right @ matrix.mT).mul_(self.left).sum((1, 2))

    def contract(self, weights: Weights, out: Tensor) -> None:
        """``(w o left)^T right``."""
        sum_outer(self.left, self.right, weights, out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return torch.bmm(self.left[where].mT, self.right[where]).flatten(1)

    def take(self, units: Tensor) -> Outer:
        """Some of the units."""
        return Outer(self.left.index_select(0, units), self.right.index_select(0, units))

    def places(self) -> Outer:
        """One outer product a place: this term is that already."""
        return self


def outer(left: Tensor, right: Tensor) -> Term:
    """The cheapest term for ``left_i^T right_i``: a ghost norm costs ``T^2 (r + c)``, writing it down ``T r c``.

    What is written down is kept in place of its factors, which are no smaller: memory does not grow.
    """
    _, places, r = left.shape
    c = right.shape[2]
    if places == 1:
        return Pair(Dense(left[:, 0]), Dense(right[:, 0]))
    if places * (r + c) < r * c:
        return Outer(left, right)
    return Dense(torch.bmm(left.mT, right).flatten(1))


def gram(one: Tensor, two: Tensor) -> Tensor:
    """``one two^T`` of (n, T, k) and (n, S, k), at most `FEATURES` products added at a time."""
    features = one.shape[2]
    total = torch.bmm(one[..., :FEATURES], two[..., :FEATURES].mT)
    for start in range(FEATURES, features, FEATURES):
        part = slice(start, start + FEATURES)
        total.baddbmm_(one[..., part], two[..., part].mT)
    return total


def all_places(products: Tensor) -> Tensor:
    """The sum over both dimensions of (n, T, S), up to 40 additions deep in the precision of the products."""
    if products.shape[2] > ROW:
        return products.sum((1, 2), dtype=torch.float64)
    return products.sum(2).sum(1, dtype=torch.float64)


def gram_error(kind: torch.dtype, *features: int) -> float:
    """The relative error of a sum of products of `gram` entries over so many features, and of `all_places`."""
    roundings = sum(min(k, FEATURES) + -(-k // FEATURES) for k in features)
    return 1.05 * (roundings + 40) * unit_roundoff(kind)


def cross_outer(one: Outer, two: Outer) -> Tensor:
    """``<g_i, h_i> = sum (l l'^T) o (r r'^T)``, shape (U,)."""
    bytes_each = one.left.shape[1] * two.left.shape[1] * one.left.element_size()
    parts = []
    for where in chunks(one.units, bytes_each):
        left = gram(one.left[where], two.left[where])
        parts.append(all_places(left.mul_(gram(one.right[where], two.right[where]))))
    return torch.cat(parts)


def sum_outer(left: Tensor, right: Tensor, weights: Weights, out: Tensor) -> None:
    """``out[q] = sum_i w_qi left_i^T right_i``, with as few multiplications as the weights allow."""
    if weights.single:
        _scaled_product(left, right, weights.rows[0], out[0])
        return
    split = weights.split if weights.mostly_two else None
    if split is not None and (split.order is None or _worth_arranging(left, right)):
        left, right = split.arranged(left), split.arranged(right)
        for part, target in zip(split.parts(), (out[1], out[0]), strict=True):
            _scaled_product(left[part], right[part], split.scale[part], target)
        out[0].add_(out[1], alpha=split.ratio)
    else:
        for query, target in zip(weights.queries, out, strict=True):
            _scaled_product(query.chosen(left), query.chosen(right), query.scale, target)


def _scaled_product(left: Tensor, right: Tensor, scale: Tensor, out: Tensor) -> None:
    r, c = left.shape[-1], right.shape[-1]
    if left.dim() == 2:
        torch.mm((left * scale[:, None]).t(), right, out=out.view(r, c))
    else:
        scaled = left * scale[:, None, None]
        torch.mm(scaled.reshape(-1, r).t(), right.reshape(-1, c), out=out.view(r, c))


def _worth_arranging(left: Tensor, right: Tensor) -> bool:
    """Whether moving rows is cheaper than multiplying all of them once more; moving is dear beyond the cache."""
    r, c = left.shape[-1], right.shape[-1]
    dear = 16 if left.numel() + right.numel() < IN_CACHE else 64
    return r * c > (r + c) * dear and left.numel() * c > WORTH_THE_TROUBLE


def contract_rows(term: Term, weights: Weights, out: Tensor) -> None:
    """``out[q] = sum_i w_qi g_i`` of the vectors as they are written down, piece by piece."""
    out.zero_()
    for where in chunks(term.units, out.shape[1] * out.element_size()):
        out.addmm_(weights.rows[:, where], term.rows(where))


def kept(term: Term, size: int, bytes_each: int) -> Term:
    """A term whose vectors of ``size`` values must be written down anyway, written down for good if they are small."""
    if term.units * size * bytes_each <= KEPT_BYTES:
        return Dense(term.rows(slice(0, term.units)))
    return term


# Rows of a table: the gradient of a row is the sum of the output gradients of the places that looked it up.


@dataclass(frozen=True)
class Lookup:
    """``g_i = sum_t e(indices_it) values_it^T``: indices (U, T), values (U, T, d), a table of ``height`` rows."""

    indices: Tensor
    values: Tensor
    height: int

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.indices.shape[0]

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.values.dtype

    def estimate(self) -> NormEstimate:
        """Places of one unit with equal index add up before they are squared; here and in `scatter`, additions err."""
        keys = self.indices + torch.arange(self.units, device=self.indices.device)[:, None] * self.height
        unique, place = torch.unique(keys, return_inverse=True)
        sums = self.values.new_zeros(len(unique), self.values.shape[2])
        sums.index_add_(0, place.flatten(), self.values.flatten(0, 1))
        squares = torch.zeros(self.units, dtype=torch.float64, device=sums.device)
        squares.index_add_(0, unique // self.height, squared_lengths(sums))
        each = squared_lengths(self.values.flatten(0, 1)).sqrt_().view(self.units, -1)
        additions = each.count_nonzero(1) + 2
        return NormEstimate(squares, each.sum(1), 0.0, 2 * additions * unit_roundoff(self.kind))

    def cross(self, other: Lookup | Outer) -> Tensor:
        """``<g_i, h_i> = sum_ts h_i[index_t] . value_t``: only the rows this term looked up matter."""
        parts = []
        for where in chunks(self.units, self.indices.shape[1] * _places(other) * self.values.element_size()):
            indices, values = self.indices[where], self.values[where]
            if isinstance(other, Lookup):
                meet = (other.indices[where][:, :, None] == indices[:, None, :]).to(values.dtype)
                right = other.values[where]
            else:
                left, right = other.left[where], other.right[where]
                meet = left.gather(2, indices[:, None, :].expand(-1, left.shape[1], -1))
            parts.append(all_places(gram(right, values).mul_(meet)))
        return torch.cat(parts)

    def project(self, direction: Tensor) -> Tensor:
        """``sum_t <D[index_t], value_t>``."""
        table = direction.reshape(self.height, -1)
        return (table[self.indices] * self.values).sum((1, 2))

    def contract(self, weights: Weights, out: Tensor) -> None:
        """Scatter the scaled values."""
        self.scatter(weights, out.zero_())

    def scatter(self, weights: Weights, out: Tensor) -> None:
        """Add the weighted sums to what ``out`` holds."""
        indices = self.indices.flatten()
        for weight, target in zip(weights.rows, out, strict=True):
            scaled = (self.values * weight[:, None, None]).flatten(0, 1)
            target.view(self.height, -1).index_add_(0, indices, scaled)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        indices, values = self.indices[where], self.values[where]
        table = values.new_zeros(len(indices), self.height, values.shape[2])
        table.scatter_add_(1, indices[:, :, None].expand_as(values), values)
        return table.flatten(1)

    def take(self, units: Tensor) -> Lookup:
        """Some of the units."""
        return Lookup(self.indices.index_select(0, units), self.values.index_select(0, units), self.height)


def _places(term: Lookup | Outer) -> int:
    return term.indices.shape[1] if isinstance(term, Lookup) else term.left.shape[1]
