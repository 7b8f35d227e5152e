"""Per-unit gradients of one parameter, held in the cheapest form that still answers every question.

A *term* stands for vectors ``g_1 .. g_U`` (one per unit of privacy) of one parameter's shape. It knows their norms,
their weighted sums and their inner products with a direction without, where possible, ever writing them down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sordina.gradients.weights import Weights

CHUNK_BYTES = 2 << 20
"""Per-unit gradients that must be written down are written in pieces of about this size, which stay in cache."""
IN_CACHE = 1 << 20
"""How many values are moved about cheaply."""
WORTH_THE_TROUBLE = 1 << 23
"""How many multiplications take longer than finding out how to save them."""


class Term(Protocol):
    """``U`` vectors of one parameter, flattened."""

    @property
    def units(self) -> int:
        """How many vectors."""
        ...

    def norms(self) -> Tensor:
        """``|g_i|``, shape (U,)."""
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

    def norms(self) -> Tensor:
        """``|g_i|``, computed once: a layer's weight and bias share it."""
        if self._norms is None:
            self._norms = torch.linalg.vector_norm(self.vectors, dim=1)
        return self._norms

    def project(self, direction: Tensor) -> Tensor:
        """``<g_i, u>``."""
        return self.vectors @ direction.reshape(-1)

    def contract(self, weights: Weights, out: Tensor) -> None:
        """``out[q] = sum_i w_qi g_i``."""
        torch.mm(weights.rows, self.vectors, out=out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors."""
        return self.vectors[where]


@dataclass(frozen=True)
class Pair:
    """``g_i = left_i right_i^T`` for left (U, r) and right (U, c): a linear map at one place."""

    left: Dense
    right: Dense

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.left.units

    def norms(self) -> Tensor:
        """``|left| |right|``."""
        return self.left.norms() * self.right.norms()

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

    def norms(self) -> Tensor:
        """The ghost norm ``sqrt(sum (l l^T) o (r r^T))``."""
        return cross_outer(self, self).clamp_min_(0).sqrt_()

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

    def places(self) -> Outer:
        """Itself."""
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


def cross_outer(one: Outer, two: Outer) -> Tensor:
    """``<g_i, h_i> = sum (l l'^T) o (r r'^T)``, shape (U,)."""
    bytes_each = one.left.shape[1] * two.left.shape[1] * one.left.element_size()
    parts = []
    for where in chunks(one.units, bytes_each):
        gram = torch.bmm(one.left[where], two.left[where].mT)
        parts.append(gram.mul_(torch.bmm(one.right[where], two.right[where].mT)).sum((1, 2)))
    return torch.cat(parts)


def sum_outer(left: Tensor, right: Tensor, weights: Weights, out: Tensor) -> None:
    """``out[q] = sum_i w_qi left_i^T right_i``, with as few multiplications as the weights allow."""
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


def contract_without(poisoned: Tensor, term: Term, weights: Weights, out: Tensor) -> None:
    """As ``term.contract``, but units that are ``poisoned`` and have weight zero add nothing, not even a NaN."""
    out.zero_()
    for where in chunks(term.units, out.shape[1] * out.element_size()):
        rows = term.rows(where)
        silent = poisoned[where] & (weights.rows[:, where] == 0).all(0)
        out.addmm_(weights.rows[:, where], rows.masked_fill(silent[:, None], 0))
