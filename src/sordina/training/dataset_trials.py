"""Whether an item of a map-style data set, and its row in a batch, depend on its own record alone, as far as is tried.

An item that is mixed with others in ``__getitem__`` (mixup, mosaics), or standardised by a running average of what was
read, makes a record part of other items: clipping bounds items, so it would bound no record.

Two trials, before anything is spent, both with all random numbers held. An item that is read, then read again after
others, must be the same. And where the records lie in memory, a random half of them is put into another order, then
the other half: an item of one record notices one of the two at most. What lies on a disk cannot be tried in this way,
nor what begins later, so the guarantee of such a run says whose word it is (`sordina.training.run.OWN_ITEMS`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sordina.errors import InvalidInput
from sordina.gradients._chance import CASES, Generators
from sordina.gradients._kept_state import _installed, _looked_into, same
from sordina.gradients.removal import CHANCE
from sordina.gradients.structure import Mixing

_AGAIN, _SPLITS, _ITEMS = 8, 3, 64
"""How many items are read again; how often records are split into halves, and how many items are then looked at."""
_LARGEST, _FEW, _DEEP = 1 << 27, 64, 6
"""Records of more bytes are not copied; so many things are looked at in a list, and so deep."""
_BATCHES, _TRIED = 24, 12
"""How many batches of a function of the user's are tried, and of how many items each."""


def check_items(data: Any, size: int, owners: Sequence[Any] | None = None) -> None:
    """Refuse a data set of which an item depends on other records than its own, or on what was read before.

    Args:
        data: A map-style data set.
        size: How many items it has.
        owners: Whose each item is, if a person may have several: items may depend on all records of theirs.
    """
    if size < 4:
        return
    with _ChanceHeld(data) as held:
        for path, records, exact in list(_records(data)):  # before others fill what it keeps
            rows = range(len(records)) if exact else _own_rows(data, path, records, size, held)
            for _ in range(_SPLITS if rows else 0):
                _check_apart(data, path, records, rows, size, held, owners)
        for _ in range(_AGAIN):
            index, *others = CHANCE.sample(range(size), 4)
            _check_again(data, index, others, held)


Collate = Callable[[list[Any]], Any]


def _together(collate: Collate, items: list[Any]) -> Any:
    """A batch of copies: there are functions that change the items they are given."""
    return collate([copy.copy(item) if isinstance(item, (Mapping, list)) else item for item in items])


def check_collate(collate: Collate, data: Any, size: int, form: Callable[[Any], str]) -> None:
    """Refuse a function that mixes items now and then, by the toss of a coin, or that remembers them.

    All random numbers are held, those of first tosses low or high. An item is put together with others, then with
    itself as often: wherever it lies in the first batch, there its row must be the same in the second.

    Args:
        collate: From items to a batch.
        data: A map-style data set.
        size: How many items it has.
        form: From the batch of one item to a name of its sizes: items of one form are batched together.
    """
    with _ChanceHeld(collate) as held:
        for number in range(_BATCHES):
            seed, case = CHANCE.getrandbits(32), number % len(CASES)
            alike: dict[str, list[Any]] = {}
            for index in CHANCE.sample(range(size), min(size, _TRIED)):
                with suppress(Exception):
                    item = data[index]
                    alike.setdefault(form(_together(collate, [item])), []).append(item)
            given = max(alike.values(), key=len, default=[])
            if len(given) < 3:
                return
            one, again = (held.batch(collate, given, seed, case) for _ in range(2))
            same_items = held.batch(collate, given[:1] * len(given), seed, case)
            if not one or not again or not same_items:
                continue
            if not _same(one, again) and _remembers(collate, given, seed, case, held):
                raise InvalidInput(
                    "collate_fn makes another batch of the same items with the same random numbers: it depends on what "
                    "it was given before (a running average, a memory of items). Let a batch depend on its items alone."
                )
            if not _same(one, again) or [each.shape for each in one] != [each.shape for each in same_items]:
                continue  # random numbers that nobody can hold; random lengths, of which only equal ones run together
            rows = [_rows(tensors, len(given)) for tensors in (one, same_items)]
            if rows[0] and not any(map(_same, *rows)):
                raise Mixing(
                    "samples mix: collate_fn makes another row of an item when other items are with it (mixup, a "
                    "scale over the batch), if only now and then, so no per-sample bound exists. Let it treat every "
                    "item by itself."
                )


def _remembers(collate: Collate, items: list[Any], seed: int, case: int, held: _ChanceHeld) -> bool:
    """Whether copies of a function, in the state it is in, agree: then what it gives follows from what it was given."""
    try:
        copies = [copy.deepcopy(collate) for _ in range(2)]
    except Exception:
        return False
    if any(each is collate for each in copies):
        return False
    one, two = (held.batch(each, items, seed, case) for each in copies)
    return bool(one and two and _same(one, two))


