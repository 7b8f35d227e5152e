"""Following tensors through a forward pass, also inside nested arguments and results."""

from __future__ import annotations

import copy
import enum
import math
import types
from collections import OrderedDict, UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sordina.errors import Unsupported

# Tensors inside nested arguments and results: lists, tuples, mappings and dataclasses.

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


def opaque(value: Any, seen: set[int] | None = None) -> Any:
    """The first object inside ``value`` that holds tensors or numbers where `tensors_in` does not look; else None."""
    if isinstance(value, (Tensor, nn.Module, str, int, float, complex, bytes, type, type(None))):
        return None
    if isinstance(value, np.ndarray):
        return value
    seen = set() if seen is None else seen
    if id(value) in seen or len(seen) > MOST_OBJECTS:
        return None
    seen.add(id(value))
    if isinstance(value, Mapping):
        inner: Iterable[Any] = value.values()
    elif is_dataclass(value):
        inner = [getattr(value, each.name) for each in fields(value)]
    elif isinstance(value, (list, tuple, set)):
        inner = value
    else:
        hidden = list(getattr(value, "__dict__", {}).values())
        held = next(tensors_in(hidden), None)
        return value if held is not None or any(opaque(each, seen) is not None for each in hidden) else None
    return next((found for each in inner if (found := opaque(each, seen)) is not None), None)


MOST_OBJECTS = 500
"""So many objects inside of arguments are looked at."""


def found_in(value: tuple[Any, Any]) -> list[Tensor]:
    """The tensors among the arguments of a call; most have one, by its place."""
    args, kwargs = value
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return [args[0]]
    return list(tensors_in(value))


def changed(value: Any, change: Change) -> Any:
    """A copy of ``value`` in which every tensor is what ``change`` makes of it, called in the order of `tensors_in`.

    >>> import torch
    >>> changed({"a": [torch.ones(2)], "b": 3}, lambda tensor: tensor + 1)
    {'a': [tensor([2., 2.])], 'b': 3}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return sequence_like(value, [changed(each, change) for each in value])
    if isinstance(value, Mapping):
        return _mapping(value, {key: changed(each, change) for key, each in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for each in fields(value):
            object.__setattr__(twin, each.name, changed(getattr(value, each.name), change))
        return twin
    return value


def sequence_like(value: Any, items: list[Any]) -> Any:
    """A list or tuple of the kind of ``value`` with other items."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(items)
    return kind(*items) if hasattr(value, "_fields") else kind(items)


