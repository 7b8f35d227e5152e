"""The losses of `sordina.models.losses` with their slopes: how a row's loss changes with that row's outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.gradients._kept_state import KeptState
from sordina.models import losses as models
from sordina.training.losses import per_sample

RowFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RowLoss:
    """``value(outputs, targets)`` has one number per row; ``slope`` is its derivative, in the shape of the outputs."""

    name: str
    value: RowFunction
    slope: RowFunction


def _hot(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs)


def _mse_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    return 2 * (outputs - targets.reshape(outputs.shape)) / max(1, outputs[:1].numel())


def _class_mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return models.mse(outputs, _hot(outputs, targets))


def _class_mse_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    return _mse_slope(outputs, _hot(outputs, targets))


def _cross_entropy_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.softmax(-1) - _hot(outputs, targets)


def _hinge_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    sign = 2 * targets - 1
    wrong = models.hinge(outputs, targets) > 0
    return torch.where(wrong, -sign.to(outputs), 0.0).reshape(outputs.shape)


mse = RowLoss("mse", models.mse, _mse_slope)
"""``(f(x) - y)^2``; an objective with ``root=True`` makes it the RMSE of eq. 2.13 of 000."""

class_mse = RowLoss("class-mse", _class_mse, _class_mse_slope)
"""``mean_c (f(x)_c - 1[y = c])^2``; with ``root=True`` the RMSE column of table 2.4 of 000."""

cross_entropy = RowLoss("cross-entropy", models.cross_entropy, _cross_entropy_slope)
"""``-log softmax(f(x))_y``."""

hinge = RowLoss("hinge", models.hinge, _hinge_slope)
"""``max(0, 1 - y f(x))``: the linear SVM of 003."""


def differentiated(name: str, value: RowFunction) -> RowLoss:
    """Any other loss, its slope by autograd."""

    def slope(outputs: Tensor, targets: Tensor) -> Tensor:
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            total = value(leaf, targets).sum()
        return torch.autograd.grad(total, leaf)[0]

    return RowLoss(name, value, slope)


class Afresh:
    """Puts back what a module or a loss keeps between two calls: they begin every one of them as they began the first.

    How often they are called, and in which order, depends on who takes part and how many rows everybody has.

    Args:
        holder: The module or the loss.
    """

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self._kept = KeptState(holder)

    def __call__(self) -> None:
        """Put it back."""
        self._kept.restore()

    def __reduce__(self) -> tuple[type[Afresh], tuple[Any]]:
        return Afresh, (self.holder,)


def of_any(loss: str | Callable[..., Tensor]) -> RowLoss:
    """A loss by name, or any function or module ``(outputs, targets)`` that can give one number per row.

    Args:
        loss: Such as ``torch.nn.functional.cross_entropy``, ``torch.nn.MSELoss()`` or a function of one's own.
    """
    if isinstance(loss, str):
        return named(loss)
    if not callable(loss):
        raise InvalidInput(f"a loss is a name or a function (outputs, targets), not a {type(loss).__name__}.")
    name = getattr(loss, "__name__", type(loss).__name__)
    each = per_sample(loss)
    begin = Afresh(each.loss)

    def value(outputs: Tensor, targets: Tensor) -> Tensor:
        begin()
        return each(outputs, targets)

    return differentiated(name, value)


def named(name: str) -> RowLoss:
    """The loss called ``name``, here or in `sordina.models.losses`."""
    known = {loss.name: loss for loss in (mse, class_mse, cross_entropy, hinge)}
    return known[name] if name in known else differentiated(name, models.named(name))
