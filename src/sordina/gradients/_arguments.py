"""What a model is called with stays as it is: a forward pass leaves nothing of a batch there for a loss to read.

Lists, tuples, mappings and dataclasses are copied for it (many models write what they find into the dictionary that
they are given, and return it). What was put on tensors, and in objects and functions among the arguments, is put back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.gradients._kept_state import KeptState, _put_attributes_back, attributes_of
from sordina.gradients._reach import is_simple
from sordina.gradients._tracing import changed

_DRAWING = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
"""What moves on when it is used, as it should: chance is nobody's."""


def left_alone(run: Callable[..., Any], own: Iterable[Any], args: Any, kwargs: Any) -> Any:
    """What ``run`` says, without a trace of it in what it is called with.

    Args:
        run: A model's forward pass.
        own: Objects that arguments may lead to and that are looked after elsewhere: the model's modules.
        args: Its arguments.
        kwargs: Those with names.
    """
    args, kwargs = changed((args, kwargs), lambda tensor: tensor)
    tensors, objects = list[tuple[Tensor, dict[str, Any]]](), list[Any]()
    _look((args, kwargs), tensors, objects)
    kept = _Objects(tuple(objects), own) if objects else None
    try:
        return run(*args, **kwargs)
    finally:
        for tensor, before in tensors:
            if vars(tensor):
                _put_attributes_back(tensor, before)
        if kept is not None:
            kept.restore()


def _look(value: Any, tensors: list[tuple[Tensor, dict[str, Any]]], objects: list[Any]) -> None:
    """Note tensors, with what was put on them, and objects."""
    if isinstance(value, Tensor):
        tensors.append((value, held := attributes_of(value)))
        objects.extend(each for each in held.values() if not is_simple(each))
    elif isinstance(value, (list, tuple)):
        for each in value:
            _look(each, tensors, objects)
    elif isinstance(value, Mapping):
        for each in value.values():
            _look(each, tensors, objects)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _look(getattr(value, field.name), tensors, objects)
    elif not is_simple(value):
        objects.append(value)


class _Objects(KeptState):
    """What objects among the arguments hold on to; not how far generators of random numbers are."""

    def __init__(self, objects: tuple[Any, ...], own: Iterable[Any]) -> None:
        super().__init__(objects, 0, own)

    def _note(self, value: Any) -> list[Any]:
        return [] if isinstance(value, _DRAWING) else super()._note(value)
