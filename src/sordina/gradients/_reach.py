"""What a model leads to, and how to put something else in its place: attributes, objects in them, closures, globals.

A loss may look at whatever a forward pass leaves behind. All of it is walked through: containers, objects of anybody's
(also with slots), functions and what they close over, hooks, attributes of classes and of tensors, and the globals that
methods of the user's name; of other things what Python's garbage collector knows they hold on to.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import random
import re
import threading
import types
import weakref
from array import array
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from operator import is_, setitem
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sordina.errors import Unsupported
from sordina.gradients._hooks import WRAPPING, own_class
from sordina.gradients._kept_state import (
    _foreign,
    _installed,
    _methods,
    _named,
    _slots,
    attributes_of,
    classes_named,
    inside_generator,
)

MOST = 200_000
"""Models that lead to more things are refused; plain data are one each (`_data`)."""
MANY = 16
"""Containers of so many items are plain data if nothing else is in them."""
SIMPLE = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device, torch.Size),
    *(Enum, Decimal, Fraction, range, date, time, timedelta),
)
"""Kinds that hold on to nothing."""
_USUAL = {type(None), bool, int, float, str}
_LEAVES = (
    *SIMPLE,
    bytearray,
    array,
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    random.Random,
    torch.Generator,
)
NEVER_WALKED = {"sordina", "logging", "threading", "_thread", "multiprocessing", "concurrent", "asyncio", "importlib"}
"""Packages of whose objects nothing is looked at: they lead to half of a program."""
_PYTORCHS = frozenset(vars(nn.Module()))
_HOOKS = frozenset(key for key in _PYTORCHS if "hooks" in key and isinstance(vars(nn.Module())[key], dict))
"""Attributes that every module has."""
_FOR_ALL = [each for key, each in vars(nn.modules.module).items() if "_global_" in key and isinstance(each, dict)]
Put = tuple[Any, ...]
"""A function and its arguments, but for the last: what is put there."""


def _nowhere(_: Any) -> None:
    """What is there is looked after elsewhere."""


def _never(_: Any) -> None:
    raise Unsupported(
        "samples mix: a hook, or the defaults of a function, of the model hold values of samples, so that a loss which "
        "looks there is another one for every batch: return what the loss needs, with a row for each sample."
    )


NOWHERE: Put = (_nowhere,)
NEVER: Put = (_never,)


class Place(NamedTuple):
    """Something that a model leads to."""

    name: str
    """Of the attributes on the way; items of containers have the container's."""
    value: Any
    put: Put
    """Puts something else in the place of ``whole``."""
    whole: Any
    """The value, or what cannot be changed and holds it: a tuple, an iterator."""
    direct: bool = False
    """Whether it is itself an attribute of a module."""

    def fill(self, new: Any) -> None:
        """Put ``new`` in the place of ``whole``."""
        how, *where = self.put
        how(*where, new)


def places(model: nn.Module, only: Collection[str] | None = None, given: Collection[int] = ()) -> Iterator[Place]:
    """What ``model`` leads to, nearest first; where all is asked for, of plain data what tells them from others.

    Args:
        model: Where to begin.
        only: Names beyond which nothing is asked for; None stands for all.
        given: The numbers (``id``) of containers in which nothing may be changed: somebody else's.
    """
    wanted = None if only is None else {name[: dot.start()] for name in only for dot in re.finditer(r"\.|$", name)}
    seen = {id(module): module for module in model.modules()}
    classes = set[type]()
    todo = deque(each for prefix, module in model.named_modules() for each in _of_module(prefix, module, classes))
    for table in _FOR_ALL:
        todo.extend(Place("hooks of all modules", hook, NEVER, hook) for hook in table.values())
    while todo:
        place = todo.popleft()
        if len(seen) > MOST:
            raise Unsupported(TOO_MANY.format(MOST, place.name))
        if wanted is not None and place.name not in wanted:
            continue
        yield place
        value = place.value
        if is_simple(value):
            continue
        if isinstance(value, Tensor):
            if value.is_leaf and value.grad is not None:
                todo.append(Place(f"{place.name}.grad", value.grad, (_put_gradient, value), value.grad))
            for key, each in attributes_of(value).items():
                todo.append(Place(f"{place.name}.{key}", each, (setitem, vars(value), key), each))
        elif isinstance(value, Future) or isinstance(getattr(type(value), "get_obj", None), types.FunctionType):
            with suppress(Exception):  # it failed, or takes longer
                told = value.result(1) if isinstance(value, Future) else bytes(value.get_obj())
                todo.append(place._replace(value=told, direct=False))
        elif isinstance(value, type):
            if not _installed(value.__module__):
                todo.extend(_of_kind(f"{place.name}.", value, classes))
        elif not isinstance(value, _LEAVES) and (
            type(value).__module__.partition(".")[0] not in NEVER_WALKED or isinstance(value, threading.local)
        ):
            changes = not isinstance(value, (tuple, frozenset, types.MethodType, types.BuiltinFunctionType, partial))
            if id(value) not in seen or not changes:
                seen[id(value) if changes else len(seen)] = value  # held, so that no other gets its number
                if wanted is None and (data := _data(value)) is not None:
                    todo.append(Place(place.name, data, NOWHERE, value))
                    continue
                fixed = id(value) in given
                todo.extend(
                    each._replace(put=place.put, whole=place.whole) if fixed else each
                    for each in _inside(place, classes)
                )


