"""Any operation, differentiated sample by sample with ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from sordina.gradients.layers.fold import Fold
from sordina.gradients.norms import Estimate, squared_lengths
from sordina.gradients.terms import chunks, contract_rows
from sordina.gradients.trace import BATCHED, Free, Tracer
from sordina.gradients.weights import Weights


@dataclass(frozen=True)
class Operation:
    """A function with its arguments, some of them free, some with the samples along their first dimension."""

    func: Any
    leaves: tuple[Any, ...]
    spec: TreeSpec
    free: Mapping[int, Free]
    batched: tuple[int, ...]

    @classmethod
    def of(cls, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tracer: Tracer) -> Operation:
        """Sort the arguments by what the tracer knows of them."""
        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        kinds = {place: tracer.kind(leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        free = {place: kind for place, kind in kinds.items() if isinstance(kind, Free)}
        batched = tuple(place for place, kind in kinds.items() if kind is BATCHED)
        return cls(func, tuple(leaves), spec, free, batched)

    @cached_property
    def tensors(self) -> dict[int, Tensor]:
        """The tensors among the arguments."""
        return {place: leaf for place, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)}

    @cached_property
    def _detached(self) -> list[Any]:
        return [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]

    def fits(self, result: Any) -> bool:
        """Whether result and samples agree on their number, and nothing was changed in place."""
        if not isinstance(result, Tensor) or not result.dim() or self.func.__name__.rstrip("_").startswith("__i"):
            return False
        sizes = {self.leaves[place].shape[:1] for place in self.batched}
        return sizes == {result.shape[:1]} and not self.func.__name__.endswith("_")

    def call(self, changes: Mapping[int, Tensor]) -> Tensor:
        """The operation with some arguments replaced."""
        leaves = [changes.get(place, leaf) for place, leaf in enumerate(self._detached)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        result: Tensor = self.func(*args, **kwargs)
        return result


@dataclass(frozen=True)
class Sampled:
    """Gradients of the free argument at ``place`` of an operation, from the operation's output gradient."""

    operation: Operation
    place: int
    b: Tensor
    fold: Fold

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.fold.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.b.dtype

    @property
    def value(self) -> Tensor:
        """The free argument."""
        value: Tensor = self.operation.leaves[self.place].detach()
        return value

    def _pull(self, changes: Mapping[int, Tensor]) -> Callable[[Tensor], Tensor]:
        """The vector-Jacobian product of the operation, with some arguments replaced."""
        output, pull, *_ = vjp(lambda value: self.operation.call({**changes, self.place: value}), self.value)
        return lambda b: pull(b.to(output.dtype))[0]

    def _pieces(self, units: slice) -> Iterator[Tensor]:
        size = self.fold.rows * self.value.numel() * self.value.element_size()
        for piece in chunks(units.stop - units.start, size):
            yield self._piece(units.start + piece.start, units.start + piece.stop)

    def _piece(self, start: int, stop: int) -> Tensor:
        """``vmap`` over samples of the vector-Jacobian product of the operation on a batch of one."""
        rows = slice(start * self.fold.rows, stop * self.fold.rows)
        samples = {place: self.operation.leaves[place].detach()[rows] for place in self.operation.batched}

        def one(sample: dict[int, Tensor], b: Tensor) -> Tensor:
            alone = {place: value.unsqueeze(0) for place, value in sample.items()}
            return self._pull(alone)(b.unsqueeze(0))

        each = vmap(one)(samples, self.b[rows]).flatten(1)
        return each if self.fold.rows == 1 else each.view(stop - start, self.fold.rows, -1).sum(1)

    def estimate(self) -> Estimate:
        """In pieces of the batch."""
        pieces = self._pieces(slice(0, self.units))
        return Estimate(torch.cat([squared_lengths(piece) for piece in pieces]))

    def project(self, direction: Tensor) -> Tensor:
        """In pieces of the batch."""
        return torch.cat([piece @ direction.reshape(-1) for piece in self._pieces(slice(0, self.units))])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """The sum of the vectors that were measured: the operation as a whole would round, or cancel, otherwise."""
        contract_rows(self, weights, out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return torch.cat(list(self._pieces(where)))

    def take(self, units: Tensor) -> Sampled:
        """Some of the units."""
        rows = (units[:, None] * self.fold.rows + torch.arange(self.fold.rows, device=units.device)).flatten()
        leaves = list(self.operation.leaves)
        for place in self.operation.batched:
            leaves[place] = leaves[place].detach().index_select(0, rows)
        fold = replace(self.fold, units=len(units))
        return Sampled(replace(self.operation, leaves=tuple(leaves)), self.place, self.b.index_select(0, rows), fold)
