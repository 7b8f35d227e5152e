"""Whether an item of a map-style data set, and its row in a batch, depend on its own record alone, as far as is tried.

An item that is mixed with others in ``__getitem__`` (mixup, mosaics), or standardised by a running average of what was
read, makes a record part of other items: clipping bounds items, so it would bound no record.

Three trials, before anything is spent. Items are read in one order, then in another, with the same random numbers, and
must be the same; where reading draws numbers, so often that a coin of a few per cent falls either way. Where the
records lie in memory, a random half of them is put into another order, then the other half: an item of one record
notices one of the two at most. And a data set that asks itself for another item while it makes one is noticed when all
are read. What lies on a disk cannot be tried in the second way, nor what begins later in any, so the guarantee of such
a run says whose word it is (`sordina.training.run.OWN_ITEMS`).
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sordina.errors import InvalidInput
from sordina.gradients._chance import Generators
from sordina.gradients._kept_state import _installed, _looked_into, same
from sordina.gradients.removal import CHANCE
from sordina.gradients.structure import Mixing

_ROUND, _AGAIN, _TOSSES = 16, 2, 16
"""So many items are read, then again; so often at least, and so often where reading them draws random numbers."""
_SPLITS, _ITEMS = 3, 64
"""How often records are split into halves, and how many items are then looked at, at least."""
MOST, _SECONDS = 20_000, 2.0
"""Beyond what is looked at in any case: at most so many items, each kind of trial for so long."""
_LARGEST, _FEW, _DEEP = 1 << 27, 64, 6
"""Records of more bytes are not copied; so many things are looked at in a list, and so deep."""


def check_items(data: Any, size: int, owners: Sequence[Any] | None = None) -> None:
    """Refuse a data set of which an item depends on other records than its own, or on what was read before.

    Args:
        data: A map-style data set.
        size: How many items it has.
        owners: Whose each item is, if a person may have several: items may depend on all records of theirs.
    """
    if size < 4:
        return
    with ChanceHeld(data) as held:
        until = time.monotonic() + _SECONDS
        for path, records, exact in list(_records(data)):  # before others fill what it keeps
            rows = range(len(records)) if exact else _own_rows(data, path, records, size, held)
            for _ in range(_SPLITS if rows else 0):
                _check_apart(data, path, records, rows, size, held, owners, until)
        _check_again(data, size, held)


def _check_again(data: Any, size: int, held: ChanceHeld) -> None:
    """Items are read in one order, then in another: as many as there is time for, and at least some."""
    until, order = time.monotonic() + _SECONDS, CHANCE.sample(range(size), min(size, MOST))
    for number in itertools.count():
        enough = number >= (_TOSSES if held.drew else _AGAIN)
        if enough and (number * _ROUND >= len(order) or time.monotonic() > until):
            return
        asked = [
            (order[place % len(order)], CHANCE.getrandbits(32), _COIN.get(place % _ROUND, 0))
            for place in range(number * _ROUND, (number + 1) * _ROUND)
        ]
        first = [held.read(data, *each, look=number < _AGAIN) for each in asked]
        for place in (*range(_ROUND - 2, -1, -1), _ROUND - 1):  # so that before each comes another one than at first
            one, again = first[place], held.read(data, *asked[place])
            if one is not None and again is not None and not all_same(one, again):
                raise InvalidInput(
                    "an item of the data set is another one when it is read again, with the same random numbers: it "
                    "depends on what was read before (a running average, a memory of items), if only now and then, or "
                    "on random numbers of a generator that nobody can find. Let an item depend on its own record "
                    "alone, and on random, numpy.random or torch."
                )


_COIN = {3: 1, 9: 2}
"""Which items of a round are read with a first toss that falls as it seldom does: see `CASES`."""


def _check_apart(
    data: Any,
    path: Path,
    records: Any,
    rows: Sequence[int],
    size: int,
    held: ChanceHeld,
    owners: Sequence[Any] | None,
    until: float,
) -> None:
    """One half of the records, or of the people, then the other, are all made one of them; who notices both?"""
    whose = list(range(len(rows))) if owners is None else list(owners)
    if len(whose) != len(rows) or len(people := sorted(set(whose), key=repr)) < 4:
        return
    chosen = set(CHANCE.sample(people, len(people) // 2))
    own = list(zip(rows, whose, strict=True))
    halves = [[row for row, owner in own if (owner in chosen) is side] for side in (True, False)]
    try:
        twins = [_with(data, path, _made_alike(records, half)) for half in halves]
    except Exception:
        return  # it cannot be copied
    for number, index in enumerate(CHANCE.sample(range(size), min(size, MOST))):
        if number >= _ITEMS and time.monotonic() > until:
            return
        seed = CHANCE.getrandbits(32)
        first = held.read(data, index, seed)
        others = (held.read(each, index, seed) for each in twins)
        if first is not None and all(each is not None and not all_same(first, each) for each in others):
            if not all_same(first, held.read(data, index, seed) or []):
                return  # it is another one each time, whatever the records: see `_check_again`
            raise Mixing(
                f"samples mix: an item of the data set depends on more than one row of {_spelt(path)} (mixup or a "
                "mosaic in __getitem__, pairs, a window over several records, a scale taken over all of them), so "
                "clipping items bounds nobody. Let an item depend on its own record alone; where a person has several "
                "records, say whose they are by users=. If these are no records (about as many as items by chance), "
                "keep them outside of the data set."
            )


class Asking:
    """Notices a data set that, while it makes an item, asks itself for another: that one's record is in both.

    Code that replaces a record it cannot use by the next one does so. For as long as an item is read, the data set,
    and data sets inside of it, are of a class that looks at the indices.

    Args:
        data: A map-style data set.
        owners: Whose each item is, if a person may have several: items of one person may be made of one another.
    """

    def __init__(self, data: Any, owners: Sequence[Any] | None = None) -> None:
        self.owners = owners
        self._found: list[tuple[int, int]] = []
        self._sets: list[tuple[Any, type, type]] = []
        for each in _data_sets(data):
            with suppress(Exception):  # a class that lets nobody inherit
                self._sets.append((each, type(each), self._listening(each, each is data)))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Refuse, at the end, if another item was asked for in here."""
        self._found.clear()
        swapped = []
        try:
            for each, kind, listening in self._sets:
                with suppress(Exception):  # of some classes objects cannot change theirs
                    each.__class__ = listening
                    swapped.append((each, kind))
            yield
        finally:
            for each, kind in swapped:
                each.__class__ = kind
        if self._found:
            raise Mixing(
                "samples mix: while it makes an item, the data set asks itself for another one (a record that cannot "
                "be used is replaced by the next, or by any other), so that this one's record counts in both, and "
                "clipping items bounds nobody. Leave out such records beforehand: give "
                "torch.utils.data.Subset(data, good) with a list of the good indices. Where items are several of one "
                "person, say whose they are by users=."
            )

    def _listening(self, data: Any, outermost: bool) -> type:
        kind, size, open_items, found = type(data), max(1, _length(data)), list[int](), self._found

        def asked(this: Any, index: Any) -> Any:
            if this is not data or not isinstance(index, (int, np.integer)):
                return kind.__getitem__(this, index)
            place = int(index) % size
            if open_items and not self._allowed(open_items[-1], place, outermost):
                found.append((open_items[-1], place))
            open_items.append(place)
            try:
                return kind.__getitem__(this, index)
            finally:
                open_items.pop()

        return type(kind.__name__, (kind,), {"__getitem__": asked, "__module__": kind.__module__, "__slots__": ()})

    def _allowed(self, one: int, other: int, outermost: bool) -> bool:
        if one == other or (self.owners is not None and not outermost):
            return True
        return self.owners is not None and self.owners[one] == self.owners[other]


