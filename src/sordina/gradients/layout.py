"""How samples and parameters are laid out: flat vectors, the dimension of the samples, the parts of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from math import prod
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput

# How a group of parameters becomes one flat vector, and back.


@dataclass(frozen=True)
class Layout:
    """The parameters of one group in their flat order.

    Args:
        names: The parameters, in order.
        shapes: Their shapes.

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


# Which dimension holds the samples, and how many rows make a unit of privacy.

LOW_PRECISION = (torch.bfloat16, torch.float16)


class Fold(NamedTuple):
    """The batch seen as ``units`` units of ``rows`` consecutive rows each, along dimension ``dim``."""

    units: int
    rows: int = 1
    dim: int = 0

    def places(self, x: Tensor, keep: int = 1) -> Tensor:
        """``x`` as (units, places, features): its last ``keep`` dimensions are features, the others are places.

        >>> Fold(units=2, rows=3).places(torch.zeros(6, 5, 4)).shape
        torch.Size([2, 15, 4])
        """
        x = widen(x)
        if self.dim:
            x = x.movedim(self.dim, 0)
        return x.reshape(self.units, -1, prod(x.shape[x.dim() - keep :]))

    def total(self, x: Tensor, keep: int = 1) -> Tensor:
        """The sum over places: (units, features)."""
        places = self.places(x, keep)
        return places[:, 0] if places.shape[1] == 1 else places.sum(1)

    def by_row(self, x: Tensor) -> Tensor:
        """(units * rows, size) summed over the rows of a unit: (units, size)."""
        return x if self.rows == 1 else x.view(self.units, self.rows, -1).sum(1)


def widen(x: Tensor) -> Tensor:
    """Half precision becomes single: norms are never accumulated in sixteen bits."""
    return x.float() if x.dtype in LOW_PRECISION else x


# The modules and parameters a model consists of, to see cheaply when somebody exchanges, freezes or thaws one.


class Parts:
    """What a model consisted of when an engine began to listen to it."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._tables: list[dict[str, Any]] = [
            table for module in modules for table in (module._modules, module._parameters)
        ]
        self._names = list(chain.from_iterable(self._tables))
        self._members = list(chain.from_iterable(map(dict.values, self._tables)))
        self._parameters = list(model.parameters())
        self._free = [parameter.requires_grad for parameter in self._parameters]

    def same(self) -> bool:
        """Whether every module and parameter is still the object it was, and as trainable: asked before every batch."""
        return (
            list(chain.from_iterable(self._tables)) == self._names
            and all(map(is_, chain.from_iterable(map(dict.values, self._tables)), self._members))
            and [parameter.requires_grad for parameter in self._parameters] == self._free
        )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def check_same_layout(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a model whose trainable parameters are not those of ``shapes``."""
    now = {name: tuple(each.shape) for name, each in trainable(model).items()}
    advice = "Make the optimiser and the engine (or the private object) anew, and count what was spent so far."
    for name in shapes:
        if name not in now:
            raise InvalidInput(f"parameter {name!r} was frozen or taken away while the engine listened. {advice}")
    for name, shape in now.items():
        if name not in shapes:
            raise InvalidInput(f"parameter {name!r} was added or unfrozen while the engine listened. {advice}")
        if shape != shapes[name]:
            raise InvalidInput(f"parameter {name!r} has another shape than when the engine was made. {advice}")
