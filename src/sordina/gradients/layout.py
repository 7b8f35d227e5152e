"""How a group of parameters becomes one flat vector, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput


@dataclass(frozen=True)
class Layout:
    """The parameters of one group in their flat order.

    >>> layout = Layout(("weight", "bias"), ((2, 3), (2,)))
    >>> layout.size, layout.slices
    (8, (slice(0, 6, None), slice(6, 8, None)))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> list[int]:
        """How many values each parameter has."""
        return [prod(shape) for shape in self.shapes]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where each parameter lies in the flat vector."""
        return tuple(slice(start, stop) for start, stop in pairwise(accumulate(self.sizes, initial=0)))

    @cached_property
    def size(self) -> int:
        """The length of the flat vector."""
        return sum(self.sizes)

    def __iter__(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        return iter(zip(self.names, self.shapes, self.slices, strict=True))

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of ``vector``, one per parameter.

        >>> import torch
        >>> {name: part.shape for name, part in Layout(("w", "b"), ((2, 3), (2,))).unflatten(torch.zeros(8)).items()}
        {'w': torch.Size([2, 3]), 'b': torch.Size([2])}
        """
        if vector.dim() != 1 or len(vector) != self.size:
            raise InvalidInput(f"expected a flat vector of {self.size} values, got shape {tuple(vector.shape)}.")
        parts = zip(self.names, self.shapes, torch.split_with_sizes(vector, self.sizes), strict=True)
        return {name: part if len(shape) == 1 else part.view(shape) for name, shape, part in parts}


def layouts(model: nn.Module, groups: Sequence[Sequence[str]] | None) -> tuple[Layout, ...]:
    """One layout per group; without groups, one of all trainable parameters. Groups must cover each of them once."""
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise InvalidInput("the model has no trainable parameter: set requires_grad on what should learn.")
    chosen = [list(trainable)] if groups is None else [list(group) for group in groups]
    listed = [name for group in chosen for name in group]
    if unknown := sorted(set(listed) - set(trainable)):
        raise InvalidInput(f"groups name {unknown[0]!r}, which is not a trainable parameter of the model.")
    if missing := sorted(set(trainable) - set(listed)):
        raise InvalidInput(f"parameter {missing[0]!r} is in no group: put it in one, or freeze it.")
    if len(listed) != len(set(listed)):
        raise InvalidInput("a parameter is in two groups: each belongs to exactly one.")
    return tuple(Layout(tuple(group), tuple(tuple(trainable[name].shape) for name in group)) for group in chosen)