def _data_sets(data: Any, deep: int = _DEEP) -> Iterator[Any]:
    """A data set and those inside of it, where code of the user's makes the items."""
    if not _installed(type(data).__module__):
        yield data
    held = list(getattr(data, "__dict__", {}).values()) if deep else []
    for value in held:
        for each in value[:_FEW] if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Dataset) or each is getattr(data, "source", None):
                yield from _data_sets(each, deep - 1)


def _spelt(path: Path) -> str:
    return repr("".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in path).removeprefix("."))


class ChanceHeld:
    """Reads items with the same random numbers each time; afterwards all generators are where they were."""

    def __init__(self, data: Any) -> None:
        self._generators = Generators(data)
        self.drew = False
        """Whether anything drew random numbers while somebody had a ``look``, which takes time."""

    def __enter__(self) -> ChanceHeld:
        self._kept = self._generators.kept()
        return self

    def __exit__(self, *_: object) -> None:
        for put_back in self._kept:
            put_back()

    def batch(
        self, collate: Collate, items: Sequence[Any], seed: int = 0, case: int = 0, *, look: bool = False
    ) -> list[Tensor] | None:
        """The tensors of a batch; None if there is none."""
        found = self._made(lambda: collate([_own(item) for item in items]), seed, case, look)
        return None if found is None else [each for each in found if isinstance(each, Tensor)]

    def read(self, data: Any, index: int, seed: int, case: int = 0, *, look: bool = False) -> list[Any] | None:
        """What an item holds; None if it cannot be read."""
        return self._made(lambda: data[index], seed, case, look)

    def came(self) -> tuple[Any, ...]:
        """How far random numbers came."""
        return self._generators.states()

    def _made(self, make: Callable[[], Any], seed: int, case: int, look: bool) -> list[Any] | None:
        self._generators.seed(seed, case)
        begun = self.came() if look and not self.drew else None
        try:
            return list(values_in(make(), _DEEP))
        except Exception:
            return None
        finally:
            self.drew = self.drew or (begun is not None and begun != self.came())


