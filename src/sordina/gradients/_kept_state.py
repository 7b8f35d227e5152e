"""What objects of the user's keep between two calls: the history test compares it, and trials put it back.

A loss or a model that remembers something of earlier batches (a running mean, a bank of features, weights that follow
the losses) carries data from one step to the next, outside of any budget. A count of calls is no such thing.
"""

from __future__ import annotations

import copy
import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PARTS = {"_parameters", "_buffers", "_modules"}
"""Where a module keeps its own."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_FACTORS = torch.from_numpy(
    np.random.default_rng(random.SystemRandom().getrandbits(64)).integers(-(2**63), 2**63, 1 << 16, dtype=np.int64) | 1
)
"""Odd numbers that nobody knows beforehand."""


def digest(values: Tensor) -> int:
    """A number for ``values``: see `sordina.gradients._rehearsal.fingerprint`."""
    if values.is_complex():
        values = torch.view_as_real(values)
    total, bits = 0, values.contiguous().view(-1).view(_BITS[values.element_size()])
    for piece in torch.split(bits, len(_FACTORS)):
        factors = _FACTORS.to(piece.device)[: len(piece)]
        total = (total * 0x9E3779B97F4A7C15 + int((piece * factors).sum())) % 2**64
    return total


def same(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are equal, no number where the other has none."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all())


def kept_state(holder: Any) -> dict[str, Any]:
    """What ``holder`` keeps, by the names of its attributes: plain values that compare, and copies of tensors.

    Of a module the attributes of all its modules without parameters; buffers are there as ``"buffer NAME"``. Of a
    function what it closes over, and the globals that it names.

    >>> from types import SimpleNamespace
    >>> kept_state(SimpleNamespace(count=1, inner=SimpleNamespace(seen=[2.0])))
    {'count': 1, 'inner.seen': ('list', [2.0])}
    """
    found: dict[str, Any] = {}
    _gather(holder, "", found, set(), _DEEP)
    return found


def differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """The first name whose value is not the same in both states; empty if there is none."""
    names = dict.fromkeys((*one, *two))
    return next((name for name in names if not _alike(one.get(name, _GONE), two.get(name, _GONE))), "")


_DEEP, _MOST, _HUGE, _GONE = 6, 50_000, 1 << 20, "is not there"
"""So deep is looked, at so many things; of tensors with more values than that a number stands for them."""
_OPAQUE = sys.stdlib_module_names | {"torch", "sordina", "numpy"}
"""Packages whose objects and functions are not looked into."""


def _gather(holder: Any, prefix: str, found: dict[str, Any], seen: set[int], deep: int) -> None:
    holder = holder.__self__ if isinstance(holder, types.MethodType) else holder
    if id(holder) in seen or not deep or len(found) > _MOST:
        return
    seen.add(id(holder))
    modules = isinstance(holder, nn.Module)
    if modules:
        found |= {f"buffer {prefix}{name}": _plain(each, seen, 1) for name, each in holder._buffers.items()}
    for name, each in _held(holder).items():
        if isinstance(each, nn.Module) or _looked_into(each):
            _gather(each, f"{prefix}{name}.", found, seen, deep - (not modules))
        elif not isinstance(each, nn.Parameter):
            found[prefix + name] = _plain(each, seen, deep - 1)


def _held(holder: Any) -> dict[str, Any]:
    """What ``holder`` holds, by name, if it is something that is looked into."""
    if isinstance(holder, functools.partial):
        more = dict(enumerate(holder.args)) | holder.keywords
        return {"func": holder.func, **{str(name): each for name, each in more.items()}}
    if isinstance(holder, types.FunctionType):
        return {name: each for _, name, each in _named(holder)} | vars(holder)
    held = {} if isinstance(holder, nn.Module) else {name: getattr(holder, name) for name in _slots(holder)}
    for kind in reversed(type(holder).__mro__):
        held |= {name: each for name, each in vars(kind).items() if _of_class(kind, name, each)}
    held |= {name: each for name, each in getattr(holder, "__dict__", {}).items() if not _of_pytorch(holder, name)}
    return held | holder._modules if isinstance(holder, nn.Module) else held


def _of_pytorch(holder: Any, name: str) -> bool:
    """Whether an attribute of a module is PyTorch's own."""
    return isinstance(holder, nn.Module) and (name in PARTS or "hooks" in name or name in _PLUMBING)


_PLUMBING = {"training", "_is_full_backward_hook", "_non_persistent_buffers_set"}


def _slots(holder: Any) -> list[str]:
    names = [getattr(kind, "__slots__", ()) for kind in type(holder).__mro__]
    listed = [name for each in names for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in listed if name not in ("__dict__", "__weakref__") and hasattr(holder, name)]


def _of_class(kind: type, name: str, value: Any) -> bool:
    """Whether an attribute of a class may be what its objects keep in common."""
    kept = (Tensor, np.ndarray, int, float, list, dict, set, deque)
    return not _foreign(kind.__module__) and not name.startswith("__") and isinstance(value, kept)


def _named(function: types.FunctionType) -> Iterator[tuple[Any, str, Any]]:
    """What a function of the user's closes over, the globals it names and its defaults, and where these are held."""
    if _foreign(function.__module__):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield cell, name, cell.cell_contents
    names, codes = set[str](), [function.__code__]
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    for name in sorted(names & function.__globals__.keys()):
        yield function.__globals__, name, function.__globals__[name]
    for number, each in enumerate(function.__defaults__ or ()):
        yield None, f"default {number}", each


