"""Per-sample losses: ``loss(outputs, targets)`` has one value per row, because private training clips rows.

>>> import torch
>>> hinge(torch.tensor([[2.0], [-0.5]]), torch.tensor([1, 1]))
tensor([0.0000, 1.5000])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sordina.errors import InvalidInput

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """``-log softmax(outputs)[target]``, (B, K) and (B,) to (B,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the positions of each sequence, (B, T, K) and (B, T) to (B,)."""
    return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(dim=1)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared difference over everything but the rows; a target (B,) also meets an output (B, 1)."""
    _refuse_other_rows(outputs, targets)
    difference = outputs - targets.reshape(outputs.shape)
    return difference.square().flatten(start_dim=1).mean(dim=1) if difference.dim() > 1 else difference.square()


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """``max(0, 1 - s y)`` for one score per row and targets in {0, 1}, read as y = 2 t - 1."""
    _refuse_other_rows(outputs, targets)
    return torch.relu(1 - outputs.reshape(targets.shape) * (2 * targets - 1))


def _refuse_other_rows(outputs: Tensor, targets: Tensor) -> None:
    """Refuse shapes whose rows do not pair one to one: a reshape would mix samples."""
    if len(outputs) != len(targets) or outputs.numel() != targets.numel():
        raise InvalidInput(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} do not pair row by "
            "row: give each row as many targets as it has outputs."
        )


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "next-token": next_token, "mse": mse, "hinge": hinge}

_BY_TASK = {
    "classification": "cross-entropy",
    "reconstruction": "mse",
    "regression": "mse",
    "language": "next-token",
}


def named(name: str) -> Loss:
    """The loss called ``name``."""
    if name not in LOSSES:
        raise InvalidInput(f"unknown loss {name!r}: choose one of {', '.join(LOSSES)}.")
    return LOSSES[name]


def for_task(task: str) -> Loss:
    """The usual loss of a task of `sordina.datasets.Task`."""
    if task not in _BY_TASK:
        raise InvalidInput(f"no loss for the task {task!r}: choose one of {', '.join(_BY_TASK)}.")
    return LOSSES[_BY_TASK[task]]
