"""Tensors inside nested arguments and results: lists, tuples, mappings and dataclasses."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

Change = Callable[[Tensor], Any]


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among ``values``, in a fixed order, at any depth."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, Mapping):
            yield from tensors_in(value.values())
        elif is_dataclass(value) and not isinstance(value, type):
            yield from tensors_in(getattr(value, each.name) for each in fields(value))


def changed(value: Any, change: Change) -> Any:
    """A copy of ``value`` in which every tensor is what ``change`` makes of it, called in the order of `tensors_in`.

    >>> import torch
    >>> changed({"a": [torch.ones(2)], "b": 3}, lambda tensor: tensor + 1)
    {'a': [tensor([2., 2.])], 'b': 3}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return _sequence(value, [changed(each, change) for each in value])
    if isinstance(value, Mapping):
        return _mapping(value, {key: changed(each, change) for key, each in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for each in fields(value):
            object.__setattr__(twin, each.name, changed(getattr(value, each.name), change))
        return twin
    return value


def _sequence(value: Any, items: list[Any]) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return kind(items)
    return kind(*items) if hasattr(value, "_fields") else kind(items)


def _mapping(value: Any, items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    twin = copy.copy(value)
    if isinstance(value, UserDict):
        twin.data = dict(value.data)
    for key, each in items.items():
        twin[key] = each
    return twin


def described(value: Any) -> Any:
    """What ``value`` is apart from its tensors: equal for two values that differ in tensors only.

    >>> import torch
    >>> described((torch.ones(2), True)) == described((torch.zeros(5), True)) != described((torch.ones(2), False))
    True
    """
    if isinstance(value, Tensor):
        return Tensor
    if isinstance(value, (list, tuple)):
        return (type(value), *map(described, value))
    if isinstance(value, Mapping):
        return (type(value), *((key, described(each)) for key, each in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(described(getattr(value, each.name)) for each in fields(value)))
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return type(value)
