"""Per-sample losses: a mean over the batch hides who contributed what, so it is turned back or refused."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sordina.errors import InvalidInput

Loss = Callable[..., Tensor]


def per_sample(loss: Loss) -> Loss:
    """``loss`` with one value per sample.

    A function with a ``reduction`` argument (all of ``torch.nn.functional``) or a loss module gets ``"none"``; further
    dimensions, such as pixels or words, are averaged per sample. Any other function must return shape (B,) itself.

    >>> import torch
    >>> per_sample(torch.nn.functional.mse_loss)(torch.zeros(3, 4), torch.ones(3, 4))
    tensor([1., 1., 1.])
    """
    if isinstance(loss, nn.Module):
        if hasattr(loss, "reduction"):
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 - nn.Module types its attributes as tensors
    elif "reduction" in _parameters(loss):
        loss = functools.partial(loss, reduction="none")

    def each(output: Any, target: Tensor) -> Tensor:
        losses = loss(output, target)
        if losses.ndim == 0:
            raise InvalidInput(
                "the loss returned one number for the whole batch; privacy needs one per sample. Return shape (B,), "
                "for instance by reduction='none'."
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    return each


def _parameters(function: Loss) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
