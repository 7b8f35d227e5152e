"""Whether a function that puts items together keeps them apart: its row of an item may not depend on the others.

Three kinds of trials, before anything is spent, all with random numbers held. Batches of a few items, with first tosses
that fall as they seldom do. Then *all* items, in pieces (as many as there is time for, in a random order, where they
are many): what a function does to an item of a thousand (a missing value that becomes the mean of the batch, a blank
text that becomes its neighbour) is not seen in a few batches. And items that are made up: missing values, zeros, minus
ones and loud numbers in the form of the first ones, together with one another and with those of the data.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.gradients._chance import CASES
from sordina.gradients._kept_state import KeptState, same
from sordina.gradients._tracing import tensors_in
from sordina.gradients.one_by_one import close
from sordina.gradients.removal import CHANCE
from sordina.gradients.structure import Mixing
from sordina.training.dataset_trials import MOST, ChanceHeld, Collate, all_same

_BATCHES, _TRIED, _FEW = 24, 12, 4
"""How many batches are tried with tosses; of how many items a batch is, and where random numbers are drawn."""
_SECONDS, _LIKE, _COMPANIES = 5.0, 3, 6
"""For how long items are tried; in the form of how many others are made up; company that confirms a difference."""
_MIXES = (
    "samples mix: collate_fn makes another row of an item when other items are with it (mixup, a scale over the batch, "
    "missing values filled from other items), if only now and then, so no per-sample bound exists. Let it treat every "
    "item by itself."
)
_REMEMBERS = (
    "collate_fn makes another batch of the same items with the same random numbers: it depends on what it was given "
    "before (a running average, a memory of items). Let a batch depend on its items alone."
)


class Remembering(InvalidInput):
    """A function that depends on the items it was given before."""


def check_collate(collate: Collate, data: Any, size: int) -> None:
    """Refuse a function that mixes items, if only now and then or only some of them, or that remembers them.

    Args:
        collate: From items to a batch.
        data: A map-style data set.
        size: How many items it has.
    """
    with ChanceHeld(collate) as held:
        _check_tosses(collate, data, size, held)
        if _Pieces(collate, held, by_size=True).mixes(data, size):
            raise Mixing(_MIXES)


def mixes_somewhere(collate: Collate, data: Any, size: int) -> bool:
    """Whether a function that pads on the right, to the longest of a batch, makes another row of any item in company.

    Args:
        collate: From items to a batch whose rows are the items, in their order.
        data: A map-style data set.
        size: How many items it has.

    Raises:
        Remembering: It depends on items of batches before.
    """
    with ChanceHeld(collate) as held:
        return _Pieces(collate, held, by_size=False).mixes(data, size)


def _check_tosses(collate: Collate, data: Any, size: int, held: ChanceHeld) -> None:
    """An item is put together with others, then with itself as often.

    Wherever it lies in the first batch, there its row must be the same in the second.
    """
    for number in range(_BATCHES):
        seed, case = CHANCE.getrandbits(32), number % len(CASES)
        alike: dict[str, list[Any]] = {}
        for index in CHANCE.sample(range(size), min(size, _TRIED)):
            for item in _read(data, index):
                alone = held.batch(collate, [item], seed)
                if alone is not None:
                    alike.setdefault(_form(alone), []).append(item)
        given = max(alike.values(), key=len, default=[])
        if len(given) < 3:
            return
        one, again = (held.batch(collate, given, seed, case) for _ in range(2))
        same_items = held.batch(collate, given[:1] * len(given), seed, case)
        if not one or not again or not same_items:
            continue
        if not all_same(one, again) and _remembers(collate, given, seed, case, held):
            raise Remembering(_REMEMBERS)
        if not all_same(one, again) or [each.shape for each in one] != [each.shape for each in same_items]:
            continue  # random numbers that nobody can hold; random lengths, of which only equal ones run together
        rows = [_rows(tensors, len(given)) for tensors in (one, same_items)]
        if rows[0] and not any(map(all_same, *rows)):
            raise Mixing(_MIXES)


def _read(data: Any, index: int) -> list[Any]:
    try:
        return [data[index]]
    except Exception:
        return []


def _remembers(collate: Collate, items: list[Any], seed: int, case: int, held: ChanceHeld) -> bool:
    """Whether a function, put back into the state it was in, does the same again: then it follows from what it kept."""
    try:
        copies = [copy.deepcopy(collate) for _ in range(2)]
    except Exception:
        copies = [collate]
    if all(each is not collate for each in copies):
        one, two = (held.batch(each, items, seed, case) for each in copies)
        if one and two and all_same(one, two):
            return True
    kept = KeptState(collate)  # of a function that closes over what it keeps, or names it, a copy is itself
    one = held.batch(collate, items, seed, case)
    kept.restore()
    two = held.batch(collate, items, seed, case)
    return bool(one and two and all_same(one, two))


def _rows(values: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    """What the tensors of a batch hold of each item, where their shape tells."""
    told = [each for each in values if list(each.shape).count(count) == 1]
    tensors = [each.movedim(each.shape.index(count), 0) for each in told]
    return [[each[row] for each in tensors] for row in range(count)] if tensors else []


def _form(alone: Sequence[Tensor]) -> str:
    return repr(sizes_of(alone, 1))


class _Pieces:
    """Puts all items together, in pieces, and compares the row of each with the one it has alone.

    Where random numbers are drawn, an item stands first among a few, and then first among others of which as many are
    drawn: what comes after it does not change its own. A difference counts if the numbers came equally far.

    Args:
        collate: What is tried.
        held: Holds its random numbers.
        by_size: Whether only items run together of which it makes one size, wherever it puts their rows; else it pads
            on the right, and leaves them in order.
    """

    def __init__(self, collate: Collate, held: ChanceHeld, *, by_size: bool) -> None:
        self.collate, self.held, self.by_size = collate, held, by_size

    def mixes(self, data: Any, size: int) -> bool:
        """Whether the row of an item depends on others.

        Args:
            data: A map-style data set.
            size: How many items it has.
        """
        until, waiting = time.monotonic() + _SECONDS, dict[str, list[tuple[Any, list[Tensor]]]]()
        self.held.drew = False
        order, least = CHANCE.sample(range(size), min(size, MOST)), _TRIED * _BATCHES
        for number in range(max(len(order), least if order else 0)):  # few items are tossed for several times
            if (number >= len(order) and not self.held.drew) or (number >= least and time.monotonic() > until):
                break
            for item in _read(data, order[number % len(order)]):
                for each in (item, *(made_up(item) if number < _LIKE else ())):
                    alone = self.held.batch(self.collate, [each], look=number < _TRIED)
                    if not alone:
                        continue
                    piece = waiting.setdefault(_form(alone) if self.by_size else "", [])
                    piece.append((each, alone))
                    if len(piece) >= (_FEW if self.held.drew else _TRIED) and self._piece_mixes(piece):
                        return True
        return any(len(piece) > 1 and self._piece_mixes(piece) for piece in waiting.values())

    def _piece_mixes(self, piece: list[tuple[Any, list[Tensor]]]) -> bool:
        """Try a piece, and empty it."""
        tried, items = list(piece), [item for item, _ in piece]
        piece.clear()
        company = [] if self.held.drew else self.held.batch(self.collate, items, look=True)
        if self.held.drew:
            turned = ([*items[place:], *items[:place]] for place in range(len(items)))
            return any(self._first_differs(each[0], each[1:_FEW]) for each in turned)
        if not company:
            return False
        if self.by_size and sizes_of(company, len(items)) != sizes_of(tried[0][1], 1):
            return False  # such items run apart
        missed = self._missed(company, [alone for _, alone in tried])
        if not missed:
            return False
        if not all_same(company, self.held.batch(self.collate, items) or []):
            self._look_for_memory(items, 0)
            return False
        return self.by_size or any(
            self._confirmed(items[place], [*items[:place], *items[place + 1 :]]) for place in missed
        )

    def _missed(self, company: list[Tensor], alone: list[list[Tensor]]) -> list[int]:
        """Which items are not in a batch what they are alone; every row of it is one item's only."""
        if not self.by_size:
            return [place for place, own in enumerate(alone) if not row_of(company, place, own)]
        missed = [place for place, own in enumerate(alone) if not holds(company, own, place)]
        free = list(missed)
        for item in list(missed):
            found = next((place for place in free if holds(company, alone[item], place)), None)
            if found is not None:
                free.remove(found)
                missed.remove(item)
        return missed

    def _confirmed(self, item: Any, others: list[Any]) -> bool:
        """Whether the row of an item differs between companies of one width; it may have been padded on the left."""
        some = (CHANCE.sample(others, min(len(others), _FEW)) for _ in range(_COMPANIES))
        return any(self._first_differs(item, each) for each in some)

    def _first_differs(self, item: Any, others: list[Any]) -> bool:
        """Whether an item's row among others is not what it is among equals, or among the largest of them."""
        filled = item if self.by_size else max([item, *others], key=self._largeness)
        batches, came, seed = [], [], CHANCE.getrandbits(32)
        for given in ([item, *others], [item, *[filled] * len(others)]):
            batches.append(self.held.batch(self.collate, given, seed))
            came.append(self.held.came())
        one, two = batches
        if not one or not two or came[0] != came[1] or [each.shape for each in one] != [each.shape for each in two]:
            return False
        if not all_same(one, self.held.batch(self.collate, [item, *others], seed) or []):
            self._look_for_memory([item, *others], seed)
            return False  # random numbers that nobody can hold
        if not self.by_size:
            return any(each.dim() > 0 and not same(each[0], twin[0]) for each, twin in zip(one, two, strict=True))
        rows = [_rows(each, 1 + len(others)) for each in (one, two)]
        return bool(rows[0]) and not any(map(all_same, *rows))

    def _look_for_memory(self, items: list[Any], seed: int) -> None:
        if _remembers(self.collate, items, seed, 0, self.held):
            raise Remembering(_REMEMBERS)

    def _largeness(self, item: Any) -> int:
        return sum(each.numel() for each in self.held.batch(self.collate, [item]) or [])


