"""Per-sample losses: a mean over the batch hides who contributed what, so it is turned back or refused."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput, SordinaError

Loss = Callable[..., Tensor]


def per_sample(loss: Loss) -> Loss:
    """``loss`` with one value per sample.

    A function with a ``reduction`` argument (all of ``torch.nn.functional``) or a loss module gets ``"none"``; further
    dimensions, such as pixels or words, are averaged per sample. Any other function must return shape (B,) itself. A
    loss that pairs outputs with the targets of other samples, because their shapes broadcast, is refused.

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

    tried: set[Any] = set()

    def each(output: Any, target: Tensor) -> Tensor:
        both = isinstance(output, Tensor) and isinstance(target, Tensor) and output.ndim and target.ndim
        if both and (kind := (output.shape[1:], target.shape[1:], output.dtype, target.dtype)) not in tried:
            _refuse_mixing(loss, output, target)
            tried.add(kind)
        losses = loss(output, target)
        if not isinstance(losses, Tensor) or losses.ndim == 0:
            raise InvalidInput(
                "the loss returned one number for the whole batch; privacy needs one per sample. Return shape (B,), "
                "for instance by reduction='none'."
            )
        if both and not len(output) == len(target) == len(losses):
            raise InvalidInput(_MIXED.format(_shape(output), _shape(target)))
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    return each


def row_by_row(each: Loss) -> Loss:
    """``each`` (of `per_sample`), with a loss of NaN and no gradient for the rows on which it fails alone.

    Args:
        each: One value per sample. What it refuses as an error of ours is refused.
    """

    def losses(output: Tensor, target: Tensor) -> Tensor:
        try:
            return each(output, target)
        except SordinaError:
            raise
        except Exception:
            return torch.cat([alone(output[row : row + 1], target[row : row + 1]) for row in range(len(output))])

    def alone(output: Tensor, target: Tensor) -> Tensor:
        try:
            return each(output, target)
        except Exception:
            return output.reshape(1, -1).sum(1) * 0 + math.nan

    return losses


_ROWS = 3
_MIXED = (
    "the loss of one sample depends on other samples when outputs are {} and targets {}: shapes that broadcast pair "
    "every output with every target. Give both the same shape, for instance by targets[:, None] or outputs.squeeze(1)."
)


def _refuse_mixing(loss: Loss, output: Tensor, target: Tensor) -> None:
    """Try ``loss`` on rows that are nobody's, in these shapes: changing one row may change the loss of that row alone.

    What the loss cannot be tried on (it knows more about its targets than we do) must agree in shape instead.
    """
    outputs, targets = _made_up(output, None), _made_up(target, _classes(output, target)).flip(0)
    try:
        before = _tried(loss, outputs, targets)
        changed = [
            (_tried(loss, _with_row(outputs, row), targets), _tried(loss, outputs, _with_row(targets, row)), row)
            for row in range(_ROWS)
        ]
    except Exception as error:
        if output.shape != target.shape:
            raise InvalidInput(
                f"the loss cannot take outputs {_shape(output)} with targets {_shape(target)}: "
                f"{' '.join(str(error).split())}."
            ) from error
        return
    if before.ndim == 0:
        return
    others = [(after, [other for other in range(_ROWS) if other != row]) for *pair, row in changed for after in pair]
    if len(before) != _ROWS or any(not torch.equal(after[rest], before[rest]) for after, rest in others):
        raise InvalidInput(_MIXED.format(_shape(output), _shape(target)))


def _tried(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses, NaN as a number, from the same random numbers every time."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return loss(outputs, targets).nan_to_num()


def _classes(output: Tensor, target: Tensor) -> int | None:
    """How many classes whole-number targets may name: the width of the outputs."""
    if target.is_floating_point() or target.dtype is torch.bool:
        return None
    return output.shape[1] if output.ndim > 1 else 2


def _made_up(like: Tensor, classes: int | None) -> Tensor:
    """Rows in the shape and type of ``like``: probabilities if they are numbers, else the first classes."""
    shape = (_ROWS, *like.shape[1:])
    count = math.prod(shape)
    if like.is_floating_point() or like.is_complex():
        return torch.linspace(0.15, 0.85, count, dtype=torch.float64).to(like.dtype).to(like.device).view(shape)
    return (torch.arange(count) % max(1, min(2, classes or 2))).to(like.dtype).to(like.device).view(shape)


def _with_row(values: Tensor, row: int) -> Tensor:
    """``values`` with another ``row``, of the same kind."""
    other = values.clone()
    if values.is_floating_point() or values.is_complex():
        other[row] = 1 - values[row] / 2
    else:
        other[row] = other[row].max() - other[row] if other[row].numel() > 1 else values.max() - other[row]
    return other


def _shape(values: Tensor) -> str:
    return "(n" + "".join(f", {size}" for size in values.shape[1:]) + ("," if values.ndim == 1 else "") + ")"


def _parameters(function: Loss) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