def _rows(values: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    """What the tensors of a batch hold of each item, where their shape tells."""
    told = [each for each in values if list(each.shape).count(count) == 1]
    tensors = [each.movedim(each.shape.index(count), 0) for each in told]
    return [[each[row] for each in tensors] for row in range(count)] if tensors else []


def _check_again(data: Any, index: int, others: Sequence[int], held: _ChanceHeld) -> None:
    first = held.read(data, index, 0)
    for other in others:
        held.read(data, other, 1)
    again = held.read(data, index, 0)
    if first is not None and again is not None and not _same(first, again):
        raise InvalidInput(
            "an item of the data set is another one when it is read again, with the same random numbers: it depends on "
            "what was read before (a running average, a memory of items), or on random numbers of a generator that "
            "nobody can find. Let an item depend on its own record alone, and on random, numpy.random or torch."
        )


def _check_apart(
    data: Any, path: Path, records: Any, rows: Sequence[int], size: int, held: _ChanceHeld, owners: Sequence[Any] | None
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
    for _ in range(_ITEMS):
        index, seed = CHANCE.randrange(size), CHANCE.getrandbits(32)
        first, *others = (held.read(each, index, seed) for each in (data, *twins))
        if first is not None and all(each is not None and not _same(first, each) for each in others):
            if not _same(first, held.read(data, index, seed) or []):
                return  # it is another one each time, whatever the records: see `_check_again`
            raise Mixing(
                f"samples mix: an item of the data set depends on more than one row of {_spelt(path)} (mixup or a "
                "mosaic in __getitem__, pairs, a window over several records, a scale taken over all of them), so "
                "clipping items bounds nobody. Let an item depend on its own record alone; where a person has several "
                "records, say whose they are by users=. If these are no records (about as many as items by chance), "
                "keep them outside of the data set."
            )


def _spelt(path: Path) -> str:
    return repr("".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in path).removeprefix("."))


class _ChanceHeld:
    """Reads items with the same random numbers each time; afterwards all generators are where they were."""

    def __init__(self, data: Any) -> None:
        self._generators = Generators(data)

    def __enter__(self) -> _ChanceHeld:
        self._kept = self._generators.kept()
        return self

    def __exit__(self, *_: object) -> None:
        for put_back in self._kept:
            put_back()

    def batch(self, collate: Collate, items: list[Any], seed: int, case: int) -> list[Tensor] | None:
        """The tensors of a batch; None if there is none."""
        self._generators.seed(seed, case)
        try:
            return [each for each in _values(_together(collate, items), _DEEP) if isinstance(each, Tensor)]
        except Exception:
            return None

    def read(self, data: Any, index: int, seed: int) -> list[Any] | None:
        """What an item holds; None if it cannot be read."""
        self._generators.seed(seed)
        try:
            return list(_values(data[index], _DEEP))
        except Exception:
            return None


Path = tuple[Any, ...]
"""The names of attributes, keys and places that lead from a data set to something inside of it."""


def _records(holder: Any, path: Path = ()) -> Iterator[tuple[Path, Any, bool]]:
    """What has a row for every item of a data set, or of one inside of it, and where it lies.

    Also what has more rows: whether these are records (or words that all items look up) is another question, and said.
    """
    size = _length(holder)
    for name, value in getattr(holder, "__dict__", {}).items():
        yield from _inside(value, (*path, name), size)


def _own_rows(data: Any, path: Path, records: Any, size: int, held: _ChanceHeld) -> Sequence[int]:
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


def _notices(data: Any, path: Path, records: Any, index: int, row: int, held: _ChanceHeld) -> bool:
    """Whether an item changes if ``row`` of the records is another one."""
    if not 0 <= row < len(records):
        return False
    try:
        order = np.arange(len(records))
        order[row] = CHANCE.choice([other for other in range(min(len(records), row + 64)) if other != row])
        first, other = (held.read(each, index, 0) for each in (data, _with(data, path, _arranged(records, order))))
    except Exception:
        return False
    return first is not None and other is not None and not _same(first, other)


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


def _values(item: Any, deep: int) -> Iterator[Any]:
    """What an item holds, in order: copies of arrays, and plain values."""
    if isinstance(item, Tensor):
        yield item.detach().to_dense().clone()
    elif isinstance(item, Mapping) and deep:
        for name in item:
            yield from _values(item[name], deep - 1)
    elif isinstance(item, (list, tuple)) and deep:
        for each in item:
            yield from _values(each, deep - 1)
    elif isinstance(item, (str, bytes, int, float, bool, type(None))):
        yield item
    elif deep and (inner := getattr(item, "__dict__", None)) and not hasattr(item, "__array_interface__"):
        yield from _values(inner, deep - 1)
    else:
        array = np.array(item)  # also a picture
        if array.dtype.kind in "fiub":
            yield torch.from_numpy(array)
        elif array.dtype.kind != "O":  # of objects that nobody can compare nothing is said
            yield array.tolist()


def _same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return same(a, b)
        return type(a) is type(b) and bool(a == b or (a != a and b != b))

    return len(one) == len(two) and all(map(alike, one, two))