_FLOATS, _WHOLES = (float("nan"), 0.0, -1.0, 1e4), (0, -1, -100)
"""What numbers are replaced by in made-up items."""


def made_up(item: Any) -> Iterator[Any]:
    """Items in the form of ``item``: all its numbers, or all its whole numbers, are one that is special; no texts.

    Args:
        item: Tensors, arrays and numbers in dictionaries, tuples and lists.

    >>> list(made_up((0.5, 3)))[2:5]
    [(-1.0, 3), (10000.0, 3), (0.5, 0)]
    """
    for number in (*_FLOATS, *_WHOLES, ""):
        with suppress(Exception):  # no such number fits
            yield _filled(item, number)


def _filled(value: Any, number: Any) -> Any:
    """``value`` with what is of the type of ``number`` replaced by it."""
    if isinstance(value, Mapping):
        return {name: _filled(each, number) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_filled(each, number) for each in value]
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, (Tensor, np.ndarray)) and number != "":
        whole = not value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind != "f"
        if isinstance(number, int) is not whole or value.dtype in (torch.bool, np.dtype(bool)):
            return value
        return torch.full_like(value, number) if isinstance(value, Tensor) else np.full_like(value, number)
    return number if type(value) is type(number) else value


def sizes_of(batch: Any, rows: int) -> list[tuple[int, ...]]:
    """The sizes of the tensors in a batch but for the number of its rows, whichever dimension that is.

    Args:
        batch: What ``collate_fn`` gave.
        rows: How many items it is of.
    """
    found = []
    for tensor in tensors_in([batch]):
        sizes = list(tensor.shape)
        if rows in sizes:
            sizes.remove(rows)
        found.append(tuple(sizes))
    return found


