"""The rows an attack looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from sordina.errors import InvalidInput


@dataclass(frozen=True)
class Samples:
    """``inputs`` (N, ...) with their ``labels`` (N,); a language model's samples are token ids and need no labels."""

    inputs: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise InvalidInput(f"{len(self.inputs)} inputs but {len(self.labels)} labels.")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Any) -> Samples:
        """The rows at ``rows`` (indices or a mask)."""
        rows = torch.as_tensor(rows)
        return Samples(self.inputs[rows], None if self.labels is None else self.labels[rows])

    def batches(self, size: int) -> Iterator[Samples]:
        """Consecutive parts of at most ``size`` rows."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield Samples(self.inputs[part], None if self.labels is None else self.labels[part])

    def __add__(self, other: Samples) -> Samples:
        if (self.labels is None) != (other.labels is None):
            raise InvalidInput("members and non-members must both have labels, or neither.")
        labels = None if self.labels is None or other.labels is None else torch.cat([self.labels, other.labels])
        return Samples(torch.cat([self.inputs, other.inputs]), labels)


def as_samples(data: Any) -> Samples:
    """Samples from what users hold: `Samples`, ``(inputs, labels)``, a tensor of token ids, or a torch data set.

    >>> len(as_samples((torch.zeros(3, 2), torch.zeros(3))))
    3
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, Tensor):
        return Samples(data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    elif isinstance(data, Dataset):
        data = default_collate([data[index] for index in range(len(data))])  # type: ignore[arg-type]
    if isinstance(data, tuple | list) and len(data) in (1, 2):
        return Samples(*(torch.as_tensor(part) for part in data))
    raise InvalidInput(f"cannot read rows from {type(data).__name__}: give (inputs, labels), token ids or a data set.")
