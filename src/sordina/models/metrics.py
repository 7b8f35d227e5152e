"""What a user reads about a model: one number from all outputs and targets of a test set.

>>> import torch
>>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
0.5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from sordina.errors import InvalidInput
from sordina.models import losses

Metric: TypeAlias = Callable[[Tensor, Tensor], float]


def predicted_class(outputs: Tensor) -> Tensor:
    """The class of each row: the largest of several scores, or the sign of a single one."""
    return outputs.argmax(dim=-1) if outputs.shape[-1] > 1 else (outputs.squeeze(-1) > 0).long()


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of right classes."""
    return float((predicted_class(outputs) == targets).double().mean())


def mse(outputs: Tensor, targets: Tensor) -> float:
    """Mean squared error."""
    return float(losses.mse(outputs.detach(), targets).double().mean())


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error."""
    return float(mse(outputs, targets) ** 0.5)


METRICS: dict[str, Metric] = {"accuracy": accuracy, "mse": mse, "rmse": rmse}


def named(name: str) -> Metric:
    """The metric called ``name``."""
    if name not in METRICS:
        raise InvalidInput(f"unknown metric {name!r}: choose one of {', '.join(METRICS)}.")
    return METRICS[name]