Collate = Callable[[list[Any]], Any]


def _own(item: Any) -> Any:
    """A copy: there are functions that change the items they are given."""
    return copy.copy(item) if isinstance(item, (Mapping, list)) else item


Path = tuple[Any, ...]
"""The names of attributes, keys and places that lead from a data set to something inside of it."""


def _records(holder: Any, path: Path = ()) -> Iterator[tuple[Path, Any, bool]]:
    """What has a row for every item of a data set, or of one inside of it, and where it lies.

    Also what has more rows: whether these are records (or words that all items look up) is another question, and said.
    """
    size = _length(holder)
    for name, value in getattr(holder, "__dict__", {}).items():
        yield from _inside(value, (*path, name), size)


def _own_rows(data: Any, path: Path, records: Any, size: int, held: ChanceHeld) -> Sequence[int]:
    """The row on which every item depends, by its number or by one that the data set has for it; empty if none.

    Rows that follow it (of the same person, say) are no other item's.
    """
    maps = [range(size), *(each for each in vars(data).values() if _length(each) == size and _whole(each))]
    for rows in maps:
        seen = [_notices(data, path, records, index, int(rows[index]), held) for index in CHANCE.sample(range(size), 4)]
        own = [int(row) for row in rows]
        if all(seen) and len(set(own)) == size:  # else it is a table in which things are looked up
            return own
    return []


def _whole(value: Any) -> bool:
    """Whether all of a list or an array are whole numbers."""
    if isinstance(value, Tensor):
        return value.dim() == 1 and not value.is_floating_point()
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind == "i"
    return isinstance(value, (list, tuple)) and all(isinstance(each, (int, np.integer)) for each in value)


def _notices(data: Any, path: Path, records: Any, index: int, row: int, held: ChanceHeld) -> bool:
    """Whether an item changes if ``row`` of the records is another one."""
    if not 0 <= row < len(records):
        return False
    try:
        order = np.arange(len(records))
        order[row] = CHANCE.choice([other for other in range(min(len(records), row + 64)) if other != row])
        first, other = (held.read(each, index, 0) for each in (data, _with(data, path, _arranged(records, order))))
    except Exception:
        return False
    return first is not None and other is not None and not all_same(first, other)


