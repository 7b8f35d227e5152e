"""Rows of a table: the gradient of a row is the sum of the output gradients of the places that looked it up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.gradients.norms import Estimate, squared_lengths, unit_roundoff
from sordina.gradients.terms import Outer, all_places, chunks, gram
from sordina.gradients.weights import Weights


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

    def estimate(self) -> Estimate:
        """Places of one unit with equal index add up before they are squared; here and in `scatter`, additions err."""
        keys = self.indices + torch.arange(self.units, device=self.indices.device)[:, None] * self.height
        unique, place = torch.unique(keys, return_inverse=True)
        sums = self.values.new_zeros(len(unique), self.values.shape[2])
        sums.index_add_(0, place.flatten(), self.values.flatten(0, 1))
        squares = torch.zeros(self.units, dtype=torch.float64, device=sums.device)
        squares.index_add_(0, unique // self.height, squared_lengths(sums))
        each = squared_lengths(self.values.flatten(0, 1)).sqrt_().view(self.units, -1)
        additions = each.count_nonzero(1) + 2
        return Estimate(squares, each.sum(1), 0.0, 2 * additions * unit_roundoff(self.kind))

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
