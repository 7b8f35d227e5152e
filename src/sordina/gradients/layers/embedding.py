"""Look-up tables: the gradient of a row is the sum of the output gradients of the places that looked it up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold
from sordina.gradients.layers.linear import wants
from sordina.gradients.terms import Term


@dataclass(frozen=True)
class Lookup:
    """``g_i = sum_t e(indices_it) values_it^T`` with indices (U, T), values (U, T, d) and a table of ``height`` rows."""

    indices: Tensor
    values: Tensor
    height: int

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.indices.shape[0]

    def squared_norms(self) -> Tensor:
        """Places of one unit with equal index add up before they are squared."""
        keys = self.indices + torch.arange(self.units, device=self.indices.device)[:, None] * self.height
        unique, place = torch.unique(keys, return_inverse=True)
        sums = self.values.new_zeros(len(unique), self.values.shape[2])
        sums.index_add_(0, place.flatten(), self.values.flatten(0, 1))
        squares = torch.linalg.vector_norm(sums, dim=1).square_()
        return self.values.new_zeros(self.units).index_add_(0, unique // self.height, squares)

    def project(self, direction: Tensor) -> Tensor:
        """``sum_t <D[index_t], value_t>``."""
        table = direction.reshape(self.height, -1)
        return (table[self.indices] * self.values).sum((1, 2))

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """Scatter the scaled values."""
        for weight, target in zip(weights, out, strict=True):
            scaled = (self.values * weight[:, None, None]).flatten(0, 1)
            target.zero_().view(self.height, -1).index_add_(0, self.indices.flatten(), scaled)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        indices, values = self.indices[where], self.values[where]
        table = values.new_zeros(len(indices), self.height, values.shape[2])
        table.scatter_add_(1, indices[:, :, None].expand_as(values), values)
        return table.flatten(1)


def embedding(module: nn.Embedding, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """``torch.nn.Embedding``; the padding index learns nothing."""
    if wants(module, "weight"):
        indices, values = fold.places(a, keep=0)[..., 0], fold.places(b)
        if module.padding_idx is not None:
            values = values.masked_fill((indices == module.padding_idx)[..., None], 0)
        yield "weight", Lookup(indices, values, module.num_embeddings)
