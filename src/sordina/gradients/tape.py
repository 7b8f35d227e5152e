"""A recorded backward pass that answers any number of questions about its per-unit gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.gradients.layout import Layout
from sordina.gradients.terms import Term, contract_without
from sordina.gradients.weights import Weights
from sordina.seam import Query, ScalarQuery, Scalars

_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def full_precision(device: str) -> AbstractContextManager[Any]:
    """Norms and sums are taken in the precision of the parameters, also inside an autocast region."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _AS_IT_IS


@dataclass(frozen=True)
class GhostTape:
    """Terms by parameter name; a trainable parameter without a term has zero gradient for every unit."""

    layouts: tuple[Layout, ...]
    terms: Mapping[str, Term]
    units: int
    like: Tensor
    """An empty tensor of the dtype and device of the answers."""
    _norms: dict[int, Tensor] = field(default_factory=dict)

    def scalars(self, direction: Tensor | None = None, group: int = 0) -> Scalars:
        """Norms of the group's per-unit gradients, and their projections on ``direction`` (a flat unit vector)."""
        with full_precision(self.like.device.type):
            if group not in self._norms:
                self._norms[group] = self._measure(group)
            projections = None if direction is None else self._project(self._checked(direction, group), group)
        return Scalars(self._norms[group], projections)

    def _measure(self, group: int) -> Tensor:
        parts = [self.terms[name].norms() for name in self.layouts[group].names if name in self.terms]
        return torch.stack(parts).square_().sum(0).sqrt_() if parts else self.like.new_zeros(self.units)

    def _project(self, direction: Tensor, group: int) -> Tensor:
        total = self.like.new_zeros(self.units)
        for name, part in self.layouts[group].unflatten(direction).items():
            if name in self.terms:
                total += self.terms[name].project(part)
        return total

    def contract(self, queries: Sequence[Query], direction: Tensor | None = None, group: int = 0) -> list[Tensor]:
        """One flat vector per vector query, one 0-d tensor per scalar query."""
        vectors = [query for query in queries if not isinstance(query, ScalarQuery)]
        with full_precision(self.like.device.type):
            rows = iter(self._sums([query.own for query in vectors], group))
        answers = []
        for query in queries:
            if isinstance(query, ScalarQuery):
                answers.append(query.value.sum())
                continue
            answer = next(rows)
            if query.ref is not None:
                if direction is None:
                    raise InvalidInput("a query with `ref` needs the direction it refers to: pass direction=.")
                answer.add_(self._checked(direction, group) * query.ref.sum())
            answers.append(answer)
        return answers

    def _sums(self, own: Sequence[Tensor], group: int) -> Tensor:
        layout = self.layouts[group]
        out = self.like.new_empty(len(own), layout.size)
        if not own:
            return out
        rows = [self._weights(vector) for vector in own]
        weights = Weights(torch.stack(rows) if len(rows) > 1 else rows[0][None])
        poisoned = self._poisoned(group)
        for name, target in zip(layout.names, torch.split_with_sizes(out, layout.sizes, 1), strict=True):
            if name not in self.terms:
                target.zero_()
            elif poisoned is None:
                self.terms[name].contract(weights, target)
            else:
                contract_without(poisoned, self.terms[name], weights, target)
        return out

    def _poisoned(self, group: int) -> Tensor | None:
        """Units whose norm is not a number: a weight of zero must silence them, and ``0 * inf`` would not."""
        norms = self._norms.get(group)
        if norms is None or math.isfinite(float(norms.sum())):
            return None
        return ~norms.isfinite()

    def _weights(self, own: Tensor) -> Tensor:
        if own.shape != (self.units,):
            raise InvalidInput(f"a query has one coefficient per unit ({self.units}), got shape {tuple(own.shape)}.")
        return own.to(self.like)

    def _checked(self, direction: Tensor, group: int) -> Tensor:
        if direction.shape != (self.layouts[group].size,):
            raise InvalidInput(
                f"the direction must be flat with {self.layouts[group].size} values, got {tuple(direction.shape)}."
            )
        return direction.to(self.like)
