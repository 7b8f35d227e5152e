"""Another forward pass for one module, without a trace in what is copied, saved or left behind.

The module becomes an instance of a subclass made for it alone. A copy, and what is pickled, is of the module's own
class again; anything that still reaches the subclass with another module gets that module's own forward pass.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

_OWN_CLASS = "_sordina_own_class"
_OWNER = "_sordina_owner"
_OWN_FORWARD = "_sordina_own_forward"


def wrap(module: nn.Module, forward: Callable[..., Any], owner: object) -> None:
    """Let ``module`` run ``forward`` (called without the module) on behalf of ``owner``, until `unwrap`."""
    kind = type(module)
    own_forward = module.__dict__.pop("forward", None)

    @wraps(kind.forward)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self is module else kind.forward(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        ours = self.__class__
        self.__class__ = kind
        try:
            made, arguments, state, *rest = (*self.__reduce_ex__(protocol), None, None)[:5]
        finally:
            self.__class__ = ours
        if made is copyreg.__newobj__:  # type: ignore[attr-defined]
            made = object.__new__
        if own_forward is not None and isinstance(state, dict):
            state = {**state, "forward": own_forward}
        return made, arguments, state, *rest

    members = {
        "forward": run,
        "__reduce_ex__": reduce,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        _OWN_CLASS: kind,
        _OWN_FORWARD: own_forward,
        _OWNER: owner,
    }
    module.__class__ = type(kind.__name__, (kind,), members)


def unwrap(module: nn.Module) -> object | None:
    """Give a module its own class and forward pass back; return on whose behalf it ran another, if it did."""
    members = type(module).__dict__
    if _OWN_CLASS not in members:
        return None
    module.__class__ = members[_OWN_CLASS]
    if members[_OWN_FORWARD] is not None:
        module.__dict__["forward"] = members[_OWN_FORWARD]
    owner: object = members[_OWNER]
    return owner


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module, whatever forward pass it runs."""
    kind: type[nn.Module] = type(module).__dict__.get(_OWN_CLASS, type(module))
    return kind


def wrapped_by(module: nn.Module, owner: object) -> bool:
    """Whether a module runs a forward pass on behalf of ``owner``."""
    return type(module).__dict__.get(_OWNER) is owner
