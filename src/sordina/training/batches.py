"""From drawn units to tensors: rows of a data set, in micro-batches, with padding for users of few rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.errors import InvalidInput
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
