"""What objects of the user's keep between two calls: the history test compares it, and trials put it back.

A loss or a model that remembers something of earlier batches (a running mean, a bank of features, weights that follow
the losses) carries data from one step to the next, outside of any budget. A count of calls is no such thing.
"""

from __future__ import annotations

import copy
import dis
import enum
import functools
import gc
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


def keeps_nothing(holder: Any) -> bool:
    """Whether ``holder`` is one of PyTorch's own losses."""
    function = holder.func if isinstance(holder, functools.partial) else holder
    if isinstance(function, types.FunctionType):
        return function.__module__ == "torch.nn.functional"
    return type(function).__module__ == "torch.nn.modules.loss"


def kept_state(holder: Any, frozen: bool = False) -> dict[str, Any]:
    """What ``holder`` keeps, by the names of its attributes: plain values that compare, and copies of tensors.

    Of a module the attributes of all its modules without parameters; buffers are there as ``"buffer NAME"``, and if
    ``frozen``, parameters that do not learn as ``"parameter NAME"``. Of a function what it closes over, and the globals
    that it names; of an object also those of its methods, as ``"global NAME"``.

    >>> from types import SimpleNamespace
    >>> kept_state(SimpleNamespace(count=1, inner=SimpleNamespace(seen=[2.0])))
    {'count': 1, 'inner.seen': ('list', [2.0])}
    """
    found: dict[str, Any] = {}
    _gather(holder, "", found, set(), _DEEP, frozen)
    return found


def differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """The first name whose value is not the same in both states; empty if there is none."""
    return next(all_differing(one, two), "")


def all_differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    """The names whose values are not the same in both states."""
    names = dict.fromkeys((*one, *two))
    return (name for name in names if not _alike(one.get(name, _GONE), two.get(name, _GONE)))


def is_huge(value: Any) -> bool:
    """Whether a value in a state stands for what cannot be put back: a tensor that is too large, or a generator."""
    return (isinstance(value, tuple) and bool(value) and isinstance(value[0], tuple)) or moves_on(value)


def moves_on(value: Any) -> bool:
    """Whether a value in a state stands for, or holds, a generator of Python's, which cannot be put back."""
    if isinstance(value, Mapping):
        return any(map(moves_on, value.values()))
    return isinstance(value, (tuple, list)) and (value[:1] == (_MOVING,) or any(map(moves_on, value)))


COUNTERS = 16
"""Parameters of up to so many values that do not learn are put back in every step: they may count something."""
_DEEP, _MOST, _HUGE, _GONE = 6, 50_000, 1 << 20, "is not there"
"""So deep is looked, at so many things; of tensors with more values than that a number stands for them."""
_MOST_PUT_BACK, _PLAINEST = 1 << 20, {int, float, bool, str, type(None)}
"""So many things are put back; values of these kinds are put back with what holds them."""
_MOVING = "a generator"
_OPAQUE = sys.stdlib_module_names | {"torch", "sordina", "numpy"}
"""Packages whose objects and functions are not looked into."""


def _gather(holder: Any, prefix: str, found: dict[str, Any], seen: set[int], deep: int, frozen: bool) -> None:
    holder = holder.__self__ if isinstance(holder, types.MethodType) else holder
    if id(holder) in seen or not deep or len(found) > _MOST:
        return
    seen.add(id(holder))
    modules = isinstance(holder, nn.Module)
    if modules:
        found |= {f"buffer {prefix}{name}": _plain(each, seen, 1) for name, each in holder._buffers.items()}
        if frozen:
            own = [(name, each) for name, each in holder._parameters.items() if _at_rest(each)]
            found |= {f"parameter {prefix}{name}": _plain(each, seen, 1) for name, each in own}
        for name, each in (*holder._parameters.items(), *holder._buffers.items()):
            for inner, value in attributes_of(each).items():
                found[f"{prefix}{name}.{inner}"] = _plain(value, seen, deep - 1, frozen)
    for name, each in _held(holder).items():
        if isinstance(each, nn.Module) or _looked_into(each):
            _gather(each, f"{prefix}{name}.", found, seen, deep - (not modules), frozen)
        elif not isinstance(each, nn.Parameter) or (frozen and _at_rest(each)):
            found[prefix + name] = _plain(each, seen, deep - 1, frozen)


