"""Whether model, loss and data go together, found out before anything is reserved or drawn.

Tried on rows that are nobody's: zeros in the shapes and types of the data, then for whole numbers (labels, tokens) the
smallest and the largest that occur. A label outside the model's range, a wrong width or type would otherwise stop the
run at the step that draws it, and so tell when it was drawn. No value of the data is ever quoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput, SordinaError
from sordina.training.batches import Rows, inputs_and_target
from sordina.training.losses import Loss, per_sample


@torch.no_grad()
def check_takes(model: nn.Module, loss: Loss, rows: Rows) -> None:
    """Refuse data that ``model`` and ``loss`` cannot take.

    Args:
        model: The model; it is left as it was.
        loss: The loss, of one value per sample.
        rows: The data.
    """
    if not rows.size or any(isinstance(value, nn.UninitializedParameter) for value in model.parameters()):
        return
    columns = rows.source if isinstance(rows.source, tuple) else _tensors(rows.take(np.zeros(1, dtype=np.int64)))
    if columns is None:
        return
    shapes = ", ".join(f"{tuple(column.shape[1:])} {str(column.dtype).removeprefix('torch.')}" for column in columns)
    zeros = [torch.zeros(2, *column.shape[1:], dtype=column.dtype, device=column.device) for column in columns]
    with _at_rest(model):
        try:
            _try(model, loss, zeros)
        except SordinaError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"the model and the loss cannot take these data, whose rows are {shapes}: "
                f"{' '.join(str(error).split())}."
            ) from error
        if not isinstance(rows.source, tuple) or not any(_whole(column) for column in columns):
            return
        try:
            pairs = zip(columns, zeros, strict=True)
            _try(model, loss, [_extremes(column) if _whole(column) else zero for column, zero in pairs])
        except SordinaError:
            raise
        except Exception:
            raise InvalidInput(
                "the data hold a label or another whole number outside the range that the model and the loss take: "
                "check the number of classes (or the size of the vocabulary) against the data."
            ) from None


def _try(model: nn.Module, loss: Loss, columns: Sequence[Tensor]) -> None:
    inputs, target = inputs_and_target(tuple(columns))
    per_sample(loss)(model(*inputs), target)


def _whole(column: Tensor) -> bool:
    return not (column.is_floating_point() or column.is_complex() or column.dtype is torch.bool)


def _extremes(column: Tensor) -> Tensor:
    least, most = column.aminmax()
    return torch.stack([least.expand(column.shape[1:]), most.expand(column.shape[1:])]).contiguous()


def _tensors(batch: Any) -> tuple[Tensor, ...] | None:
    """The tensors of a collated batch; None if it is anything else, which only the user's model can judge."""
    parts = (batch,) if isinstance(batch, Tensor) else tuple(batch) if isinstance(batch, (tuple, list)) else ()
    return parts if parts and all(isinstance(part, Tensor) for part in parts) else None


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards as it was; no random number of the user's is used up."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