def _inside(value: Any, path: Path, size: int) -> Iterator[tuple[Path, Any, bool]]:
    if len(path) > _DEEP:
        return
    if isinstance(value, Dataset):
        yield from _records(value, path)
    elif 4 <= size <= _length(value) and _is_records(value):
        yield path, value, _length(value) == size
    elif isinstance(value, Mapping) and len(value) <= _FEW:
        for name, each in value.items():
            yield from _inside(each, (*path, name), size)
    elif isinstance(value, (list, tuple)) and len(value) <= _FEW:
        for place, each in enumerate(value):
            yield from _inside(each, (*path, place), size)
    elif isinstance(value, SimpleNamespace) or (_looked_into(value) and not _installed(type(value).__module__)):
        for name, each in getattr(value, "__dict__", {}).items():
            yield from _inside(each, (*path, name), size)


def _is_records(value: Any) -> bool:
    """Whether rows may be records; whole numbers alone may be where records begin, of which an item needs two."""
    if isinstance(value, (Tensor, np.ndarray)):
        whole = not value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind in "iub"
        return value.nbytes <= _LARGEST and not (whole and value.ndim < 2)
    if isinstance(value, (list, tuple)):
        return not all(isinstance(each, (int, np.integer)) for each in value)
    return hasattr(value, "iloc")


def _length(value: Any) -> int:
    try:
        return len(value)
    except Exception:
        return -1


def _made_alike(records: Any, rows: Sequence[int]) -> Any:
    """A copy in which all of ``rows`` hold one of them: no order, count or extreme of theirs stays."""
    order = np.arange(len(records))
    order[list(rows)] = CHANCE.choice(rows)
    return _arranged(records, order)


def _arranged(records: Any, order: np.ndarray[Any, Any]) -> Any:
    if isinstance(records, (Tensor, np.ndarray)):
        return records[torch.from_numpy(order)] if isinstance(records, Tensor) else records[order]
    if isinstance(records, (list, tuple)):
        moved = [records[place] for place in order]
        return tuple(moved) if isinstance(records, tuple) else moved
    return records.iloc[order].set_axis(records.index)


def _with(holder: Any, path: Path, value: Any) -> Any:
    """A copy of ``holder`` with ``value`` at the end of ``path``; what does not lie on it is shared."""
    if not path:
        return value
    name, *rest = path
    if isinstance(holder, tuple):
        return tuple(_with(each, tuple(rest), value) if place == name else each for place, each in enumerate(holder))
    twin = copy.copy(holder)
    for key, each in vars(twin).items() if hasattr(twin, "__dict__") else ():
        if type(each) is dict:  # what was read, for one
            twin.__dict__[key] = each.copy()
    if isinstance(twin, (list, Mapping)):
        twin[name] = _with(holder[name], tuple(rest), value)  # type: ignore[index]
    else:
        twin.__dict__[name] = _with(holder.__dict__[name], tuple(rest), value)
    return twin


def values_in(item: Any, deep: int) -> Iterator[Any]:
    """What an item holds, in order: copies of arrays, and plain values."""
    if isinstance(item, Tensor):
        yield item.detach().to_dense().clone()
    elif isinstance(item, Mapping) and deep:
        for name in item:
            yield from values_in(item[name], deep - 1)
    elif isinstance(item, (list, tuple)) and deep:
        for each in item:
            yield from values_in(each, deep - 1)
    elif isinstance(item, (str, bytes, int, float, bool, type(None))):
        yield item
    elif deep and (inner := getattr(item, "__dict__", None)) and not hasattr(item, "__array_interface__"):
        yield from values_in(inner, deep - 1)
    else:
        array = np.array(item)  # also a picture
        if array.dtype.kind in "fiub":
            yield torch.from_numpy(array)
        elif array.dtype.kind != "O":  # of objects that nobody can compare nothing is said
            yield array.tolist()


def all_same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Whether two lists of tensors and plain values are the same.

    Args:
        one: What `values_in` found.
        two: What it found another time.
    """

    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return same(a, b)
        return type(a) is type(b) and bool(a == b or (a != a and b != b))

    return len(one) == len(two) and all(map(alike, one, two))
