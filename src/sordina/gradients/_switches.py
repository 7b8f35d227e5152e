"""What is switched on in a model: a structure holds for a model that is switched as it was.

A switch is anything plain that somebody may change between two calls: in attributes of modules, in small containers and
objects in these (a config), in classes of the user's, in global variables and closures that their methods name, in
small tensors that do not learn; hooks, and a forward pass that was replaced. What a forward pass changes is none, nor
is an attribute of a module that no code of the model reads (`code_of`): counts and results that a loop leaves there.

Every state is studied once. Numbers with a fraction are told by the round ones between which they lie. What changes all
the time does not have the model studied all the time: beyond `MOST_WAYS` states a new one is only tested, and a place
that has made so many new ones on its own makes no more.
"""

from __future__ import annotations

import enum
import types
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sordina.gradients._hooks import hooks_of, own_class
from sordina.gradients._kept_state import _foreign, _installed, _names
from sordina.gradients._names_read import code_of
from sordina.gradients._tracing import CONSTANTS, LARGEST, between_round

MOST_WAYS = 16
"""So many ways in which a model is switched are studied, and more only where a place changes for the first time."""
FEW_NUMBERS = 4
"""So many numbers at one place are studied; further ones are tested."""
MOST_TESTS = 64
"""So many values at one place are studied or tested: beyond, random tests must do; whole numbers are told exactly."""
_DEEP, _WIDE, _MOST = 4, 64, 1000
"""So deep is looked, at containers of up to so many items, and at so many containers and objects."""
_FEW_VALUES = 16
"""Tensors of up to so many values are told by them."""
_PYTORCHS = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that every module has: its parts and hooks."""

Position: TypeAlias = tuple[Any, ...]
"""Where a value is kept: names and numbers that lead to it."""
Teller: TypeAlias = Callable[[Any, int, dict[int, Any]], Any]
"""Tells what a value is: with how deep to look, and what was looked at."""


# Telling: nothing is kept but plain values and code, so that no tensor lives longer than without.


class _Tellers(dict[type, Teller | None]):
    """By the type of a value how it is told; None for what is told by itself."""

    def __missing__(self, kind: type) -> Teller | None:
        self[kind] = _teller(kind)
        return self[kind]


def _teller(kind: type) -> Teller | None:
    if issubclass(kind, type):
        return _class
    if issubclass(kind, (bool, int, float, str, type(None), np.generic, *CONSTANTS)):
        return None
    for kinds, teller in _KINDS.items():
        if issubclass(kind, kinds):
            return teller
    if kind in (types.SimpleNamespace, Namespace) or (not _foreign(kind.__module__) and not issubclass(kind, _CLOSED)):
        return _object
    return _opaque


_CLOSED = (Tensor, np.ndarray, nn.Module)


def told(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    """What a value is: equal for two that switch the same."""
    teller = _TELLERS[value.__class__]
    return value if teller is None else teller(value, deep, seen)


def _opaque(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    return value.__class__


def _all_told(items: Iterable[tuple[Any, Any]], deep: int, seen: dict[int, Any]) -> dict[Any, Any]:
    tellers = _TELLERS
    return {
        name: each if (teller := tellers[each.__class__]) is None else teller(each, deep, seen) for name, each in items
    }


def _unseen(value: Any, deep: int, seen: dict[int, Any]) -> bool:
    """Whether to look into a container or an object, which is done once."""
    if not deep or id(value) in seen or len(seen) >= _MOST:
        return False
    seen[id(value)] = value
    return True


def _mapping(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    if len(value) > _WIDE:
        return {"length": len(value)}
    if not value or not _unseen(value, deep, seen):
        return _EMPTY
    return _all_told([pair for pair in dict.items(value) if pair[0].__class__ in _KEYS], deep - 1, seen)


_EMPTY: dict[Any, Any] = {}
_KEYS = {str, int, bool, type(None)}


def _sequence(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    if len(value) > _WIDE:
        return {"length": len(value)}
    if not value or not _unseen(value, deep, seen):
        return _EMPTY
    return _all_told(enumerate(value), deep - 1, seen)


def _set(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    if len(value) > _WIDE:
        return {"length": len(value)}
    return {each: True for each in value if _TELLERS[each.__class__] is None}


def _function(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    if not value.__closure__ and not value.__defaults__ and not value.__kwdefaults__:
        return value.__code__
    if _installed(value.__module__) or not _unseen(value, deep, seen):
        return value.__code__
    held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    cells = dict(zip(value.__code__.co_freevars, map(_inside, value.__closure__ or ()), strict=True))
    return {"code": value.__code__, **_all_told([*enumerate(held), *cells.items()], deep - 1, seen)}


def _inside(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _method(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    return told(value.__func__, deep, seen)


def _partial(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    if not _unseen(value, deep, seen):
        return partial
    return _all_told([("function", value.func), *enumerate(value.args), *value.keywords.items()], deep - 1, seen)


def _object(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    kind = value.__class__
    if not _unseen(value, deep, seen):
        return kind
    own: dict[str, Any] = _slot(value, "__dict__") or {}
    if slots := _slots(kind):
        own = own | {name: _slot(value, name) for name in slots}
    if len(own) > _WIDE * 4:
        return {"length": len(own)}
    found = _all_told(own.items(), deep - 1, seen)
    found["class"] = _class(kind, deep - 1, seen)
    return found


def _slot(value: Any, name: str) -> Any:
    """What is in a slot, without asking the object, which may answer anything."""
    try:
        return object.__getattribute__(value, name)
    except Exception:
        return None


@cache
def _slots(kind: type) -> tuple[str, ...]:
    found = [getattr(each, "__slots__", ()) for each in kind.__mro__ if not _foreign(each.__module__)]
    listed = [name for each in found for name in ((each,) if isinstance(each, str) else each)]
    return tuple(name for name in listed if name not in ("__dict__", "__weakref__"))


def _class(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    """A class is told by itself, and one of the user's also by what is in it: its methods, too, may be replaced."""
    if _installed(value.__module__) or not _unseen(value, deep, seen):
        return value
    found, tellers = {"class": value}, _TELLERS
    for name, each in vars(value).items():
        if name[:2] != "__":
            teller = None if each.__class__ is types.FunctionType else tellers[each.__class__]
            found[name] = each if teller is None else teller(each, deep - 1, seen)
    return found


