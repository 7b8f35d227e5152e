"""What a data set is to the rest of the house: two tensor data sets and the facts about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor
from torch.utils.data import TensorDataset


class Task(str, Enum):
    """What is asked of a model, and so which loss and metric fit."""

    CLASSIFICATION = "classification"
    RECONSTRUCTION = "reconstruction"
    REGRESSION = "regression"
    LANGUAGE = "language"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Column:
    """An attribute of every row that is not an input: one code per row, and what the codes mean.

    Args:
        train: One value per training row.
        test: One value per test row.
        names: What the values stand for.
    """

    train: Tensor
    test: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """``(inputs, targets)`` to train on and to test on. Nothing in it was normalised with statistics of the rows.

    Args:
        name: The data set's name.
        task: What is to be learned.
        source: Where it comes from.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    task: Task
    classes: int = 0
    """Number of classes, or of words in the vocabulary; 0 for reconstruction and regression."""
    groups: Mapping[str, Column] = field(default_factory=dict)
    """Protected attributes by name, for fairness."""
    users: Column | None = None
    """Whose row it is, where the data say so (writer, hospital): the unit of user-level privacy."""
    vocabulary: tuple[str, ...] = ()
    """For text as token ids: what each id stands for."""
    source: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.tensors[0].shape[1:])
