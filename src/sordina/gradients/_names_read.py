"""The code of a model, and which names it reads: an attribute that nobody reads switches nothing.

Training loops leave counts, histories and results on a model for themselves; none of that is a reason to study it.
"""

from __future__ import annotations

import dis
import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from functools import cache
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from sordina.gradients._hooks import hooks_of, own_class
from sordina.gradients._kept_state import _foreign, _installed
from sordina.gradients._reach import NEVER_WALKED, is_simple

ALWAYS = frozenset({"training", "forward"})
_BY_ANY_NAME = frozenset(
    {
        *("getattr", "hasattr", "vars", "dir", "__dict__", "attrgetter", "methodcaller", "__getattribute__"),
        *("__getattr__", "getmembers", "getattr_static", "eval", "exec", "locals", "globals", "import_module"),
    }
)
"""Ways to attributes whose names are not in the code."""
_MOST = 50_000
"""So many things are looked at."""


class Code(NamedTuple):
    """The code that may run when a model is called."""

    functions: list[types.FunctionType]
    """The user's."""
    names: frozenset[str] | None
    """Of attributes that it may read; None if it may read any."""


def code_of(model: nn.Module) -> Code:
    """The code of the classes of a model's modules, of its hooks, and of all that these hold or name.

    The way there leads through objects of any kind. Of libraries it is the functions in the files of its classes.
    """
    todo: list[Any] = list(model.modules())
    functions, found, seen, any_name = list[types.FunctionType](), set(ALWAYS), dict[int, Any](), False
    while todo:
        each = todo.pop()
        if id(each) in seen or is_simple(each) or isinstance(each, (Tensor, np.ndarray)):
            continue
        seen[id(each)] = each  # held, so that no other gets its number
        if len(seen) > _MOST:
            return Code(functions, None)
        any_name = any_name or isinstance(each, (attrgetter, methodcaller))
        code = _code(each)
        if code is None:
            todo += _held(each)
            continue
        function = _function(each)
        module = str(_asked(each, "__module__") or _asked(function, "__module__", ""))
        if not _foreign(module):
            todo += [*_kept(function), getattr(each, "__self__", None)]
        if _installed(module):
            found |= _all_names(code)
            continue
        if isinstance(function, types.FunctionType):
            functions.append(function)
        names, reached, imported = _loaded(code)
        found |= names
        any_name = any_name or bool((names | reached) & _BY_ANY_NAME) or not all(map(_installed, imported))
        todo += _named(function, names, reached)
        todo += [sys.modules.get(name) for name in imported]
    return Code(functions, None if any_name else frozenset(found))


def _held(value: Any) -> Iterable[Any]:
    """What an object holds on to, and the classes whose code runs for it."""
    if isinstance(value, nn.Module):
        kinds = [kind for kind in own_class(value).__mro__ if kind not in (nn.Module, object)]
        for kind in kinds:
            yield from vars(kind).values()
            library = _installed(kind.__module__) and not kind.__module__.startswith("torch.")
            if library and (file := sys.modules.get(kind.__module__)) is not None:
                yield from (each for each in vars(file).values() if isinstance(each, types.FunctionType))
        yield from (hook for table in hooks_of(value) for hook in table.values())
        yield from vars(value).values()
    elif isinstance(value, type):
        for kind in (*value.__mro__, type(value)):
            yield from () if _installed(kind.__module__) else vars(kind).values()
    elif isinstance(value, types.ModuleType):
        yield from () if _installed(value.__name__) else vars(value).values()
    elif isinstance(value, weakref.ref):
        yield value()
    elif type(value).__module__.partition(".")[0] not in NEVER_WALKED and not isinstance(value, _CLOSED):
        yield type(value)
        yield from gc.get_referents(value)


_CLOSED = (types.CodeType, types.FrameType)


def _kept(function: Any) -> Iterator[Any]:
    """What a function closes over, its defaults and attributes."""
    yield from (cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell))
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()
    yield from getattr(function, "__dict__", {}).values()


def _named(function: Any, names: frozenset[str], reached: frozenset[str]) -> Iterator[Any]:
    """What a function of the user's names: globals, and what is in modules of the user's."""
    space: dict[str, Any] = getattr(function, "__globals__", {})
    for value in (space[name] for name in reached if name in space):
        if isinstance(value, types.ModuleType):
            if not _installed(value.__name__):
                yield from (vars(value)[each] for each in names & vars(value).keys())
        else:
            yield value


def _function(value: Any) -> Any:
    """The function behind a method, a property or a decorated function."""
    if isinstance(value, property):
        value = value.fget
    return _asked(value, "__func__", value)


def _asked(value: Any, name: str, otherwise: Any = None) -> Any:
    """An attribute of an object, which may answer anything."""
    try:
        return getattr(value, name, otherwise)
    except Exception:
        return otherwise


def _code(value: Any) -> types.CodeType | None:
    code = None if isinstance(value, type) else _asked(_function(value), "__code__")
    return code if isinstance(code, types.CodeType) else None


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A piece of code and all that is defined in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)


@cache
def _all_names(code: types.CodeType) -> frozenset[str]:
    return frozenset(name for each in _codes(code) for name in (*each.co_names, *_texts(each.co_consts)))


@cache
def _loaded(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The attributes that a piece of code loads, texts in it among them, the global names, and the modules."""
    names, reached, imported = set[str](), set[str](), set[str]()
    for each in _codes(code):
        names |= set(_texts(each.co_consts))
        for one in dis.get_instructions(each):
            if one.opname == "IMPORT_NAME":
                imported.add(str(one.argval))
            elif one.opname.endswith(("_GLOBAL", "_NAME")):
                reached.add(str(one.argval))
            elif one.opname.startswith("LOAD_") and one.opname.endswith(("_ATTR", "_METHOD")):
                names.add(str(one.argval))
    return frozenset(names), frozenset(reached), frozenset(imported)
