"""Scores on held-out data, without noise: the guarantee does not cover these rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from sordina.errors import InvalidInput
from sordina.models.metrics import accuracy
from sordina.training.batches import as_rows, inputs_and_target
from sordina.training.losses import Loss, per_sample


@torch.no_grad()
def evaluate(model: nn.Module, loss: Loss, data: Any, batch: int = 1000) -> dict[str, float]:
    """Mean loss, and accuracy where targets are classes.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> x = torch.eye(2)
    >>> evaluate(model, nn.functional.cross_entropy, (x, torch.tensor([0, 1])))["accuracy"]
    1.0
    """
    rows, each = as_rows(data), per_sample(loss)
    if not rows.size:
        raise InvalidInput("the validation data are empty.")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    losses, right = 0.0, 0.0
    classes = False
    for start in range(0, rows.size, batch):
        inputs, target = inputs_and_target(rows.take(np.arange(start, min(start + batch, rows.size))))
        output = model(*inputs)
        losses += float(each(output, target).double().sum())
        classes = (
            isinstance(output, torch.Tensor)
            and output.ndim == 2
            and target.ndim == 1
            and not target.is_floating_point()
        )
        if classes:
            right += accuracy(output, target) * len(target)
    for module, mode in modes:
        module.training = mode
    scores = {"loss": losses / rows.size}
    return scores | {"accuracy": right / rows.size} if classes else scores
