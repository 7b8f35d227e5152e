"""What a user reads about a model: one number from all outputs and targets of a test set.

>>> import torch
>>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
0.5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.models import losses

Metric: TypeAlias = Callable[[Tensor, Tensor], float]


def predicted_class(outputs: Tensor) -> Tensor:
    """The class of each row: the largest of several scores, or the sign of a single one, in a column or by itself."""
    if outputs.ndim == 1:
        return (outputs > 0).long()
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


# Metrics that rare labels do not fool, each beside what a model scores that answers the same to everybody.


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Mean over the classes that occur of the share found."""
    right = (predicted_class(outputs) == targets).double()
    return float(torch.stack([right[targets == one].mean() for one in torch.unique(targets)]).mean())


def log_loss(outputs: Tensor, targets: Tensor) -> float:
    """Mean of minus the logarithm of the probability of the true class."""
    return float(-_log_probabilities(outputs).gather(1, targets[:, None]).mean())


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Share of pairs of both classes that the score of the second class puts in the right order; ties count half.

    >>> auc(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 0]))
    1.0
    """
    score = outputs[:, 1].double() - outputs[:, 0].double() if outputs.shape[-1] > 1 else outputs.flatten().double()
    _, place, count = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0).double() - (count.double() - 1) / 2)[place]
    positive = targets == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return 0.5
    return float((rank[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def calibration_error(outputs: Tensor, targets: Tensor, bins: int = 10) -> float:
    """Mean distance between how sure the model is and how often it is right, in bins of sureness."""
    sureness, found = _log_probabilities(outputs).exp().max(1)
    right = (found == targets).double()
    which = (sureness * bins).long().clamp(max=bins - 1)
    total = torch.zeros(bins, dtype=torch.float64).index_add(0, which, right - sureness)
    return float(total.abs().sum() / len(targets))


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Share of the variance that is explained: 0 for the mean, negative for worse."""
    spread = float((targets.double() - targets.double().mean(0)).square().mean())
    return 1 - mse(outputs, targets) / spread if spread else 0.0


def _log_probabilities(outputs: Tensor) -> Tensor:
    wide = outputs.double()
    return (torch.cat([torch.zeros_like(wide), wide], 1) if wide.shape[-1] == 1 else wide).log_softmax(1)


def class_scores(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Scores of a classifier, and those of the best constant answer on the same rows.

    Args:
        outputs: Scores of the classes, ``(n, classes)``.
        targets: The classes, ``(n,)``.
    """
    shares = targets.bincount(minlength=outputs.shape[-1]).double() / len(targets)
    scores = {
        "accuracy": accuracy(outputs, targets),
        "balanced_accuracy": balanced_accuracy(outputs, targets),
        "log_loss": log_loss(outputs, targets),
        "calibration_error": calibration_error(outputs, targets),
    }
    if len(shares) == 2:
        scores["auc"] = auc(outputs, targets)
    constant = {"accuracy": float(shares.max()), "log_loss": float(-torch.xlogy(shares, shares).sum())}
    return scores | {f"constant_{name}": value for name, value in constant.items()}


def number_scores(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Scores of a regression, and the error of the mean of the same rows.

    Args:
        outputs: Predictions, in the shape of the targets.
        targets: The numbers.
    """
    spread = (targets.double() - targets.double().mean(0)).square().mean()
    return {
        "rmse": rmse(outputs, targets),
        "r2": r2(outputs, targets),
        "constant_rmse": float(spread.sqrt()),
    }


METRICS: dict[str, Metric] = {
    "accuracy": accuracy, "balanced_accuracy": balanced_accuracy, "log_loss": log_loss, "auc": auc,
    "calibration_error": calibration_error, "mse": mse, "rmse": rmse, "r2": r2,
}  # fmt: skip


def named(name: str) -> Metric:
    """The metric called ``name``."""
    if name not in METRICS:
        raise InvalidInput(f"unknown metric {name!r}: choose one of {', '.join(METRICS)}.")
    return METRICS[name]