def attributes_of(tensor: Tensor | None) -> dict[str, Any]:
    """What somebody has put on a tensor under names of their own."""
    own = {} if tensor is None else vars(tensor)
    return {name: each for name, each in own.items() if not name.startswith("_sordina")}


def inside_generator(value: Any) -> list[Any] | None:
    """What a generator of Python's, or another iterator, holds on to; None if ``value`` is none."""
    if isinstance(value, types.GeneratorType):
        return [] if value.gi_frame is None else list(value.gi_frame.f_locals.values())
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return gc.get_referents(value)
    return None


class Itself:
    """Equal for one and the same object only: what is not a number is never told from the next."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _owner_of(value: Any) -> Any:
    """What a method of a list, or of a generator, belongs to; anything else is itself."""
    if isinstance(value, types.BuiltinMethodType) and isinstance(value.__self__, _METHODS_OF):
        return value.__self__
    return value


_METHODS_OF = (list, dict, set, deque, types.GeneratorType)


def _at_rest(value: Any) -> bool:
    """Whether ``value`` is a parameter that does not learn: in a loss it holds what a buffer might."""
    return isinstance(value, nn.Parameter) and not value.requires_grad


def _held(holder: Any) -> dict[str, Any]:
    """What ``holder`` holds, by name, if it is something that is looked into."""
    if isinstance(holder, functools.partial):
        more = dict(enumerate(holder.args)) | holder.keywords
        return {"func": holder.func, **{str(name): each for name, each in more.items()}}
    if isinstance(holder, types.FunctionType):
        return {name: each for _, name, each in _named(holder)} | vars(holder)
    held = {} if isinstance(holder, nn.Module) else {name: getattr(holder, name) for name in _slots(holder)}
    for kind in _own_kinds(holder):
        held |= {name: each for name, each in vars(kind).items() if _of_class(name, each)}
        for method in _methods(kind):
            held |= {_label(method, *named[:2]): named[2] for named in _named(method) if _may_keep(named[2])}
    held |= {name: each for name, each in getattr(holder, "__dict__", {}).items() if not _of_pytorch(holder, name)}
    return held | holder._modules | _hooks(holder) if isinstance(holder, nn.Module) else held


def _hooks(module: nn.Module) -> dict[str, Any]:
    """The hooks of a module that are the user's, by name."""
    tables = [(name, each) for name, each in vars(module).items() if "hooks" in name and isinstance(each, dict)]
    hooks = [(name, each) for name, table in tables for each in table.values()]
    return {f"{name} {number}": each for number, (name, each) in enumerate(hooks) if _looked_into(each)}


def _of_pytorch(holder: Any, name: str) -> bool:
    """Whether an attribute of a module is PyTorch's own."""
    return isinstance(holder, nn.Module) and (name in PARTS or "hooks" in name or name in _PLUMBING)


_PLUMBING = {"training", "_is_full_backward_hook", "_non_persistent_buffers_set"}


def _slots(holder: Any) -> list[str]:
    names = [getattr(kind, "__slots__", ()) for kind in type(holder).__mro__]
    listed = [name for each in names for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in listed if name not in ("__dict__", "__weakref__") and _in_slot(holder, name)]


def _in_slot(holder: Any, name: str) -> bool:
    """Whether something is in a slot, without asking the object, which may make it up."""
    try:
        object.__getattribute__(holder, name)
    except Exception:
        return False
    return True


