"""Per-unit gradients of one parameter, held in the cheapest form that still answers every question.

A *term* stands for vectors ``g_1 .. g_U`` (one per unit of privacy) of one parameter's shape. It knows their squared
norms, their weighted sums and their inner products with a direction without, where possible, ever writing them down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 19
"""Per-unit gradients that must be written down are written in pieces of about this size: half a core's cache."""


class Term(Protocol):
    """``U`` vectors of one parameter, flattened to ``size`` values each."""

    @property
    def units(self) -> int:
        """How many vectors."""
        ...

    def squared_norms(self) -> Tensor:
        """``|g_i|^2``, shape (U,)."""
        ...

    def project(self, direction: Tensor) -> Tensor:
        """``<g_i, u>`` for a direction of the parameter's shape, shape (U,)."""
        ...

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """Write ``sum_i weights[q, i] g_i`` into ``out[q]``, for every row q of ``weights``; ``out`` has shape (Q, size)."""
        ...

    def rows(self, where: slice) -> Tensor:
        """The vectors of some units, written down: shape (n, size)."""
        ...


def chunks(units: int, bytes_each: int, budget: int = CHUNK_BYTES) -> Iterator[slice]:
    """Slices of ``range(units)`` such that each holds about ``budget`` bytes."""
    step = max(1, budget // max(1, bytes_each))
    return (slice(start, min(start + step, units)) for start in range(0, units, step))


@dataclass(frozen=True)
class Dense:
    """The vectors themselves, shape (U, size): for biases, scales, and weights small enough to keep."""

    vectors: Tensor

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.vectors.shape[0]

    def squared_norms(self) -> Tensor:
        """``|g_i|^2``."""
        return torch.linalg.vector_norm(self.vectors, dim=1).square_()

    def project(self, direction: Tensor) -> Tensor:
        """``<g_i, u>``."""
        return self.vectors @ direction.reshape(-1)

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """``out[q] = sum_i weights[q, i] g_i``."""
        torch.mm(weights, self.vectors, out=out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors."""
        return self.vectors[where]


@dataclass(frozen=True)
class Outer:
    """``g_i = left_i^T right_i`` for left (U, T, r) and right (U, T, c): the gradient of a linear map over T places."""

    left: Tensor
    right: Tensor

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.left.shape[0]

    def squared_norms(self) -> Tensor:
        """``|left|^2 |right|^2`` for T = 1, else the cheaper of ``sum (l l^T) o (r r^T)`` and ``|l^T r|^2``."""
        _, places, r = self.left.shape
        c = self.right.shape[2]
        if places == 1:
            left, right = self.left[:, 0], self.right[:, 0]
            return torch.linalg.vector_norm(left, dim=1).mul_(torch.linalg.vector_norm(right, dim=1)).square_()
        if places * (r + c) < r * c:
            return self._ghost()
        size = r * c * self.left.element_size()
        parts = [torch.linalg.vector_norm(self.rows(where), dim=1) for where in chunks(self.units, size)]
        return torch.cat(parts).square_() if parts else self.left.new_zeros(0)

    def _ghost(self) -> Tensor:
        bytes_each = self.left.shape[1] ** 2 * self.left.element_size()
        parts = []
        for where in chunks(self.units, bytes_each):
            left, right = self.left[where], self.right[where]
            gram = torch.bmm(left, left.mT).mul_(torch.bmm(right, right.mT))
            parts.append(gram.sum((1, 2)))
        return torch.cat(parts).clamp_min_(0) if parts else self.left.new_zeros(0)

    def project(self, direction: Tensor) -> Tensor:
        """``sum_t <l_t, D r_t>`` with D the direction as a matrix."""
        matrix = direction.reshape(self.left.shape[2], self.right.shape[2])
        return (self.right @ matrix.mT).mul_(self.left).sum((1, 2))

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """One matrix product per query: ``(w o left)^T right``."""
        r, c = self.left.shape[2], self.right.shape[2]
        right = self.right.reshape(-1, c)
        for weight, target in zip(weights, out, strict=True):
            scaled = (self.left * weight[:, None, None]).reshape(-1, r)
            torch.mm(scaled.mT, right, out=target.view(r, c))

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return torch.bmm(self.left[where].mT, self.right[where]).flatten(1)


@dataclass(frozen=True)
class Total:
    """The sum of several terms of one parameter: tied weights, modules called more than once."""

    terms: Sequence[Term]
    size: int

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.terms[0].units

    def squared_norms(self) -> Tensor:
        """The cross terms need the sums themselves: written down in pieces of the batch."""
        parts = []
        for where in chunks(self.units, self.size * 8):
            parts.append(torch.linalg.vector_norm(self.rows(where), dim=1))
        return torch.cat(parts).square_()

    def project(self, direction: Tensor) -> Tensor:
        """Projections add up."""
        return sum_of([term.project(direction) for term in self.terms])

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """So do weighted sums."""
        self.terms[0].contract(weights, out)
        part = torch.empty_like(out)
        for term in self.terms[1:]:
            term.contract(weights, part)
            out += part

    def rows(self, where: slice) -> Tensor:
        """And the vectors."""
        return sum_of([term.rows(where) for term in self.terms])


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def combine(terms: Sequence[Term], size: int) -> Term:
    """One term for the sum of ``terms``, in the cheapest form."""
    if len(terms) == 1:
        return terms[0]
    if all(isinstance(term, Dense) for term in terms):
        return Dense(sum_of([term.vectors for term in terms if isinstance(term, Dense)]))
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(outers) == len(terms):
        return Outer(torch.cat([term.left for term in outers], 1), torch.cat([term.right for term in outers], 1))
    return Total(terms, size)