def _small(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.numel() <= _FEW_VALUES


def _tensor(value: Any, deep: int, seen: dict[int, Any]) -> Any:
    """What is in a small tensor that does not learn; elsewhere than on the processor, how often it was changed."""
    if value.requires_grad or not _small(value) or value.layout != torch.strided:
        return Tensor
    if value.device.type != "cpu":
        return {"version": 0 if value.is_inference() else value._version}
    return dict(enumerate(value.flatten().tolist()))


_KINDS: dict[Any, Teller] = {
    dict: _mapping,
    (list, tuple, deque): _sequence,
    (set, frozenset): _set,
    types.FunctionType: _function,
    types.MethodType: _method,
    partial: _partial,
}
_TELLERS = _Tellers()
_TELLERS.update({Tensor: _tensor, nn.Parameter: _tensor, nn.Buffer: _tensor})


# Where switches are kept.


def _variables(
    functions: Iterable[types.FunctionType],
) -> tuple[list[types.CellType], list[tuple[dict[str, Any], str]]]:
    """What functions of the user's close over, and the global variables that they name."""
    cells, names = dict[int, Any](), dict[Any, Any]()
    for each in functions:
        cells |= {id(cell): cell for cell in each.__closure__ or ()}
        reached, within, _ = _names(each.__code__)
        names |= {(id(space), name): (space, name) for name, space in _named(reached, within, each.__globals__)}
    return list(cells.values()), list(names.values())


def _named(names: Iterable[str], within: frozenset[str], space: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        value = space.get(name)
        if isinstance(value, types.ModuleType):
            if not _installed(value.__name__):
                yield from ((each, vars(value)) for each in within & vars(value).keys())
        elif name in space and not (isinstance(value, type) and _installed(value.__module__)):
            yield name, space


class _Table:
    """Attributes of a module or a class, of which those that are told by themselves are told again if one changes."""

    def __init__(
        self, own: Mapping[str, Any], alike: tuple[type, ...] = (), read: frozenset[str] | None = None
    ) -> None:
        """What is in ``own``, of names in ``read``; values of types in ``alike`` are told by themselves, too."""
        self.own, self.alike, self.read, self.size = own, alike, read, -1
        self.getter: Callable[[Any], Any] = _nothing
        self.plain: tuple[Any, ...] = ()
        self.told: dict[str, Any] = {}
        self.others: list[str] = []

    def state(self, seen: dict[int, Any]) -> dict[str, Any]:
        """What it holds, as it is told."""
        own = self.own
        try:
            if len(own) != self.size or self.getter(own) != self.plain:
                self._tell()
            if not self.others:
                return self.told
            others = [(name, own[name]) for name in self.others]
        except Exception:  # as many others are there, or what was plain is something that does not compare
            self._tell()
            others = [(name, own[name]) for name in self.others]
        return self.told | _all_told(others, _DEEP, seen)

    def _tell(self) -> None:
        read = None if "forward" in self.own else self.read  # which may read others
        names = [name for name in self.own if not name.startswith(_NOBODYS) and name not in _PYTORCHS]
        names = names if read is None else [name for name in names if name in read]
        simple = [name for name in names if self._simple(self.own[name])]
        self.others, self.told = [name for name in names if name not in simple], {n: self.own[n] for n in simple}
        self.size = len(self.own)
        if simple:
            self.getter, self.plain = itemgetter(simple[0], *simple), (self.told[simple[0]], *self.told.values())
        else:
            self.getter, self.plain = _nothing, ()

    def _simple(self, value: Any) -> bool:
        kind = value.__class__
        if kind is tuple:
            return all(_TELLERS[each.__class__] is None for each in value)
        return kind in self.alike or _TELLERS[kind] is None


def _nothing(own: Any) -> tuple[Any, ...]:
    return ()


_NOBODYS = ("__", "_sordina")
"""So begin names of what is Python's, or the engine's."""
_OF_CLASSES = (types.FunctionType, property, staticmethod, classmethod)
_FOR_ALL = [each for key, each in vars(nn.modules.module).items() if "_global_" in key and isinstance(each, dict)]
"""Hooks of all modules."""
_CODE = (type, types.CodeType, *_OF_CLASSES)
"""Kinds of what a function or an object is told by."""


class Switches:
    """Tells when a model is switched otherwise than when it was called last."""

    def __init__(self, model: nn.Module) -> None:
        """Look where switches may be kept in ``model``."""
        modules = list(model.modules())
        self._model = model
        self._own = [(_Table(vars(each)), set(vars(each)), _installed(own_class(each).__module__)) for each in modules]
        self._packages = {own_class(each).__module__ for each in modules}
        self._hooks = [table for module in modules for table in hooks_of(module)]
        self._hooked = 0
        self._read()
        tensors = [(table, name) for each in modules for table in (each._buffers, each._parameters) for name in table]
        self._small = [(table, name) for table, name in tensors if _small(table[name])]
        kinds = dict.fromkeys(kind for module in modules for kind in own_class(module).__mro__)
        spaces = [vars(kind) for kind in kinds if not _installed(kind.__module__)]
        self._classes = [_Table(space, _OF_CLASSES) for space in spaces]
        self._users = [each for each in modules if not _installed(own_class(each).__module__)]
        self._kinds: list[tuple[type, _Table]] = [(type, _Table({}))] * len(self._users)
        self._left: dict[Any, Any] | None = None
        """What was switched on at the end of the last call."""
        self._now: dict[Position, Any] = {}
        """What is otherwise than at the beginning because somebody has changed it from outside, as it is told."""
        self._first: dict[Position, Any] = {}
        """What was there at the beginning."""
        self._called = False
        self.moving = False
        """Whether the model was seen to change what it keeps."""
        self.way = 0
        """The number of the state that the model is in."""
        self._known: dict[frozenset[tuple[Position, Any]], int] = {frozenset(): 0}
        """The numbers of states that were studied or tested, by what was changed from outside, calm places only."""
        self._studied = 1
        self._values: dict[Position, set[Any]] = {}
        """By place what was there, as it is told."""
        self._charged: dict[Position, int] = {}
        """By place how many states it has made."""
        self._answers: dict[Position, Position] = {}
        """By place that came or went the container that answers for it."""

    def _read(self) -> None:
        """Find which names are read; attributes of libraries' modules count as read if they were there at first."""
        self._hooked, (functions, read) = sum(map(len, self._hooks)), code_of(self._model)
        self._plain = not functions and all(own.startswith("torch.nn.") for own in self._packages)
        cells, self._globals = _variables(functions)
        self._cells = [cell for cell in cells if not isinstance(_inside(cell), type)]
        for table, first, library in self._own:
            table.read, table.size = read | first if library and read is not None else read, -1

    @property
    def plain(self) -> bool:
        """Whether nothing runs but PyTorch's own modules, whose attributes are all told."""
        return self._plain and not any(self._hooks) and not any(_FOR_ALL)

    def left(self) -> None:
        """A call has ended: what it has changed itself is no switch."""
        before, self._left = self._left, self._state()
        self.moving = self.moving or before != self._left
        if not self._called or sum(map(len, self._hooks)) > self._hooked:
            self._read()  # what is imported or made in the first call is there now
            self._called, self._left = True, self._state()

    def look(self) -> tuple[bool, bool]:
        """Whether the model is in another state than `way` said, and whether that is to be tested in this call."""
        now, left = self._state(), self._left
        self._left = now
        if left is None or now == left:
            return False, False
        changes: dict[Position, Any] = {}
        for place in now.keys() | left.keys():
            if (before := left.get(place, {})) != (each := now.get(place, {})):
                one, two = dict(_leaves((place,), before)), dict(_leaves((place,), each))
                for at in [*two, *(at for at in one if at not in two)]:
                    if at not in one or at not in two or not _alike(one[at], two[at]):
                        self._note(changes, at, one.get(at, _GONE), two.get(at, _GONE))
        if any(isinstance(each, tuple) and each[0] in _CODE for each in changes.values()):
            self._read()  # other code may read other names
        return self._changed(changes) if changes else (False, False)

    def _state(self) -> dict[Any, Any]:
        """What is switched on, by where it is kept."""
        seen: dict[int, Any] = {}
        found: dict[Any, Any] = {}
        for number, (table, _, _) in enumerate(self._own):
            found[number] = table.state(seen)
        if any(self._hooks):
            for number, hooks in enumerate(self._hooks):
                found["hooks", number] = _all_told(enumerate(hooks.values()), _DEEP, seen)
        for number, (tensors, name) in enumerate(self._small):
            found["tensor", number] = told(tensors.get(name), _DEEP, seen)
        for number, table in enumerate(self._classes):
            found["class", number] = table.state(seen)
        for number, module in enumerate(self._users):  # of a class that was made for it while it is listened to
            kind = type(module)
            if self._kinds[number][0] is not kind:
                self._kinds[number] = kind, _Table(vars(kind), _OF_CLASSES)
            found["own class", number] = self._kinds[number][1].state(seen)
        for cell in self._cells:
            found["cell", id(cell)] = told(_inside(cell), _DEEP, seen)
        for space, name in self._globals:
            found["global", id(space), name] = told(space.get(name), _DEEP, seen)
        return found

    def _note(self, changes: dict[Position, Any], at: Position, before: Any, value: Any) -> None:
        """A change of the value at a place, if it is told otherwise than before."""
        if before is _GONE or value is _GONE:
            answers = self._answers.setdefault(at, at[:-1])  # items may come and go: the container answers for them
        else:
            answers = self._answers.get(at, at)
        often = self._charged.get(answers, 0) >= MOST_TESTS
        if often and answers is not at:
            self._answers.pop(at, None)
            return
        one, two = _told_by(before, not often), _told_by(value, not often)
        if one != two and not (often and not _numeric(two)):
            self._values.setdefault(at, set()).add(one)
            self._first.setdefault(at, one)
            changes[at] = two

    def _changed(self, changes: Mapping[Position, Any]) -> tuple[bool, bool]:
        """Go on to the state after some changes."""
        fresh = {self._answers.get(at, at): None for at, value in changes.items() if value not in self._values[at]}
        for at, value in changes.items():
            self._values[at].add(value)
        self._now = {at: value for at, value in {**self._now, **changes}.items() if value != self._first[at]}
        restless = [at for at in fresh if self._charged.get(at, 0) >= MOST_WAYS]
        for at in restless:
            self._charged[at] += 1
        test, way = bool(restless), self._known.get(self._calm(self._now.items()))
        if way is None:
            way = self._new(changes)
            test = test or way < 0
            way = self._nearest() if way < 0 else way
            self._known[self._calm(self._now.items())] = way
        another, self.way = way != self.way, way
        return another, test

    def _new(self, changes: Mapping[Position, Any]) -> int:
        """The number of a state that was not there before if it is to be studied; otherwise it is below zero."""
        places = {self._answers.get(at, at): None for at in changes}
        numbers = all(map(_numeric, changes.values())) and all(self._charged.get(at, 0) >= FEW_NUMBERS for at in places)
        study = any(at not in self._charged for at in places) or (self._studied < MOST_WAYS and not numbers)
        for at in places:
            self._charged[at] = self._charged.get(at, 0) + 1
        if any(self._charged[at] == MOST_WAYS for at in places):
            self._known = {self._calm(state): way for state, way in reversed(self._known.items())}
        if not study:
            return -1
        self._studied += 1
        return self._studied - 1

    def _nearest(self) -> int:
        """The number of the known state with the fewest differences."""
        state = self._calm(self._now.items())
        return self._known[min(self._known, key=lambda known: len(known ^ state))]

    def _calm(self, state: Iterable[tuple[Position, Any]]) -> frozenset[tuple[Position, Any]]:
        """What was changed, without places that change all the time."""
        charged, answers = self._charged, self._answers
        return frozenset(each for each in state if charged.get(answers.get(each[0], each[0]), 0) < MOST_WAYS)


class _Gone(enum.Enum):
    GONE = 0


_GONE = _Gone.GONE


def _leaves(at: Position, value: Any) -> Iterator[tuple[Position, Any]]:
    """The plain values in what was told."""
    if isinstance(value, dict):
        yield (*at, dict), dict
        for name, each in value.items():
            yield from _leaves((*at, name), each)
    else:
        yield at, value


def _alike(one: Any, two: Any) -> bool:
    return one.__class__ is two.__class__ and bool(one == two)


def _told_by(value: Any, exact: bool) -> Any:
    """What a value at a place is told by; whole numbers by themselves if ``exact``."""
    if isinstance(value, (float, np.floating)):
        return between_round(float(value))
    if type(value) is int and not exact and abs(value) < LARGEST:
        return between_round(float(value))
    return (value.__class__, value)


def _numeric(told_by: Any) -> bool:
    return isinstance(told_by, tuple) and told_by[0] in (int, float)