def _own_kinds(holder: Any) -> list[type]:
    """The classes of ``holder`` that are not opaque, its own last."""
    return [kind for kind in reversed(type(holder).__mro__) if not _foreign(kind.__module__)]


_SHARED = (Tensor, np.ndarray, int, float, list, dict, set, deque)


def _of_class(name: str, value: Any) -> bool:
    """Whether an attribute of a class may be what its objects keep in common."""
    return isinstance(value, _SHARED) and not name.startswith("__")


def _methods(kind: type) -> list[types.FunctionType]:
    """The methods of a class of the user's; of a library's none: there is much of it, and little of the user's."""
    if _installed(kind.__module__):
        return []
    own = [each for name, each in vars(kind).items() if name not in _NEVER_AGAIN]
    plain = [each.fget if isinstance(each, property) else getattr(each, "__func__", each) for each in own]
    return [each for each in plain if isinstance(each, types.FunctionType)]


_NEVER_AGAIN = {"__init__", "__new__", "__post_init__"}
"""Methods that no call comes back to."""


def _label(method: types.FunctionType, where: Any, name: str) -> str:
    return f"global {name}" if isinstance(where, (dict, type)) else f"{name} of {method.__name__}"


def _may_keep(value: Any) -> bool:
    """Whether what a method names may keep something: no class, and no function or plain object of a library."""
    if isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
        return _owner_of(value) is not value
    if isinstance(value, types.FunctionType):
        return not _installed(value.__module__)
    return (
        isinstance(value, (nn.Module, functools.partial))
        or not _looked_into(value)
        or not _installed(type(value).__module__)
    )


_STANDARD = sysconfig.get_path("stdlib")


@functools.cache
def _installed(module: str | None) -> bool:
    """Whether a module is of a library that was installed, and not of the user's."""
    if _foreign(module):
        return True
    path = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return path.startswith(_STANDARD) or "site-packages" in path or "dist-packages" in path


def _named(function: types.FunctionType) -> Iterator[tuple[Any, str, Any]]:
    """What a function of the user's closes over, the globals it names and its defaults, and where these are held."""
    if _foreign(function.__module__):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            yield cell, name, cell.cell_contents
    held, (names, others, _) = function.__globals__, _names(function.__code__)
    for name in names:
        each = held.get(name, _GONE)
        if isinstance(each, (types.ModuleType, type)):
            yield from _named_within(each, others)
        elif each is not _GONE:
            yield held, name, each
    for number, each in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield None, f"default {number}", each


def _named_within(space: Any, names: frozenset[str]) -> Iterator[tuple[Any, str, Any]]:
    """What a function names that is held by a module, or a class, of the user's."""
    module = isinstance(space, types.ModuleType)
    if not _installed(space.__name__ if module else space.__module__):
        for name in sorted(names & vars(space).keys()):
            if _of_class(name, vars(space)[name]) or isinstance(vars(space)[name], types.FunctionType):
                yield (vars(space) if module else space), name, vars(space)[name]


def classes_named(function: types.FunctionType) -> Iterator[type]:
    """The classes of the user's that a function names, also within modules of the user's."""
    held, (names, others, _) = function.__globals__, _names(function.__code__)
    for each in (held.get(name) for name in names):
        if isinstance(each, types.ModuleType) and not _installed(each.__name__):
            found = [vars(each)[name] for name in sorted(others & vars(each).keys())]
        else:
            found = [each]
        yield from (kind for kind in found if isinstance(kind, type) and not _installed(kind.__module__))


_NAMES: dict[int, tuple[types.CodeType, tuple[list[str], frozenset[str], frozenset[str]]]] = {}
"""By the number of a code (which is held, so that no other gets it) the names in it."""