def equal(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are the same up to rounding.

    Args:
        one: A tensor.
        two: Another one.
    """
    return close(one, two, None)


def holds(company: Sequence[Tensor], own: Sequence[Tensor], place: int) -> bool:
    """Whether what a unit has alone lies at a place in company, in every dimension that grows with a batch.

    There are functions that sort: where it lies does not matter.

    Args:
        company: The tensors of a batch.
        own: Those of a batch of one unit.
        place: Which unit of the batch.
    """
    if len(company) != len(own):
        return False
    for one, two in zip(company, own, strict=True):
        if one.dim() != two.dim() or any(map(int.__lt__, one.shape, two.shape)):
            return False
        starts = [place * size if size < whole else 0 for size, whole in zip(two.shape, one.shape, strict=True)]
        part = one[tuple(slice(start, start + size) for start, size in zip(starts, two.shape, strict=True))]
        if part.shape != two.shape or not equal(part, two):
            return False
    return True


def row_of(company: Sequence[Tensor], place: int, own: Sequence[Tensor]) -> bool:
    """Whether a row is what the item has alone, as far as it reaches there: what follows is padding.

    Args:
        company: The tensors of a batch, the items in the first dimension.
        place: Which row.
        own: The tensors of a batch of one.
    """
    if len(company) != len(own):
        return False
    for one, two in zip(company, own, strict=True):
        if one.dim() != two.dim() or not two.dim() or place >= len(one):
            return False
        width = tuple(map(slice, map(min, one.shape[1:], two.shape[1:])))
        if not equal(one[place][width], two[0][width]):
            return False
    return True
