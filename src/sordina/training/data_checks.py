"""Whether model, loss and data go together, found out before anything is reserved or drawn.

Tried on rows that are nobody's: zeros in the shapes and types of the data, then for whole numbers (labels, tokens)
those that occur and tell most. A map-style data set is read through once. A label outside the model's range, a wrong
width or type would otherwise stop the run at the step that draws it, and so tell when it was drawn. No value of the
data is ever quoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput, SordinaError
from sordina.gradients.nested import tensors_in
from sordina.training.batches import Rows, inputs_and_target
from sordina.training.losses import Loss, per_sample

_AT_ONCE, _PIECE, _FEW, _WIDEST = 256, 1 << 22, 64, 1 << 20
"""Items read at once, numbers looked at once; so many whole numbers are all tried; so far apart they are told apart."""


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
    with _at_rest(model):
        columns = rows.source if isinstance(rows.source, tuple) else _read_through(rows)
        if columns is None:
            return
        shapes = ", ".join(
            f"{tuple(column.shape[1:])} {str(column.dtype).removeprefix('torch.')}" for column in columns
        )
        zeros = [torch.zeros(2, *column.shape[1:], dtype=column.dtype, device=column.device) for column in columns]
        try:
            _try(model, loss, zeros)
        except SordinaError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"the model and the loss cannot take these data, whose rows are {shapes}: "
                f"{' '.join(str(error).split())}."
            ) from error
        if not any(_whole(column) for column in columns):
            return
        try:
            _try(model, loss, _telling_rows(columns))
        except SordinaError:
            raise
        except Exception:
            raise InvalidInput(
                "the data hold a label or another whole number outside the range that the model and the loss take: "
                "check the number of classes (or the size of the vocabulary) against the data."
            ) from None


def _read_through(rows: Rows) -> tuple[Tensor, ...] | None:
    """Read a map-style data set once, so that no item can stop the run at the step that draws it.

    Returns:
        Of every column the whole numbers that tell most, in rows, or two rows of zeros; None if the items are no
        tensors, or of different shapes: then only the user's model can judge them.
    """
    form, alike = [(tensor.shape[1:], tensor.dtype) for tensor in tensors_in([rows.pattern])], True
    found: list[list[Tensor]] = [[] for _ in form]
    for start in range(0, rows.size, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, rows.size))
        tensors = list(tensors_in([rows.take_or_refuse(numbers)]))
        alike = alike and [(tensor.shape[1:], tensor.dtype) for tensor in tensors] == form
        for column, tensor in zip(found, tensors, strict=True):
            if _whole(tensor) and tensor.numel():
                column[:] = [_telling(torch.cat([*column, _telling(tensor)]))]
    if not alike or _tensors(rows.pattern) is None:
        return None
    return tuple(
        _in_rows(column[0], shape) if column else torch.zeros(2, *shape, dtype=kind)
        for column, (shape, kind) in zip(found, form, strict=True)
    )


def _try(model: nn.Module, loss: Loss, columns: Sequence[Tensor]) -> None:
    inputs, target = inputs_and_target(tuple(columns))
    per_sample(loss)(model(*inputs), target)


def _whole(column: Tensor) -> bool:
    return not (column.is_floating_point() or column.is_complex() or column.dtype is torch.bool)


def _telling(column: Tensor) -> Tensor:
    """The whole numbers in ``column``, or those of them that are out of range if any is: the least and the largest.

    Between a number that stands for "ignore me" (-100, 255) and the classes there may be others, so the second least,
    the second largest and the neighbours of zero are among them.
    """
    least, most = (int(value) for value in column.aminmax())
    if most - least < _WIDEST:
        seen = torch.zeros(most - least + 1, dtype=torch.bool)
        flat = column.reshape(-1)
        for start in range(0, len(flat), _PIECE):
            seen[flat[start : start + _PIECE].to(torch.int64).cpu() - least] = True
        values = seen.nonzero().flatten() + least
    else:
        flat = column.reshape(-1).to(torch.int64).cpu()
        inside = flat[(flat > least) & (flat < most)]
        parts = [part for part in (inside, inside[inside < 0], inside[inside >= 0]) if len(part)]
        values = torch.tensor(sorted({least, most, *(int(one) for part in parts for one in part.aminmax())}))
    if len(values) > _FEW:
        zero = int((values < 0).sum())
        places = [0, 1, zero - 1, zero, zero + 1, len(values) - 2, len(values) - 1]
        values = values[sorted({min(max(place, 0), len(values) - 1) for place in places})]
    return values.to(column.dtype)


def _telling_rows(columns: Sequence[Tensor]) -> list[Tensor]:
    """Rows whose whole numbers are those that tell most; everything else is zero."""
    made = [
        _in_rows(_telling(column), column.shape[1:]) if _whole(column) and column.numel() else column[:0]
        for column in columns
    ]
    rows = max(2, *(len(column) for column in made))
    return [
        column[torch.arange(rows) % len(column)].to(like.device) if len(column)
        else torch.zeros(rows, *like.shape[1:], dtype=like.dtype, device=like.device)
        for column, like in zip(made, columns, strict=True)
    ]  # fmt: skip


def _in_rows(values: Tensor, shape: torch.Size) -> Tensor:
    """``values``, over and over, in as few rows of ``shape`` as hold them all."""
    width = max(1, shape.numel())
    rows = max(2, -(-len(values) // width))
    return values[torch.arange(rows * width) % len(values)].view(rows, *shape)


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
