"""Which names the code of a model reads: an attribute that nobody reads switches nothing.

Training loops leave counts, histories and results on a model for themselves; none of that is a reason to study it.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from torch import nn

from sordina.gradients._hooks import hooks_of, own_class
from sordina.gradients._kept_state import _installed

ALWAYS = frozenset({"training", "forward"})
_BY_ANY_NAME = frozenset(
    {
        *("getattr", "vars", "__dict__", "attrgetter", "methodcaller", "__getattribute__", "__getattr__"),
        *("eval", "exec", "locals", "globals"),
    }
)
"""Ways to attributes whose names are not in the code."""
_MOST = 20_000
"""So many pieces of code are read."""


def names_read(model: nn.Module) -> frozenset[str] | None:
    """The names of attributes that the code of a model may read; None if it may read any.

    Read is the code of the classes of its modules, of its hooks and of what these name, where it is the user's; of
    libraries, all that stands in the same files.
    """
    modules = list(model.modules())
    kinds = dict.fromkeys(
        kind for each in modules for kind in own_class(each).__mro__ if kind not in (nn.Module, object)
    )
    todo: list[Any] = [hook for each in modules for table in hooks_of(each) for hook in table.values()]
    todo += [one for each in modules for value in vars(each).values() for one in _inside(value)]
    for kind in kinds:
        todo += vars(kind).values()
        library = _installed(kind.__module__) and not kind.__module__.startswith("torch.")
        if library and (file := sys.modules.get(kind.__module__)) is not None:
            todo += vars(file).values()
    found, seen = set(ALWAYS), set[int]()
    while todo:
        code = _code(each := todo.pop())
        if code is None:
            kind = each if isinstance(each, type) else type(each)
            if id(kind) not in seen and not _installed(kind.__module__):
                seen.add(id(kind))
                todo += [
                    value for one in kind.__mro__ if not _installed(one.__module__) for value in vars(one).values()
                ]
            continue
        if id(code) in seen:
            continue
        seen.add(id(code))
        own = not _installed(getattr(each, "__module__", None) or getattr(_function(each), "__module__", ""))
        names, reached = _loaded(code) if own else (_all_names(code), frozenset[str]())
        if len(seen) > _MOST or (own and (names | reached) & _BY_ANY_NAME):
            return None
        found |= names
        if own:
            todo += _named(_function(each), names, reached)
    return frozenset(found)


def _named(function: Any, names: frozenset[str], reached: frozenset[str]) -> Iterator[Any]:
    """What a function of the user's closes over, its defaults, and what it names, also inside of containers."""
    space: dict[str, Any] = getattr(function, "__globals__", {})
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    held += getattr(function, "__defaults__", None) or ()
    for value in (*held, *(space[name] for name in reached if name in space)):
        if isinstance(value, types.ModuleType):
            if not _installed(value.__name__):
                yield from (vars(value)[name] for name in names & vars(value).keys())
        else:
            yield from _inside(value)


def _inside(value: Any) -> Iterable[Any]:
    """The items of a container, or the value."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple, set)) else (value,)


def _function(value: Any) -> Any:
    """The function behind a method, a property or a decorated function."""
    if isinstance(value, property):
        value = value.fget
    return getattr(value, "__func__", value)


def _code(value: Any) -> types.CodeType | None:
    code = getattr(_function(value), "__code__", None)
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
def _loaded(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The attributes that a piece of code loads, texts in it among them, and the global names."""
    names, reached = set[str](), set[str]()
    for each in _codes(code):
        names |= set(_texts(each.co_consts))
        for one in dis.get_instructions(each):
            if one.opname.endswith(("_GLOBAL", "_NAME")):
                reached.add(str(one.argval))
            elif one.opname.startswith("LOAD_") and one.opname.endswith(("_ATTR", "_METHOD")):
                names.add(str(one.argval))
    return frozenset(names), frozenset(reached)