def _names(code: types.CodeType) -> tuple[list[str], frozenset[str], frozenset[str]]:
    """The globals that a function, and what is defined in it, reads or writes; all names in it; globals it writes."""
    if (known := _NAMES.get(id(code))) is not None:
        return known[1]
    names, others, written, codes = set[str](), set[str](), set[str](), [code]
    while codes:
        each = codes.pop()
        reached = [one for one in dis.get_instructions(each) if one.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))]
        names |= {one.argval for one in reached}
        written |= {one.argval for one in reached if one.opname == "STORE_GLOBAL"}
        others |= set(each.co_names)
        codes += [inner for inner in each.co_consts if isinstance(inner, types.CodeType)]
    _NAMES[id(code)] = code, (sorted(names), frozenset(others), frozenset(written))
    return _NAMES[id(code)][1]


@functools.cache
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


def _plain(value: Any, seen: set[int], deep: int, frozen: bool = False) -> Any:
    """A copy of ``value`` that compares; of what is not looked into its type."""
    value = _owner_of(value)
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), np.generic)):
        return value
    kind = type(value).__name__
    if isinstance(value, Tensor):
        if deep and id(value) not in seen and (own := attributes_of(value)):
            inside = seen | {id(value)}
            return [_plain(value, inside, 0), {name: _plain(each, inside, deep - 1) for name, each in own.items()}]
        with suppress(Exception), torch._C.DisableTorchFunctionSubclass():  # a sparse one, or one that is not there yet
            return value.detach().clone() if value.numel() <= _HUGE else (value.shape, digest(value.detach()))
        return kind
    if isinstance(value, np.ndarray):
        if value.size > _HUGE and not value.flags.writeable:
            return kind
        if value.size > _HUGE and value.dtype.kind in "biuf":
            return value.shape, digest(torch.from_numpy(np.ascontiguousarray(value)).view(torch.uint8))
        return value.copy()
    if isinstance(value, nn.Module) or _looked_into(value):
        inner: dict[str, Any] = {}
        _gather(value, "", inner, seen, deep, frozen)
        return inner
    if deep and id(value) not in seen and (held := inside_generator(value)) is not None:
        return _MOVING, [(Itself(each), _plain(each, seen | {id(value)}, deep - 1, frozen)) for each in held]
    if not isinstance(value, (list, tuple, deque, set, frozenset, Mapping)) or not deep or id(value) in seen:
        return kind
    inside = seen | {id(value)}
    if isinstance(value, Mapping):
        return kind, [
            (_plain(key, inside, deep - 1, frozen), _plain(each, inside, deep - 1, frozen))
            for key, each in value.items()
        ]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(_plain(each, inside, deep - 1, frozen)) for each in value)
    return kind, [_plain(each, inside, deep - 1, frozen) for each in value]


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
    """What ``holder`` keeps, and all that it holds on to, to be put back in place: trials leave it as it was.

    Args:
        holder: An object, a module or a function.
        frozen: Parameters that do not learn are put back up to so many values; those that learn never are.
        others: Objects that are left as they are.
    """

    def __init__(self, holder: Any, frozen: int = _HUGE, others: Iterable[Any] = ()) -> None:
        self._frozen = frozen
        self._places: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {id(each): each for each in others}
        todo = [] if keeps_nothing(holder) else [holder]
        while todo and len(self._seen) < _MOST_PUT_BACK:
            value = todo.pop()
            if type(value) not in _PLAINEST and id(value) not in self._seen:
                self._seen[id(value)] = value  # held, so that no other gets its number
                todo += self._note(value)

    def restore(self) -> None:
        """Put everything back."""
        for place in self._places:
            with suppress(Exception):  # what is sparse or read-only cannot be filled again, and was not changed
                place()

    def _note(self, value: Any) -> list[Any]:
        """Remember what is in ``value``, and say what else to look at."""
        put, value = self._places.append, _owner_of(value)
        if isinstance(value, Tensor):
            put(functools.partial(_put_attributes_back, value, attributes_of(value)))
            with suppress(Exception):  # larger ones are data, or are refused if they change
                parameter = isinstance(value, nn.Parameter)
                if value.numel() <= (self._frozen if parameter else _HUGE) and not (parameter and value.requires_grad):
                    put(functools.partial(_refill, value, value.data, value.detach().clone()))
            return list(attributes_of(value).values())
        elif isinstance(value, np.ndarray):
            if value.flags.writeable and value.size <= _HUGE:
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
        elif (held := inside_generator(value)) is not None:
            return held
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
            self._note_named(value)
        elif isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        kept = {name: each for name, each in getattr(value, "__dict__", {}).items() if not _of_pytorch(value, name)}
        slots = {name: getattr(value, name) for name in _slots(value)}
        put(functools.partial(_put_back, value, kept, slots))
        for kind in _own_kinds(value):
            for name, each in [pair for pair in vars(kind).items() if _of_class(*pair)]:
                put(functools.partial(setattr, kind, name, each))
            for method in _methods(kind):
                self._note_named(method)
        parts = dict[str, Any]()
        for table in (value._buffers, value._parameters) if isinstance(value, nn.Module) else ():
            put(functools.partial(_as_it_was, table, dict(table)))
            parts |= table
        return [*_held(value).values(), *parts.values()]

    def _note_named(self, function: types.FunctionType) -> None:
        """Remember what is under the names that a function uses."""
        put, held = self._places.append, function.__globals__
        for name in _names(function.__code__)[2] - held.keys():
            put(functools.partial(held.pop, name, None))
        for where, name, each in _named(function):
            if isinstance(where, types.CellType):
                put(functools.partial(setattr, where, "cell_contents", each))
            elif isinstance(where, type):
                put(functools.partial(setattr, where, name, each))
            elif where is not None and not callable(each):
                put(functools.partial(where.__setitem__, name, each))