def _mapping(value: Any, items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    twin = _copied(value)
    if isinstance(value, UserDict):
        twin.data = dict(value.data)
    for key, each in items.items():
        twin[key] = each
    if twin.keys() != items.keys():
        raise Unsupported(
            f"a copy of a {type(value).__name__} has other items than it has, so that nobody knows what is in it: "
            "give all of its fields when it is made, or use a dictionary."
        )
    return twin


def _copied(value: Any) -> Any:
    """A copy of a mapping, also where its class is made in a way of its own, which copying it does not know."""
    try:
        return copy.copy(value)
    except Exception:
        if not isinstance(value, dict):
            raise
        twin: Any = type(value).__new__(type(value))
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        kind.update(twin, value)
        getattr(twin, "__dict__", {}).update(getattr(value, "__dict__", {}))
        return twin


def described(
    value: Any, number: Callable[[float], Any] = lambda number: number, deep: int = 0, counts: bool = False
) -> Any:
    """What ``value`` is apart from its tensors: equal for two values that differ in tensors only.

    Args:
        value: Anything.
        number: What a number with a fraction is told by.
        deep: How deep objects and functions are looked into.
        counts: Whether whole numbers are told by that too, as in these, where they may count steps.

    >>> import torch
    >>> described((torch.ones(2), True)) == described((torch.zeros(5), True)) != described((torch.ones(2), False))
    True
    """
    inside = partial(described, number=number, deep=deep, counts=counts)
    if isinstance(value, Tensor):
        return Tensor
    if isinstance(value, (list, tuple)):
        return (type(value), *map(inside, value))
    if isinstance(value, Mapping):
        return (type(value), *((key, inside(each)) for key, each in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(inside(getattr(value, each.name)) for each in fields(value)))
    if isinstance(value, np.generic) and not isinstance(plain := value.item(), np.generic):
        return (type(value), inside(plain))
    if isinstance(value, float):
        return number(value)
    if counts and type(value) is int and abs(value) < LARGEST:
        return number(float(value))
    if isinstance(value, (str, int, bool, type(None), *CONSTANTS)):
        return value
    if isinstance(value, (set, frozenset)):
        return (type(value), frozenset(map(inside, value)))
    if isinstance(value, slice):
        return (slice, inside(value.start), inside(value.stop), inside(value.step))
    return _of_object(value, number, deep - 1) if deep else type(value)


CONSTANTS = (enum.Enum, complex, bytes, range, type, torch.dtype, torch.device, types.BuiltinFunctionType)
"""What is told by itself, beside numbers and texts."""


def _of_object(value: Any, number: Callable[[float], Any], deep: int) -> Any:
    """What an object or a function is: its kind, and the options in it."""
    told = partial(described, number=number, deep=deep, counts=True)
    if isinstance(value, partial):
        options = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        options = [value.__func__, value.__self__]
    elif isinstance(value, types.FunctionType):
        cells = [each.cell_contents for each in value.__closure__ or () if each != types.CellType()]
        return (value.__code__, *map(told, (*cells, *(value.__defaults__ or ()))))
    else:
        own = {} if isinstance(value, nn.Module) else getattr(value, "__dict__", {})
        return (type(value), *((name, told(each)) for name, each in own.items()))
    return (type(value), *map(told, options))


DEEP, LARGEST = 8, 1e15
"""How deep objects are looked into; whole numbers in them that are larger are told by themselves."""


def between_round(number: float) -> Any:
    """The same for two numbers if no round one, such as 0, 1, 0.3 or 20, lies between them or is one of them.

    A temperature may change in every step. What begins at some number mostly begins at a round one.

    >>> between_round(0.31) == between_round(0.39) != between_round(0.3), between_round(0.0) == between_round(0.01)
    (True, False)
    """
    if not math.isfinite(number):
        return repr(number)
    sign, digits, _ = (exact := Decimal(repr(float(number))).normalize()).as_tuple()
    return (float, sign, digits[0], exact.adjusted(), len(digits) == 1)


# Following tensors through a forward pass: which hold samples, and which are functions of parameters alone.
#
# The tracer is a ``TorchFunctionMode`` around the model's forward pass. It marks what is computed from the model's
# inputs as *batched*, and what is computed from parameters alone as *free*. Where a free tensor meets a batched one
# outside of a layer with a rule, the operation is handed to `sordina.gradients._operations`, which taps it. It runs in
# the first steps, to learn the model's structure, and afterwards only for models in which such meetings occur.

MARK = "_sordina_mark"


@dataclass(frozen=True)
class Free:
    """A function of parameters alone."""

    roots: tuple[Tensor, ...]
    """The parameters it depends on."""
    isometric: bool = True
    """Whether it only picks or moves values of one parameter."""
    looked_up: tuple[Tensor, int, int | None] | None = None
    """For rows of a table: constant indices, the table's height and its padding row."""


BATCHED = "batched"
OVERLAPPING = {"expand", "expand_as", "broadcast_to", "as_strided", "unfold"}
"""Views that may show a value twice."""
REPEATING = {"expand", "expand_as", "broadcast_to", "repeat"}
"""Ways to give every sample its copy of a parameter."""
Meeting = Callable[[Any, Sequence[Any], Mapping[str, Any], "Tracer"], Any]


DYNAMIC = {"nonzero", "masked_select", "argwhere", "unique", "unique_consecutive", "nonzero_static", "bincount"}
"""Operations whose result has a shape that depends on values."""


class Tracer(TorchFunctionMode):
    """One forward pass. Marks are kept on the tensors, with the tracer's token: those of other passes do not count."""

    def __init__(self, parameters: Collection[int], meet: Meeting, inputs: Sequence[Tensor], rows: int) -> None:
        super().__init__()
        self.parameters, self.meet, self.rows = parameters, meet, rows
        self.token = object()
        self.suspended = False
        self.dynamic = ""
        """The last operation on samples whose result had a shape that depends on values."""
        self.mark(list(inputs), BATCHED)

    def inside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a layer that is tapped as a whole, whose inside is not looked at."""
        self.suspended = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.suspended = False
        self.mark(result, BATCHED)
        return result

    def mark(self, values: Any, kind: Any) -> None:
        """Note what the tensors in ``values`` are."""
        for tensor in tensors_in([values]):
            setattr(tensor, MARK, (self.token, kind))

    def kind(self, tensor: Tensor) -> Any:
        """`BATCHED`, a `Free`, or None for a constant."""
        token, kind = getattr(tensor, MARK, (None, None))
        if token is self.token:
            return kind
        if id(tensor) in self.parameters:
            return Free((tensor,))
        return BATCHED if tensor.requires_grad and not tensor.is_leaf else None

    def batched(self, tensors: Iterable[Tensor]) -> bool:
        """Whether samples take part in any of the tensors."""
        return any(self.kind(tensor) is BATCHED for tensor in tensors)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.suspended:
            return func(*args, **kwargs)
        kinds = [self.kind(tensor) for tensor in tensors_in([*args, *kwargs.values()])]
        free = [kind for kind in kinds if isinstance(kind, Free)]
        if BATCHED in kinds:
            if _dynamic(func, args):
                self.dynamic = getattr(func, "__name__", "")
            result = self.meet(func, args, kwargs, self) if free else func(*args, **kwargs)
            self.mark(result, BATCHED)
            return result
        if free and getattr(func, "__name__", "") in REPEATING:
            result = self.meet(func, args, kwargs, self)
            if self.kind(result) is BATCHED:
                return result
        else:
            result = func(*args, **kwargs)
        if free and not any(result is value for value in args):
            self.mark(result, _derived(func, args, kwargs, result, free))
        return result


def _dynamic(func: Any, args: Sequence[Any]) -> bool:
    """Whether the shape of the result depends on the values of the arguments."""
    name = getattr(func, "__name__", "")
    if name == "__getitem__":
        picks = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(pick, Tensor) and pick.dtype in (torch.bool, torch.uint8) for pick in picks)
    if name == "repeat_interleave":
        return len(args) > 1 and isinstance(args[1], Tensor)
    return name in DYNAMIC or (name == "where" and len(args) == 1)


def _derived(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, free: Sequence[Free]) -> Free:
    roots = tuple({id(root): root for kind in free for root in kind.roots}.values())
    name = getattr(func, "__name__", "")
    moved = isinstance(result, Tensor) and result._is_view() and name not in OVERLAPPING
    looked_up = None
    if name == "embedding" and len(roots) == 1 and args[1] is roots[0]:
        padding = args[2] if len(args) > 2 else kwargs.get("padding_idx")
        looked_up = (args[0], len(roots[0]), padding)
    return Free(roots, moved and len(free) == 1 and free[0].isometric, looked_up)
