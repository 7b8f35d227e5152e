"""Per-unit gradients of one parameter, held in the cheapest form that still answers every question.

A *term* stands for vectors ``g_1 .. g_U`` (one per unit of privacy) of one parameter's shape. It knows their squared
norms, their weighted sums and their inner products with a direction without, where possible, ever writing them down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from sordina.gradients.weights import Weights

CHUNK_BYTES = 2 << 20
"""Per-unit gradients that must be written down are written in pieces of about this size, which stay in cache."""
WORTH_PICKING = 64
"""Arithmetic per value from which copying some rows of a matrix is cheaper than multiplying all of them twice."""


class Term(Protocol):
    """``U`` vectors of one parameter, flattened."""

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


@dataclass(frozen=True)
class Dense:
    """The vectors themselves, shape (U, size): for biases, scales, and weights small enough to keep."""

    vectors: Tensor

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.vectors.shape[0]

    @cached_property
    def squares(self) -> Tensor:
        """``|g_i|^2``, computed once: a layer's bias and weight share it."""
        squares: Tensor = torch.linalg.vector_norm(self.vectors, dim=1).square_()
        return squares

    def squared_norms(self) -> Tensor:
        """``|g_i|^2``."""
        return self.squares

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

    def squared_norms(self) -> Tensor:
        """``|left|^2 |right|^2``."""
        return self.left.squares * self.right.squares

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

    def squared_norms(self) -> Tensor:
        """The ghost norm ``sum (l l^T) o (r r^T)``."""
        return cross_outer(self, self).clamp_min_(0)

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
    r, c = left.shape[-1], right.shape[-1]
    if weights.single:
        torch.mm(scaled(left, weights.rows[0]).mT, right.reshape(-1, c), out=out.view(r, c))
        return
    if r * c > WORTH_PICKING * (r + c) and weights.parts is not None:
        sums = [scaled(part.pick(left), part.scale).mT @ part.pick(right).reshape(-1, c) for part in weights.parts]
        mix(sums, weights, out)
        return
    stacked = torch.cat([scaled(left, row) for row in weights.rows], 1)
    out.copy_((stacked.mT @ right.reshape(-1, c)).view(len(out), -1))


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """``weight_i x_i`` as a matrix with one row per place."""
    return (x * weight.view(-1, *[1] * (x.dim() - 1))).reshape(-1, x.shape[-1])


def mix(sums: Sequence[Tensor], weights: Weights, out: Tensor) -> None:
    """``out[q] = sum_p mix_pq sums_p`` over the parts of the weights."""
    out.zero_()
    for part, total in zip(weights.parts or (), sums, strict=True):
        for target, factor in zip(out, part.mix.tolist(), strict=True):
            if factor:
                target.add_(total.reshape(-1), alpha=factor)
