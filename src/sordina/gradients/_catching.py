"""Errors that code of one's own catches: an error of one sample would decide for all of them.

Not only a forward pass can catch them: so can what it calls. All code of the user's that it can reach by name is read:
functions, methods, what decorators wrap, hooks, and context managers. Libraries that were installed are left out, but
for those that the model's own classes, or the loss, come from.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from sordina.gradients import _kept_state
from sordina.gradients._kept_state import _NEVER_AGAIN, _foreign, _looked_into, _slots

CATCHES = "errors are caught in {}: who gets one may decide for all"
MOST = 20_000
"""So many objects are looked at."""
KNOWN = {
    "accelerate", "bitsandbytes", "diffusers", "einops", "keras", "lightning", "lightning_fabric", "monai",
    "open_clip", "peft", "pytorch_lightning", "sentence_transformers", "sklearn", "timm", "torch_geometric",
    "torchaudio", "torchmetrics", "torchtext", "torchvision", "transformers",
}  # fmt: skip
"""Libraries that are known well enough: what they catch is no error of a sample."""
_CONTAINERS = (list, tuple, set, frozenset)
_CALLED = {"forward", "__call__", "__code__"}


def catching(*holders: Any) -> str:
    """Where code of one's own catches errors that these functions, objects and modules can reach; empty if nowhere.

    Args:
        holders: Losses, or models.
    """
    walk = _Walk(holders)
    return CATCHES.format(walk.found) if walk.found else ""


class _Walk:
    """A walk through what code can reach: functions that it names, and methods of these names."""

    def __init__(self, holders: tuple[Any, ...]) -> None:
        self.found = ""
        """What catches errors."""
        self._names = set(_CALLED)
        """All names in the code that was read."""
        self._own = set(_packages(holders))
        """Packages whose code is read though they are installed."""
        self._seen: dict[int, Any] = {}
        self._todo: list[Any] = [*holders, _global_forward_hooks, _global_forward_pre_hooks]
        self._methods: dict[str, list[Any]] = {}
        """By name the methods that nobody has named so far."""
        while self._todo and not self.found and len(self._seen) < MOST:
            value = self._todo.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value  # held, so that no other gets its number
                self._todo += self._reached(value)

    def _reached(self, value: Any) -> list[Any]:
        """What can be reached from ``value`` at once."""
        if value is contextlib.suppress or isinstance(value, contextlib.suppress):
            self.found = "contextlib.suppress"
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, types.FunctionType):
            return [*self._of_function(value)]
        if isinstance(value, property):
            return [value.fget]
        if isinstance(value, type):
            return self._of_class(value, made=not issubclass(value, nn.Module))
        if isinstance(value, Mapping):
            return list(value.values())
        if isinstance(value, _CONTAINERS):
            return list(value)
        inner = [each for name in ("__func__", "__wrapped__") if (each := _attribute(value, name)) is not None]
        if isinstance(value, nn.Module) or _looked_into(value):
            slots = [getattr(value, name) for name in _slots(value)]
            own = [each for name, each in _dictionary(value).items() if name not in ("_parameters", "_buffers")]
            return [*inner, *own, *slots, *self._of_class(type(value), made=False)]
        if isinstance(value, functools.cached_property):
            inner.append(value.func)
        return inner

    def _installed(self, module: str) -> bool:
        """Whether a module is of a library that is left out."""
        return module.partition(".")[0] not in self._own and _kept_state._installed(module)

    def _of_function(self, function: types.FunctionType) -> Iterator[Any]:
        """What a function can reach; of a library's only what it wraps."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                yield None if name == "__class__" else cell.cell_contents
        yield getattr(function, "__wrapped__", None)
        if self._installed(function.__globals__.get("__name__", "")):
            return
        if _catches(function.__code__) or (function.__name__ == "__exit__" and _answers(function.__code__)):
            self.found = function.__qualname__
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        names = _names(function.__code__)
        fresh, self._names = names - self._names, self._names | names
        for name in fresh:
            yield from self._methods.pop(name, ())
        reached = names if names & {"globals", "__name__"} else set(_kept_state._names(function.__code__)[0])
        for name in names:  # an attribute may have the name of a function
            each = function.__globals__.get(name) if name in reached else None
            each = sys.modules.get(name) if each is None else each
            if not isinstance(each, types.ModuleType):
                yield each
            elif each is contextlib or not self._installed(each.__name__):
                yield from (vars(each)[inner] for inner in names & vars(each).keys())

    def _of_class(self, kind: type, made: bool) -> list[Any]:
        """The methods of a class that are called by a name that was read, or by no name; others wait for theirs.

        Those that make an object count if it may be ``made`` on the way.
        """
        reached, never = list[Any](), _ASIDE if made else _ASIDE | _NEVER_AGAIN
        for each in kind.__mro__:
            for name, method in vars(each).items() if not self._installed(each.__module__) else ():
                if name in self._names or (name.startswith("__") and name.endswith("__") and name not in never):
                    reached.append(method)
                else:
                    self._methods.setdefault(name, []).append(method)
        return reached


def _packages(holders: tuple[Any, ...]) -> Iterator[str]:
    """The packages that models and losses come from, but for those that are known."""
    for holder in holders:
        kinds = {type(each) for each in holder.modules()} if isinstance(holder, nn.Module) else {type(holder)}
        names = {each.__module__ for kind in kinds for each in kind.__mro__} | {getattr(holder, "__module__", "")}
        yield from (name for each in names if (name := str(each).partition(".")[0]) not in KNOWN and not _foreign(name))


_ASIDE = {"__dict__", "__weakref__", "__module__", "__doc__", "__repr__", "__str__", "__del__", "__getstate__"}
_ASIDE |= {"__setstate__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__", "__annotations__"}
"""What no forward pass calls unless by its name."""


def _attribute(value: Any, name: str) -> Any:
    with contextlib.suppress(Exception):
        return getattr(value, name, None)
    return None


def _dictionary(value: Any) -> dict[str, Any]:
    return _attribute(value, "__dict__") or {}


def _names(code: types.CodeType) -> set[str]:
    """All names in some code, and what could be one."""
    texts = {each for each in code.co_consts if isinstance(each, str) and each.isidentifier()}
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return texts.union(code.co_names, code.co_freevars, *map(_names, inner))


def _catches(code: types.CodeType) -> bool:
    """Whether some code, or what is defined in it, goes on after an error."""
    names = [each.opname for each in dis.get_instructions(code)]
    typed = {"CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"} & set(names)
    bare = any(pair == ("PUSH_EXC_INFO", "POP_TOP") for pair in itertools.pairwise(names))
    left = sum(one == "POP_EXCEPT" and two != "RERAISE" for one, two in itertools.pairwise(names))
    returns = left > names.count("WITH_EXCEPT_START")  # "finally: return"
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return bool(typed or bare or returns or any(map(_catches, inner)))


def _answers(code: types.CodeType) -> bool:
    """Whether some code returns anything but None: of ``__exit__`` that may mean that an error is over."""
    steps = list(dis.get_instructions(code))
    constants = [each.argval for each in steps if each.opname == "RETURN_CONST"]
    before = [one for one, two in itertools.pairwise(steps) if two.opname == "RETURN_VALUE"]
    constants += [each.argval if each.opname == "LOAD_CONST" else True for each in before]
    return any(each is not None and each is not False for each in constants)