def _foreign(package: str | None) -> bool:
    return (package or "").partition(".")[0] in _OPAQUE


def _looked_into(value: Any) -> bool:
    """Whether ``value`` is an object, or a function, of the user's."""
    if isinstance(value, (functools.partial, types.SimpleNamespace)):
        return True
    if isinstance(value, types.MethodType):
        return _looked_into(value.__self__)
    if isinstance(value, types.FunctionType):
        return not _foreign(value.__module__)
    if isinstance(value, (Tensor, np.ndarray, type, Mapping, list, tuple, set, frozenset, deque, enum.Enum)):
        return False
    return not _foreign(type(value).__module__) and (hasattr(value, "__dict__") or bool(_slots(value)))


def _plain(value: Any, seen: set[int], deep: int) -> Any:
    """A copy of ``value`` that compares; of what is not looked into its type."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), np.generic)):
        return value
    kind = type(value).__name__
    if isinstance(value, Tensor):
        with suppress(Exception):  # a sparse one, or one that is not there yet
            return value.detach().clone() if value.numel() <= _HUGE else (value.shape, digest(value.detach()))
        return kind
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, nn.Module) or _looked_into(value):
        inner: dict[str, Any] = {}
        _gather(value, "", inner, seen, deep)
        return inner
    if not isinstance(value, (list, tuple, deque, set, frozenset, Mapping)) or not deep or id(value) in seen:
        return kind
    inside = seen | {id(value)}
    if isinstance(value, Mapping):
        return kind, [(_plain(key, inside, deep - 1), _plain(each, inside, deep - 1)) for key, each in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(_plain(each, inside, deep - 1)) for each in value)
    return kind, [_plain(each, inside, deep - 1) for each in value]


def _alike(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.device == two.device and same(one, two)
    if isinstance(one, np.ndarray):
        return bool(one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes())
    if isinstance(one, Mapping):
        return not differing(one, two)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_alike, one, two))
    return bool(one == two or (one != one and two != two))


class KeptState:
    """What ``holder`` keeps, and all that it holds on to, to be put back in place: trials leave it as it was."""

    def __init__(self, holder: Any) -> None:
        self._places: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {}
        todo = [] if type(holder).__module__.startswith("torch.") else [holder]  # PyTorch's own losses keep nothing
        while todo and len(self._seen) < _MOST:
            value = todo.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value  # held, so that no other gets its number
                todo += self._note(value)

    def restore(self) -> None:
        """Put everything back."""
        for place in self._places:
            place()

    def _note(self, value: Any) -> list[Any]:
        """Remember what is in ``value``, and say what else to look at."""
        put = self._places.append
        if isinstance(value, nn.Parameter):
            return []
        if isinstance(value, Tensor):
            with suppress(Exception):  # larger ones are data, or are refused if they change
                if value.numel() > _HUGE:
                    return []
                put(functools.partial(_refill, value, value.data, value.detach().clone()))
        elif isinstance(value, np.ndarray):
            put(functools.partial(np.copyto, value, value.copy()))
        elif isinstance(value, (list, deque)):
            items = list(value)
            put(value.clear)
            put(functools.partial(value.extend, items))
            return items
        elif isinstance(value, (dict, set)):
            copied = copy.copy(value)
            put(value.clear)
            put(functools.partial(value.update, copied))
            return list(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, (tuple, frozenset)):
            return list(value)
        elif isinstance(value, torch.Generator):
            put(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            put(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            put(functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        elif isinstance(value, nn.Module) or _looked_into(value):
            return self._note_object(value)
        return []

    def _note_object(self, value: Any) -> list[Any]:
        put = self._places.append
        if isinstance(value, types.MethodType):
            return [value.__self__]
        if isinstance(value, types.FunctionType):
            for where, name, each in _named(value):
                if isinstance(where, types.CellType):
                    put(functools.partial(setattr, where, "cell_contents", each))
                elif where is not None and not callable(each):
                    put(functools.partial(where.__setitem__, name, each))
        elif isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        kept = {name: each for name, each in getattr(value, "__dict__", {}).items() if not _of_pytorch(value, name)}
        slots = {name: getattr(value, name) for name in _slots(value)}
        put(functools.partial(_put_back, value, kept, slots))
        for kind in type(value).__mro__:
            for name, each in [pair for pair in vars(kind).items() if _of_class(kind, *pair)]:
                put(functools.partial(setattr, kind, name, each))
        buffers: list[Any] = []
        if isinstance(value, nn.Module):
            table, held = value._buffers, dict(value._buffers)
            put(lambda: [table.pop(name) for name in [*table] if name not in held])
            put(lambda: table.update(held))
            buffers = list(held.values())
        return [*_held(value).values(), *buffers]


def _put_back(value: Any, kept: Mapping[str, Any], slots: Mapping[str, Any]) -> None:
    """The attributes as they were; not those of PyTorch."""
    if own := getattr(value, "__dict__", None):
        for name in [name for name in own if name not in kept and not _of_pytorch(value, name)]:
            del own[name]
    if kept:
        value.__dict__.update(kept)
    for name, each in slots.items():
        object.__setattr__(value, name, each)


def _refill(tensor: Tensor, data: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        if tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape:
            tensor.data = data
        if not same(tensor, values):
            tensor.data.copy_(values)