TOO_MANY = (
    "the model leads to more than {} objects (the last one looked at is in {!r}), so nobody can tell what a forward "
    "pass leaves there for the loss to read: keep large tables in tensors, arrays, or containers of plain numbers and "
    "texts, and data sets outside of the model."
)


def _data(value: Any) -> bytes | None:
    """What tells a large container of numbers, texts and containers from others; None for anything else."""
    if type(value) not in (list, tuple, dict, set, frozenset) or len(value) < MANY:
        return None
    try:
        return blake2b(marshal.dumps(value, 2)).digest()
    except ValueError:  # something else is in it
        return None


def is_simple(value: Any) -> bool:
    """Whether ``value`` holds on to nothing, or is a tuple of such things."""
    kind = type(value)
    if kind in _USUAL or isinstance(value, SIMPLE):
        return True
    return kind is tuple and all(type(each) in _USUAL or isinstance(each, SIMPLE) for each in value)


def _of_module(prefix: str, module: nn.Module, classes: set[type], part: bool = True) -> Iterator[Place]:
    """What a module holds: attributes, buffers, parameters (for what is put on them), hooks, and its class.

    Buffers of the ``part`` of a model are looked after elsewhere, but not those of a module that an attribute keeps.
    """
    dot, own = f"{prefix}." if prefix else "", vars(module)
    for key, value in own.items():
        if key not in _PYTORCHS:
            yield Place(dot + key, value, (setitem, own, key), value, True)
        elif value and key in _HOOKS:
            for hook in value.values():
                yield Place(dot + key, hook, NEVER, hook)
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        put: Put = NOWHERE if part or name not in module._buffers else (setitem, module._buffers, name)
        yield Place(dot + name, tensor, put, tensor)
    if (kind := type(module)) is not own_class(module):  # the engine's, with what a forward pass puts there
        for key, value in vars(kind).items():
            if not key.startswith("__") and key not in WRAPPING:
                yield Place(dot + key, value, (setattr, kind, key), value)
        yield Place(f"{dot}forward", vars(kind)[WRAPPING[0]], NEVER, None)
    yield from _of_kind(dot, own_class(module), classes)


def _of_kind(dot: str, kind: type, classes: set[type]) -> Iterator[Place]:
    """What is held by a class that is not PyTorch's, and what its methods name, once."""
    for each in kind.__mro__:
        if each in classes or _foreign(each.__module__):
            continue
        classes.add(each)
        for key, value in vars(each).items():
            if not key.startswith("__") and not isinstance(value, _OF_CLASSES):
                yield Place(dot + key, value, (setattr, each, key), value)
        for method in _methods(each):
            yield from _of_function(f"{dot}{method.__name__}", method)


_OF_CLASSES = (
    *(types.FunctionType, types.MemberDescriptorType, types.GetSetDescriptorType, property, staticmethod, classmethod),
    *(type, type(None)),
)


def _of_function(name: str, function: types.FunctionType) -> Iterator[Place]:
    """What a function closes over, its defaults, and the globals that it names if it is the user's."""
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield Place(f"{name}.{key}", cell.cell_contents, (setattr, cell, "cell_contents"), cell.cell_contents)
    for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield Place(name, each, NEVER, each)
    for where, key, each in () if _installed(function.__module__) else _named(function):
        if isinstance(where, type):
            yield Place(f"{name}.{where.__name__}.{key}", each, (setattr, where, key), each)
        elif isinstance(where, dict):
            yield Place(f"{name}.global {key}", each, (setitem, where, key), each)
    for kind in () if _installed(function.__module__) else classes_named(function):
        yield Place(f"{name}.{kind.__name__}", kind, NOWHERE, kind)


