"""Arguments of public functions and constructors, checked against their annotations before anything else happens.

A wrong argument is then one `InvalidInput` that names it, instead of whatever the code happens to meet first, or
nothing at all: a name such as ``"replace-one"`` in the place of an enumeration's member would pass every ``is`` unseen.

===================  ===============================================================================================
annotation           what passes
===================  ===============================================================================================
``float``            a real number that is not NaN; not a truth value, not a text
``int``              a whole number, also as 4.0; not a truth value
``str``, ``bool``    one
``Path``             a path or a text
an enumeration       a member, or the value of one, which becomes the member
a class, a protocol  an instance (a protocol that cannot be checked passes)
a union              what passes one of its parts; if all are classes of ours, the refusal is `Unsupported`
anything else        anything
===================  ===============================================================================================
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from sordina.errors import InvalidInput, Unsupported

_T = TypeVar("_T", bound=Callable[..., Any])
_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "True or False", Path: "a path"}


def checked(target: _T) -> _T:
    """Check the arguments of a function, or of a class's constructor, whenever it is called.

    Args:
        target: The function or class; a class keeps its identity.
    """
    if not inspect.isclass(target):
        return typing.cast(_T, _checking(target, target))
    made = target.__init__
    type.__setattr__(target, "__init__", _checking(made, made))
    return target


def _checking(call: Callable[..., Any], told: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)
    hints: dict[str, Any] = {}

    @functools.wraps(told)
    def checking(*args: Any, **kwargs: Any) -> Any:
        if not hints:
            hints.update(_hints(call))
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if name in hints and kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                bound.arguments[name] = _passed(name, value, hints[name])
        return call(*bound.args, **bound.kwargs)

    return checking


def _hints(call: Callable[..., Any]) -> dict[str, Any]:
    """What the annotations say; nothing where they name what is only imported for type checkers."""
    try:
        return typing.get_type_hints(call) | {"": None}
    except NameError:
        return {"": None}


def _passed(name: str, value: Any, wanted: Any) -> Any:
    """``value`` as the function shall see it."""
    options = _options(wanted)
    for option in options:
        if inspect.isclass(option) and issubclass(option, Enum) and isinstance(value, str):
            members = [member for member in option if member.value == value]
            if members:
                return members[0]
        elif _passes(value, option):
            return value
    expected = " or ".join(dict.fromkeys(_word(option) for option in options))
    refusal = Unsupported if _closed(options) else InvalidInput
    raise refusal(f"{name} must be {expected}, got {_shown(value)}.")


def _closed(options: list[Any]) -> bool:
    """Whether they are a list of kinds that we know, such as the events: another kind may be sound, but is unknown."""
    return len(options) > 1 and all(getattr(option, "__module__", "").startswith("sordina.") for option in options)


def _options(wanted: Any) -> list[Any]:
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return [part for option in typing.get_args(wanted) for part in _options(option)]
    return [wanted]


def _passes(value: Any, wanted: Any) -> bool:
    if wanted in (float, int):
        number = _real(value)
        return number is not None and (wanted is float or number.is_integer())
    if wanted is Path:
        return isinstance(value, str | Path)
    kind = typing.get_origin(wanted) or wanted
    if kind in (collections.abc.Callable, Callable):
        return callable(value)
    if not inspect.isclass(kind) or kind is Any:
        return True
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be checked
        return True


def _real(value: Any) -> float | None:
    """``value`` as a float, if it is a real number that has one and not NaN."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


def _word(wanted: Any) -> str:
    if wanted is type(None):
        return "None"
    kind = typing.get_origin(wanted) or wanted
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return _WORDS.get(kind) or f"a {getattr(kind, '__name__', str(kind))}"


def _shown(value: Any) -> str:
    """A number or a short name as it is, anything else by its type: it may hold somebody's data."""
    if value is None or isinstance(value, bool | int | float | complex):
        return repr(value)[:40]
    return f"{value[:40]!r}" if isinstance(value, str) else f"a {type(value).__name__}"
