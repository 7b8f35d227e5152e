"""A named data set, model and schedule as plain data: what a search over a known data set needs in every process."""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from sordina import datasets, models
from sordina.datasets import Data, Task
from sordina.errors import InvalidInput
from sordina.privacy import Budget, check_seed
from sordina.training import Trainer
from sordina.training.losses import Loss

_LOSSES: dict[Task, Loss] = {
    Task.CLASSIFICATION: nn.functional.cross_entropy,
    Task.RECONSTRUCTION: nn.functional.mse_loss,
}
_BOUNDS = {Task.CLASSIFICATION: 1.0, Task.RECONSTRUCTION: 0.1}
"""Public bound of a record's loss in private selection: pixels lie in [0, 1], and useful pictures are off far less."""


@dataclass(frozen=True)
class NamedTask:
    """What to train. A share ``hold_out`` of the training rows validates; with 0, the test part does.

    Which rows are held out is decided by a hash of each row, keyed by ``split_seed``: a row's fate depends on that row
    alone, so when one comes or goes the others stay where they are. The expected number of rows is the public
    population. ``rows`` and ``test_rows`` take only the first so many, for trial runs.
    """

    dataset: str
    model: str | None = None
    batch_size: int = 512
    epochs: float = 10.0
    hold_out: float = 0.0
    split_seed: int = 0
    rows: int | None = None
    test_rows: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.hold_out < 1:
            raise InvalidInput(f"the held-out share must lie in [0, 1), got {self.hold_out}.")
        for name, count in (("rows", self.rows), ("test_rows", self.test_rows), ("batch_size", self.batch_size)):
            if count is not None and count < 1:
                raise InvalidInput(f"{name} must be at least 1, got {count}.")
        if not 0 < self.epochs < math.inf:
            raise InvalidInput(f"epochs must be positive and finite, got {self.epochs}.")
        check_seed(self.split_seed)

    def data(self) -> Data:
        """The data set, cut to ``rows`` and ``test_rows``; loaded once per process."""
        data = _load(self.dataset)
        if data.task not in _LOSSES:
            raise InvalidInput(f"{self.dataset} is a {data.task} task; a search trains classifiers and autoencoders.")
        return replace(data, train=_first(data.train, self.rows), test=_first(data.test, self.test_rows))

    def source(self) -> tuple[TensorDataset, TensorDataset]:
        """Training and validation rows."""
        data = self.data()
        if not self.hold_out:
            return data.train, data.test
        held_out = coins(data.train, self.split_seed) < self.hold_out
        return _rows(data.train, ~held_out), _rows(data.train, held_out)

    def trainer(self, seed: int) -> Trainer:
        """A fresh trainer; budget and noise are the search's to set."""
        data = self.data()
        return Trainer(
            models.build_for(data, self.model, seed=seed), self.loss, Budget(math.inf, 0.0),
            batch_size=self.batch_size, epochs=self.epochs, population=round(len(data.train) * (1 - self.hold_out)),
        )  # fmt: skip

    @property
    def loss(self) -> Loss:
        """The loss of the data set's task."""
        return _LOSSES[self.data().task]

    @property
    def bound(self) -> float:
        """The public bound of a record's loss."""
        return _BOUNDS[self.data().task]


@functools.lru_cache(maxsize=2)
def _load(dataset: str) -> Data:
    return datasets.load(dataset)


def coins(rows: TensorDataset, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) per row, from a hash of the row keyed by ``seed``."""
    parts = [tensor.numpy() for tensor in rows.tensors]
    key = seed.to_bytes(16, "little")
    digests = [
        hashlib.blake2b(b"".join(part[row].tobytes() for part in parts), digest_size=8, key=key).digest()
        for row in range(len(rows))
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8") / 2.0**64


def _first(rows: TensorDataset, count: int | None) -> TensorDataset:
    return rows if count is None else TensorDataset(*(tensor[:count] for tensor in rows.tensors))


def _rows(rows: TensorDataset, where: Any) -> TensorDataset:
    index = np.flatnonzero(where)
    return TensorDataset(*(tensor[index] for tensor in rows.tensors))