def _inside(place: Place, classes: set[type]) -> Iterator[Place]:
    """What is held by the value of a place."""
    name, value = place.name, place.value
    if isinstance(value, nn.Module):
        yield from _of_module(name, value, classes, part=False)
        yield from (Place(f"{name}.{key}", each, NOWHERE, each) for key, each in value._modules.items())
        return
    found = list(_held(name, value))
    yield from found
    if isinstance(value, types.FunctionType):
        return
    if not _foreign(type(value).__module__):
        yield from _of_kind(f"{name}.", type(value), classes)
    known = {id(each.value) for each in found} | {id(getattr(value, "__dict__", None)), id(type(value))}
    if isinstance(value, dict):
        yield from (place._replace(name=f"{name}.keys()", value=key, direct=False) for key in value)
        known |= set(map(id, value))
    if isinstance(value, _RAW):
        yield place._replace(value=bytes(value), direct=False)
    others = [value()] if isinstance(value, weakref.ref) else inside_generator(value)
    for each in gc.get_referents(value) if others is None else others:
        if id(each) not in known and not isinstance(each, (type, types.ModuleType)):
            yield place._replace(value=each, direct=False)


_RAW = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union, memoryview)
"""Numbers of C."""


def _held(name: str, value: Any) -> Iterator[Place]:
    """What is held where it can be changed."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(name, value)
    elif isinstance(value, (list, deque)):
        yield from (Place(name, each, (setitem, value, n), each) for n, each in enumerate(value))
    elif isinstance(value, set):
        yield from (Place(name, each, (_exchange, value, each), each) for each in value)
    elif isinstance(value, dict):
        yield from (Place(name, each, (dict.__setitem__, value, key), each) for key, each in value.items())
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield from (Place(name, each, (setitem, value.flat, n), each) for n, each in enumerate(value.flat))
    elif isinstance(value, ContextVar):
        with suppress(LookupError):  # nothing is in it yet
            yield Place(name, value.get(), (value.set,), value.get())
    elif isinstance(value, types.CellType):
        with suppress(ValueError):
            yield Place(name, value.cell_contents, (setattr, value, "cell_contents"), value.cell_contents)
    with suppress(Exception):  # whatever an object does when it is asked
        own = vars(value)
        yield from (Place(f"{name}.{key}", each, (setitem, own, key), each) for key, each in own.items())
    with suppress(Exception):
        for slot in _slots(value):
            each = getattr(value, slot)
            yield Place(f"{name}.{slot}", each, (object.__setattr__, value, slot), each)


def _exchange(held: set[Any], old: Any, new: Any) -> None:
    held.discard(old)
    held.add(new)


def _put_gradient(tensor: Tensor, gradient: Any) -> None:
    tensor.grad = gradient if isinstance(gradient, Tensor) else None


class Stillness:
    """Tells quickly that a model leads to the very things that it led to before, where that can be told."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._modules = model, list(model.modules())
        kinds = {kind for module in self._modules for kind in type(module).__mro__ if not _foreign(kind.__module__)}
        methods = [method for kind in kinds for method in _methods(kind)]
        values = [place.value for place in places(model) if not is_simple(place.value)]
        self._data = [(each, data) for each in values if (data := _data(each)) is not None]
        self._then = [(each, _things(each)) for each in (*self._modules, *kinds, *methods, *values)]

    def holds(self) -> bool:
        """Whether they are the same for certain; False says nothing."""
        same = _same(list(self._model.modules()), self._modules)
        same = same and all(_same(_things(value), things) for value, things in self._then)
        return same and all(_data(value) == data for value, data in self._data)


def _things(value: Any) -> list[Any] | None:
    """What a value holds on to, by which a change shows; None if one may not show."""
    if isinstance(value, nn.Module):
        own = vars(value)
        tables = [own["_parameters"], own["_buffers"], *(own[key] for key in _HOOKS)]
        return [*own.values(), *(each for table in tables for each in table.values())]
    if isinstance(value, Tensor):
        grad = value.grad if value.is_leaf else None
        return None if value.is_inference() else [value._version, grad, *vars(value).values()]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [*cells, *(each for _, _, each in _named(value)), *vars(value).values()]
    if isinstance(value, type):
        return list(vars(value).values())
    if type(value) in (list, tuple):
        return list(value)
    return [*value, *value.values()] if type(value) is dict else None


def _same(one: list[Any] | None, two: list[Any] | None) -> bool:
    return one is not None and two is not None and len(one) == len(two) and all(map(is_, one, two))