def _as_it_was(table: dict[str, Any], held: Mapping[str, Any]) -> None:
    for name in [name for name in table if name not in held]:
        del table[name]
    table.update(held)


def _put_back(value: Any, kept: Mapping[str, Any], slots: Mapping[str, Any]) -> None:
    """The attributes as they were; not those of PyTorch."""
    if own := getattr(value, "__dict__", None):
        for name in [name for name in own if name not in kept and not _of_pytorch(value, name)]:
            del own[name]
    if kept:
        value.__dict__.update(kept)
    for name, each in slots.items():
        object.__setattr__(value, name, each)


def _put_attributes_back(tensor: Tensor, kept: Mapping[str, Any]) -> None:
    for name in attributes_of(tensor).keys() - kept.keys():
        delattr(tensor, name)
    vars(tensor).update(kept)


def _refill(tensor: Tensor, data: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        if tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape:
            tensor.data = data
        if not same(tensor, values):
            tensor.data.copy_(values)


def left_otherwise(
    holder: Any,
    begin: Callable[[], object],
    play: Callable[[Any], object],
    state: Callable[[], Mapping[str, Any]],
    usual: Any,
    others: Sequence[Any],
) -> str | None:
    """The name of what ``holder`` keeps otherwise after ``others`` than after as many ``usual`` batches.

    One more usual batch follows on both. Empty if there is no such thing, None if a batch is not taken.

    Args:
        holder: What is put back before and after.
        begin: Called before the first batch.
        play: Called with each batch.
        state: What is kept.
        usual: An ordinary batch.
        others: Other batches.
    """
    kept, states = KeptState(holder, 0), list[Mapping[str, Any]]()
    for before in ([usual] * len(others), others, [usual] * len(others)):
        kept.restore()
        begin()
        try:
            for each in (*before, usual):
                play(each)
            states.append(state())
        except Exception:
            return None
        finally:
            kept.restore()
        if len(states) == 2 and not differing(*states):
            return ""
    volatile = set(all_differing(states[0], states[2]))  # the time of day, for one
    if moved := next((name for name in volatile if moves_on(states[0].get(name))), ""):
        return moved
    return next((name for name in all_differing(*states[:2]) if name not in volatile), "")
