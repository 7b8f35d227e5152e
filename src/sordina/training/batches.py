"""From drawn units to tensors: rows of a data set, in micro-batches, with padding for users of few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.errors import InvalidInput
from sordina.gradients._tracing import changed, tensors_in
from sordina.sampling import PADDING, Indices

Collate: TypeAlias = Callable[[list[Any]], Any]
"""What makes a batch of a list of items."""


@dataclass(frozen=True)
class Rows:
    """A data set whose rows can be taken by index: a TensorDataset, a tuple of tensors, or any map-style Dataset."""

    source: Any
    size: int
    collate: Collate = default_collate

    def take(self, indices: Indices) -> Any:
        """The rows at ``indices``, collated."""
        if isinstance(self.source, tuple):
            index = torch.from_numpy(np.ascontiguousarray(indices))
            return tuple(tensor.index_select(0, index) for tensor in self.source)
        return self.collate([self.source[int(i)] for i in indices])

    def take_readable(self, indices: Indices) -> tuple[Any, Tensor | None]:
        """The rows at ``indices``, collated, and which of them are blank because they cannot be read.

        An item that cannot be read, or that does not fit the others, must not stop a run at the step that draws it.

        Args:
            indices: Which rows.

        Returns:
            The batch, and a mask of the blank rows: None where all could be read, and no batch if none could.
        """
        if isinstance(self.source, tuple):
            return self.take(indices), None
        try:
            batch = self.take(indices)
            if kinds(batch) == self._kinds:
                return batch, None
        except Exception:
            pass
        if self._pattern is None:
            return None, None
        items = [self._readable(int(index)) for index in indices]
        blank = torch.tensor([item is None for item in items])
        return self.collate([_blank(self._pattern) if item is None else item[0] for item in items]), blank

    def take_or_refuse(self, indices: Sequence[int]) -> Any:
        """As `take`, for who looks through a map-style data set: an item that cannot be read is refused by its number.

        Args:
            indices: Which rows.
        """
        try:
            batch = self.take(np.asarray(indices))
            if kinds(batch) == self._kinds:
                return batch
        except Exception:
            pass
        if self._pattern is None:
            raise InvalidInput("no item of the data set can be read and collated: see what data[0] gives.")
        for index in indices:
            if self._readable(index) is None:
                raise InvalidInput(
                    f"item {index} of the data set cannot be read, or has another shape or type than the first ones "
                    "(its values are not shown): leave it out, or mend it."
                )
        raise InvalidInput("items of the data set can be read one by one, but not collated together: give collate_fn.")

    @cached_property
    def pattern(self) -> Any:
        """What two items look like in a batch; None if none can be read."""
        return None if self._pattern is None else self.collate([self._pattern, self._pattern])

    @cached_property
    def _pattern(self) -> Any:
        """The first item that can be read and collated: what the others must look like."""
        for index in range(min(self.size, _LOOKS)):
            try:
                item = self.source[index]
                self.collate([item, item])
            except Exception:
                continue
            return item
        return None

    @cached_property
    def _kinds(self) -> list[torch.dtype]:
        return kinds(self.pattern)

    def _readable(self, index: int) -> tuple[Any] | None:
        """The item, if it goes with the pattern."""
        try:
            item = self.source[index]
            return (item,) if kinds(self.collate([self._pattern, item])) == self._kinds else None
        except Exception:
            return None


def blank_batch(rows: Rows) -> tuple[Any, int]:
    """A batch of zeros in the form of ``rows``, and its length, which is no other length in it; None if none is known.

    Args:
        rows: The data.
    """
    like = rows.source if isinstance(rows.source, tuple) else rows.pattern
    taken = {size for tensor in tensors_in([like]) for size in tensor.shape[1:]}
    length = next(size for size in range(2, len(taken) + 3) if size not in taken)
    return changed(like, lambda tensor: tensor.new_zeros(length, *tensor.shape[1:])), length


_LOOKS = 1000
"""How many items are looked at for one that can be read."""


def kinds(batch: Any) -> list[torch.dtype]:
    """The types of the tensors in ``batch``: one item of another type changes that of the whole batch.

    Args:
        batch: What a collate function made.
    """
    return [tensor.dtype for tensor in tensors_in([batch])]


def _blank(item: Any) -> Any:
    """Zeros in the form of ``item``."""
    if isinstance(item, Tensor):
        return torch.zeros_like(item)
    if isinstance(item, (np.ndarray, np.generic)):
        return np.zeros_like(item)
    if isinstance(item, (bool, int, float)):
        return type(item)(0)
    if isinstance(item, Mapping):
        return {key: _blank(value) for key, value in item.items()}
    if isinstance(item, (tuple, list)):
        parts = [_blank(value) for value in item]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    return item


def as_rows(data: Any, collate_fn: Collate | None = None) -> Rows:
    """``data`` as `Rows`; refuses what cannot be sampled by index.

    Args:
        data: A TensorDataset, a tuple of tensors, or a map-style Dataset.
        collate_fn: What makes a batch of a list of the data set's items, as in `torch.utils.data.DataLoader`: to pad
            sequences of different lengths. It must treat every item alike, whatever the others are.
    """
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
        return Rows(data, len(data), collate_fn or default_collate)
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
