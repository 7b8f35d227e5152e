"""From drawn units to tensors: rows of a data set, in micro-batches, with padding for users of few rows."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.errors import InvalidInput
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.removal import RemovalSchedule
from sordina.gradients.structure import Mixing
from sordina.sampling import PADDING, Indices, Users
from sordina.training.collate_trials import check_collate, equal, holds, sizes_of
from sordina.training.dataset_trials import Asking, check_items

log = logging.getLogger(__name__)
Collate: TypeAlias = Callable[[list[Any]], Any]
"""What makes a batch of a list of items."""


@dataclass(frozen=True)
class Rows:
    """A data set whose rows can be taken by index: a TensorDataset, a tuple of tensors, or any map-style Dataset.

    A function that pads items to the longest of their batch lets one long item change what all others are, and a model
    that does not mask the padding then has no bound per item. With ``by_size`` such items never meet: units whose own
    batches have the same sizes are put together, all others run apart.
    """

    source: Any
    size: int
    collate: Collate = default_collate
    by_size: bool = False

    def take(self, indices: Indices) -> Any:
        """The rows at ``indices``, collated."""
        if isinstance(self.source, tuple):
            index = torch.from_numpy(np.ascontiguousarray(indices))
            return tuple(tensor.index_select(0, index) for tensor in self.source)
        return self.collate([self.source[int(i)] for i in indices])

    def readable(self, piece: MicroBatch) -> list[tuple[MicroBatch, Any]]:
        """The rows of ``piece`` that can be read: in one batch, or one for every unit if they do not go together.

        An item that cannot be read, or that has not the form of the data set, adds nothing and stops nothing. Every
        item is judged by itself, so what one is changes nothing for the others.

        Args:
            piece: Which rows.

        Returns:
            What was taken of the piece, with its batch; nothing if no item could be read.
        """
        if isinstance(self.source, tuple):
            return [(piece, self.take(piece.rows))]
        items = {row: self._item(row) for row in {int(row) for row in piece.rows}}
        part = piece.only(np.array([items[int(row)] is not None for row in piece.rows]))
        if part is None:
            return []
        taken: list[tuple[MicroBatch, Any]] = []
        for group in self._of_one_size(part, items):
            for parts in ([group], group.units()):
                batches = [(each, self._batch(each, items)) for each in parts]
                found = [(each, batch) for each, batch in batches if batch is not None]
                if found:
                    taken += found
                    break
        return [(replace(each, last=each.last and each is taken[-1][0]), batch) for each, batch in taken]

    def take_or_refuse(self, indices: Sequence[int]) -> Any:
        """As `take`, for who looks through a map-style data set: an item that does not fit is refused by its number.

        Args:
            indices: Which rows.
        """
        return self.collate([self._item_or_refuse(index) for index in indices])

    def check_alike(self) -> None:
        """Read a map-style data set once and refuse items that are not all of one form, before anything is spent."""
        if not isinstance(self.source, tuple):
            for index in range(self.size):
                self._item_or_refuse(index)

    def check_apart(self, users: Users | None = None) -> None:
        """Refuse a map-style data set of which items depend on one another, as far as it can be tried.

        From then on who looks through it refuses items for which it asks itself for others.

        Args:
            users: Whose each item is, where a person may have several.
        """
        if not isinstance(self.source, tuple):
            owners = getattr(users, "owners", None)  # what is no `Users` is refused later, with the reason
            owners = None if owners is None else np.asarray(owners).tolist()
            check_items(self.source, self.size, owners)
            self._asking.append(Asking(self.source, owners))
        if self.by_size:
            check_collate(self.collate, self.source, self.size)

    @property
    def own(self) -> str | None:
        """The type of a data set whose items are made by code of the user's; None for tensors and lists."""
        held = self.source
        if type(held).__module__.startswith("sordina."):
            held = getattr(held, "source", ())  # what a data set of ours draws from
        kind = getattr(held, "format", {"type": "custom"}) if type(held).__module__.startswith("datasets.") else {}
        plain = kind.get("type", "custom") != "custom"  # a table of Hugging Face's without a transform
        return None if plain or isinstance(held, (tuple, list)) else type(held).__name__

    @cached_property
    def pattern(self) -> Any:
        """What two items look like in a batch; None if none can be read."""
        return None if self._first is None else self.collate([_copy(self._first), _copy(self._first)])

    @cached_property
    def _first(self) -> Any:
        """The first item that can be read and collated."""
        for index in range(min(self.size, _LOOKS)):
            try:
                item = self.source[index]
                self.collate([_copy(item), _copy(item)])
            except Exception:
                continue
            return item
        return None

    @cached_property
    def _form(self) -> Any:
        """What every item must look like; that all do is found out by `check_alike`, so that no item decides it."""
        return self._form_of(self._first)

    @cached_property
    def _known(self) -> dict[Any, bool]:
        """Whether items fit, by their types and shapes: where torch collates, nothing else decides."""
        return {}

    @cached_property
    def _asking(self) -> list[Asking]:
        """What notices, once somebody has asked for it, that an item is made of another one."""
        return []

    def _item_or_refuse(self, index: int) -> Any:
        if self._first is None:
            raise InvalidInput("no item of the data set can be read and collated: see what data[0] gives.")
        with self._asking[-1]() if self._asking else nullcontext():
            item = self._item(index)
        if item is None:
            different = "" if self._by_torch else " after collate_fn"
            raise InvalidInput(
                f"item {index} of the data set cannot be read, or has another shape or type than the first ones"
                f"{different} (its values are not shown): leave it out, or mend it."
                + (" Items of different sizes need a collate_fn that pads them." if self._by_torch else "")
            )
        return item[0]

    def _item(self, index: int) -> tuple[Any] | None:
        """The item, if it can be read and has the form of the data set: nothing but the item decides."""
        if self._first is None:
            return None
        try:
            item = self.source[index]
            if not self._by_torch:
                return (item,) if self._form_of(item) == self._form else None
            kind = _kind(item)
            if kind not in self._known:
                self._known[kind] = self._form_of(item) == self._form
            return (item,) if self._known[kind] else None
        except Exception:
            return None

    def _batch(self, piece: MicroBatch, items: Mapping[int, tuple[Any] | None]) -> Any:
        """The items of ``piece`` together, None if they do not go together."""
        given = [item[0] for item in (items[int(row)] for row in piece.rows) if item is not None]
        if self._lone and len(given) > piece.rows_per_unit:
            return None
        try:
            batch = self.collate([_copy(item) for item in given])
            if self._shape(batch) != self._form[1] or not self._unwidened(piece, given, batch):
                return None
        except Exception:
            return None
        if self.by_size and self.schedule.due() and not self._stays_apart(given, piece.rows_per_unit):
            self._lone.append(True)
            log.warning("collate_fn draws at random for a whole batch: from now on it is given one unit at a time")
            return None
        return batch

    @cached_property
    def _lone(self) -> list[bool]:
        """Not empty where units run apart, because nobody can tell whether ``collate`` mixes them."""
        return []

    def _of_one_size(self, piece: MicroBatch, items: Mapping[int, tuple[Any] | None]) -> list[MicroBatch]:
        """The units of ``piece``, those together whose own batches have the same sizes."""
        if not self.by_size:
            return [piece]
        groups: dict[Any, list[MicroBatch]] = {}
        for unit in piece.units():
            given = [item[0] for item in (items[int(row)] for row in unit.rows) if item is not None]
            try:
                key = repr(sizes_of(self.collate([_copy(item) for item in given]), len(given)))
            except Exception:
                key = ""
            groups.setdefault(key, []).append(unit)
        return [_joined(group) for group in groups.values()]

    def _unwidened(self, piece: MicroBatch, given: list[Any], batch: Any) -> bool:
        """Whether a unit of ``piece`` looks in ``batch`` as in a batch of its own; the units are of one size."""
        if not self.by_size or len(given) == piece.rows_per_unit:
            return True
        own = self.collate([_copy(item) for item in given[: piece.rows_per_unit]])
        return sizes_of(own, piece.rows_per_unit) == sizes_of(batch, len(given))

    @cached_property
    def schedule(self) -> RemovalSchedule:
        """When ``collate_fn`` is looked at."""
        return RemovalSchedule()

    def _stays_apart(self, given: list[Any], rows: int) -> bool:
        """Refuse a function by whose word an item's row depends on the other items; false if chance hides whether.

        A unit stands first in company, and alone; chance begins from the same seed both times.

        Args:
            given: The items of a batch.
            rows: How many of them a unit has.
        """
        if len(given) <= rows:
            return True
        place = rows * _CHANCE.randrange(len(given) // rows)
        unit, others = given[place : place + rows], given[:place] + given[place + rows :]
        for seed in [_CHANCE.getrandbits(32) for _ in range(_SEEDS)]:
            try:
                company, own, another = (
                    self._seeded(*each) for each in (([*unit, *others], seed), (unit, seed), (unit, seed + 1))
                )
            except Exception:
                return False
            if any(holds(company, own, place) for place in range(len(given) // rows)):
                continue
            if all(map(equal, own, another)) and all(map(equal, company, self._seeded([*unit, *others], seed + 1))):
                raise Mixing(
                    "samples mix: collate_fn makes another row of an item when other items are with it, so no "
                    "per-sample bound exists, and none holds for the steps since this began. Let it treat every item "
                    "by itself."
                )
            return False
        return True

    def _seeded(self, given: list[Any], seed: int) -> list[Tensor]:
        """The tensors of a batch, with chance from ``seed``."""
        with _chance_aside():
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            return list(tensors_in([self.collate([_copy(item) for item in given])]))

    @property
    def _by_torch(self) -> bool:
        return self.collate is default_collate

    def _form_of(self, item: Any) -> tuple[Any, Any]:
        """The names in an item, and what it looks like in a batch of its own."""
        names = frozenset(item) if isinstance(item, Mapping) else len(item) if isinstance(item, tuple) else None
        return names, self._shape(self.collate([_copy(item)]))

    def _shape(self, batch: Any) -> Any:
        """Names, types and shapes in a batch; only the number of dimensions where a function of the user's may pad."""
        if isinstance(batch, Tensor):
            return batch.dtype, batch.shape[1:] if self._by_torch else (batch.dim(), batch.numel() > 0)
        if isinstance(batch, Mapping):
            return {name: self._shape(value) for name, value in batch.items()}
        tensors = list(tensors_in([batch]))
        if not isinstance(batch, (tuple, list)) or not tensors:
            return [(tensor.dtype, tensor.dim()) for tensor in tensors]
        parts = [self._shape(value) for value in batch]
        one_per_row = not self._by_torch and all(part == parts[0] for part in parts)
        return parts[:1] if one_per_row else parts


def _joined(units: list[MicroBatch]) -> MicroBatch:
    """Units as one piece."""
    weights = [unit.weights for unit in units if unit.weights is not None]
    rows = np.concatenate([unit.rows for unit in units])
    return replace(units[0], rows=rows, weights=torch.cat(weights) if weights else None)


_CHANCE, _SEEDS = random.SystemRandom(), 3


@contextmanager
def _chance_aside() -> Iterator[None]:
    """What is drawn in here changes nothing that is drawn later."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def blank_batch(rows: Rows, whole: int = 0) -> tuple[Any, int]:
    """A batch of zeros in the form of ``rows``, and its length, which is no other length in it; None if none is known.

    Args:
        rows: The data.
        whole: What whole numbers are, where models do not take zero (a length).
    """
    like = rows.source if isinstance(rows.source, tuple) else rows.pattern
    taken = {size for tensor in tensors_in([like]) for size in tensor.shape[1:]}
    length = next(size for size in range(2, len(taken) + 3) if size not in taken)

    def blank(tensor: Tensor) -> Tensor:
        number = 0 if tensor.is_floating_point() or tensor.dtype == torch.bool else whole
        return tensor.new_full((length, *tensor.shape[1:]), number)

    return changed(like, blank), length


_LOOKS = 1000
"""How many items are looked at for one that can be read."""


def _copy(item: Any) -> Any:
    """A copy of a dictionary or a list: there are collate functions that change the items they are given."""
    return copy.copy(item) if isinstance(item, (Mapping, list)) else item


def _kind(item: Any) -> Any:
    """Types and shapes of an item, at any depth."""
    if isinstance(item, (Tensor, np.ndarray)):
        return type(item), item.dtype, tuple(item.shape)
    if isinstance(item, Mapping):
        return type(item), tuple((name, _kind(value)) for name, value in item.items())
    if isinstance(item, (tuple, list)):
        return type(item), tuple(_kind(value) for value in item)
    return type(item)


def as_rows(data: Any, collate_fn: Collate | None = None, *, by_size: bool = False) -> Rows:
    """``data`` as `Rows`; refuses what cannot be sampled by index.

    Args:
        data: A TensorDataset, a tuple of tensors, a map-style Dataset, or `Rows` already.
        collate_fn: What makes a batch of a list of the data set's items, as in `torch.utils.data.DataLoader`: to pad
            sequences of different lengths. It must treat every item alike, whatever the others are.
        by_size: Whether items that ``collate_fn`` makes of different sizes run apart (`Rows`).
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)) and data and all(isinstance(part, (Tensor, np.ndarray)) for part in data):
        if collate_fn is not None:
            raise InvalidInput("collate_fn goes with a map-style Dataset, whose items it puts together; tensors are.")
        tensors = tuple(torch.as_tensor(part) for part in data)
        sizes = {len(tensor) for tensor in tensors}
        if len(sizes) != 1:
            raise InvalidInput(f"the tensors of a data set must have equally many rows, got {sorted(sizes)}.")
        return Rows(tensors, sizes.pop())
    if isinstance(data, Dataset) and hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return Rows(data, len(data), collate_fn or default_collate, by_size and collate_fn is not None)
    raise InvalidInput(
        f"cannot sample from a {type(data).__name__}: give a TensorDataset, a tuple of tensors (inputs, targets) or a "
        "map-style Dataset. A DataLoader draws its own batches, which would void the guarantee: give its .dataset."
    )


@dataclass(frozen=True)
class MicroBatch:
    """Some units of a logical batch: their row numbers, and how much each row's loss counts for its unit.

    A unit with few rows is padded with a row of its own, of weight zero: a row of somebody else, were its gradient not
    finite, would silence the unit.
    """

    rows: Indices
    weights: Tensor | None
    rows_per_unit: int
    last: bool

    def only(self, present: np.ndarray[Any, Any]) -> MicroBatch | None:
        """Without the rows that are not ``present``; a unit that has none is left out, and None if nobody is left.

        Args:
            present: One truth value per row. In a unit of several rows another one of its own, with weight zero,
                stands where one is missing.
        """
        if present.all():
            return self
        table, there = (each.reshape(-1, self.rows_per_unit) for each in (self.rows, present))
        units = there.any(axis=1)
        if not units.any():
            return None
        own = table[np.arange(len(table)), there.argmax(axis=1)]
        rows = np.where(there, table, own[:, None])[units].ravel()
        weights = self.weights
        if weights is not None:
            weights = (weights.view(table.shape) * torch.from_numpy(there))[torch.from_numpy(units)].reshape(-1)
        return MicroBatch(rows, weights, self.rows_per_unit, self.last)

    def units(self) -> list[MicroBatch]:
        """Every unit alone."""
        pieces = [slice(start, start + self.rows_per_unit) for start in range(0, len(self.rows), self.rows_per_unit)]
        return [
            replace(self, rows=self.rows[piece], weights=None if self.weights is None else self.weights[piece])
            for piece in pieces
        ]


def split(table: Indices, size: int | None) -> list[MicroBatch]:
    """Cut a batch (units, or units x rows with -1 as padding) into micro-batches of at most ``size`` units."""
    if not len(table):
        return []
    size = size or len(table)
    pieces = [table[start : start + size] for start in range(0, len(table), size)]
    return [_micro_batch(piece, last=number == len(pieces) - 1) for number, piece in enumerate(pieces)]


def _micro_batch(piece: Indices, *, last: bool) -> MicroBatch:
    if piece.ndim == 1:
        return MicroBatch(piece, None, 1, last)
    present = piece != PADDING
    weights = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    own = piece[np.arange(len(piece)), present.argmax(axis=1)]
    rows = np.where(present, piece, np.maximum(own, 0)[:, None])
    return MicroBatch(rows.ravel(), torch.from_numpy(weights.ravel()), piece.shape[1], last)


def inputs_and_target(batch: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    """A batch ``(x, ..., y)`` as the model's arguments and the target; a lone ``x`` is its own target."""
    if isinstance(batch, Tensor):
        return (batch,), batch
    parts = tuple(batch)
    return (parts, parts[0]) if len(parts) == 1 else (parts[:-1], parts[-1])
