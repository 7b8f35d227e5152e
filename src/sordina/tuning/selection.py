"""How the best run is found, and what that costs whom.

Looking at held-out data is a query like any other: who was held out shows in which run wins. So there are three ways:

`private`, the default
    A record's merit under a model lies in [0, 1] (was it classified rightly; or ``1 - min(loss, bound) / bound``), and
    a run's score is the sum over all validation records. One record changes every score by at most 1, whoever it is:
    the sensitivity is 1, and when a record comes or goes all scores move the same way. Where all runs are paid for, the
    exponential mechanism (report-noisy-max with Gumbel noise) chooses among them; with random stopping each run's score
    is released with Gaussian noise as a part of that run. Either way the cost is composed with that of training into
    *one* epsilon, which therefore holds for training and validation records alike, even for somebody who is among both.
`public`
    Exact scores on data that the caller declares public. Costs nothing and protects nobody in those data.
`thesis-test-set`
    The protocol of 000 section 3.7: configurations and checkpoints are chosen by exact scores on the test set, averaged
    over repetitions that nobody pays for. For comparison with the thesis only.

By which metric the best is best (`Selection.metric`; left out, accuracy for classes and the loss for all else):

====================  ==========================================  ======================================================
metric                exact                                       private: a record's merit
====================  ==========================================  ======================================================
`accuracy`            higher is better                            1 if the class is right
`log_loss`            lower                                       ``1 - min(loss, b) / b``, ``b = 2 ln(classes)``: twice
                                                                  that of a model that knows nothing
`loss`                lower                                       ``1 - min(loss, bound) / bound``
`rmse`, `r2`          lower, higher                               ``1 - min(error^2, bound) / bound``: on the same
                                                                  records all three put models in the same order, but
                                                                  for errors beyond the bound
`auc`                 higher                                      refused: one record is in as many pairs as there are
                                                                  records of the other class
`balanced_accuracy`   higher                                      refused: what a record counts depends on how many
                                                                  others there are of its class
====================  ==========================================  ======================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import mechanisms
from sordina._stacked_models import at_rest
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients._rehearsal import CHANGES, Snapshot, part
from sordina.gradients._tracing import tensors_in
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.removal import MOST, others_change
from sordina.gradients.structure import Mixing
from sordina.models.metrics import predicted_class
from sordina.privacy import Adjacency, Budget, check_positive
from sordina.training.batches import as_rows, inputs_and_target
from sordina.training.losses import Loss, per_sample, row_by_row

SENSITIVITY = 1.0
HIGHER = ("accuracy", "balanced_accuracy", "auc", "r2")
LOWER = ("loss", "log_loss", "rmse")
METRICS = (*HIGHER, *LOWER)
_OF_CLASSES = ("accuracy", "log_loss")
_UNBOUNDED = ("auc", "balanced_accuracy")


class SelectionKind(str, Enum):
    """Who pays for the choice."""

    PRIVATE = "private"
    PUBLIC = "public"
    TEST_SET = "thesis-test-set"

    def __str__(self) -> str:
        return self.value


LABELS = {
    SelectionKind.PRIVATE: "private selection: one epsilon covers training and validation records, the choice included",
    SelectionKind.PUBLIC: "PUBLIC VALIDATION DATA: chosen by exact scores; the people in those data get no guarantee",
    SelectionKind.TEST_SET: "TEST SET, AS IN THE THESIS: configuration and checkpoint chosen by exact test scores, so "
    "these are "
    "optimistic; test records get no guarantee; repetitions by seed are not paid for",
}


@dataclass(frozen=True)
class Selection:
    """A kind of selection; for the private one, its ``share`` of epsilon and the loss ``bound`` of a record's merit.

    Args:
        kind: Who pays for the choice.
        share: Of epsilon, for a private choice.
        bound: A record's loss counts up to here, in a private choice.
        metric: By what the best is best; None takes accuracy for classes, the loss for all else.
    """

    kind: SelectionKind | str = SelectionKind.PRIVATE
    share: float = 0.05
    bound: float = 1.0
    metric: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in list(SelectionKind):
            raise InvalidInput(
                f"unknown selection {str(self.kind)!r}: choose one of {', '.join(map(str, SelectionKind))}."
            )
        object.__setattr__(self, "kind", SelectionKind(self.kind))
        if not 0 < self.share < 1:
            raise InvalidInput(f"selection's share of epsilon must lie in (0, 1), got {self.share}.")
        check_positive("the bound on a record's loss", self.bound)
        if self.metric is not None and self.metric not in METRICS:
            raise InvalidInput(f"unknown metric {self.metric!r} of a search: choose one of {', '.join(METRICS)}.")
        if self.metric in _UNBOUNDED and not self.exact:
            raise Unsupported(
                f"{self.metric} is no sum of what single records add, so one record may change it by a lot and no "
                "private choice by it is cheap: choose by log_loss or accuracy, or declare the validation data public."
            )

    @property
    def exact(self) -> bool:
        """Whether scores are looked at without noise."""
        return self.kind is not SelectionKind.PRIVATE

    @property
    def label(self) -> str:
        """What every output says."""
        return LABELS[SelectionKind(self.kind)]

    def chooser(self, budget: Budget, adjacency: Adjacency) -> mechanisms.Exponential:
        """The mechanism that chooses among runs that are all paid for."""
        return mechanisms.Exponential(
            SENSITIVITY, self.share * budget.epsilon,
            monotonic=adjacency is Adjacency.ADD_REMOVE, adjacency=adjacency,
        )  # fmt: skip

    def scorer(self, budget: Budget, adjacency: Adjacency) -> mechanisms.GaussianMechanism:
        """The mechanism that releases one run's score, as a part of that run."""
        return mechanisms.GaussianMechanism(SENSITIVITY, self.share * budget.epsilon, budget.delta, adjacency=adjacency)


def selection_of(given: Selection | SelectionKind | str) -> Selection:
    """A selection by name, or as it is."""
    return given if isinstance(given, Selection) else Selection(given)


def better(metric: str, value: float | None, than: float | None) -> bool:
    """Whether ``value`` of ``metric`` beats ``than``; no value, and what is not a number, never does.

    Args:
        metric: One of `METRICS`.
        value: What one run has.
        than: What another has, if any.

    >>> better("accuracy", 0.9, 0.8), better("loss", 0.9, 0.8), better("loss", float("nan"), None)
    (True, False, False)
    """
    if value is None or math.isnan(value):
        return False
    return than is None or (value > than if metric in HIGHER else value < than)


def metric_of(scores: Mapping[str, float], metric: str | None) -> str:
    """By which of ``scores`` a choice is made; refuses a metric that they do not have.

    Args:
        scores: What `sordina.training.evaluate` gave.
        metric: The one asked for.
    """
    if metric is None:
        return "accuracy" if "accuracy" in scores else "loss"
    if metric not in scores:
        has = ", ".join(name for name in METRICS if name in scores)
        raise InvalidInput(f"these data and this model have no {metric}: choose one of {has}.")
    return metric


@torch.no_grad()
def score(
    model: nn.Module, loss: Loss, data: Any, bound: float = 1.0, batch_size: int = 1000, metric: str | None = None
) -> float:
    """The sum of the records' merits, each in [0, 1] whatever the model does: NaN counts as 0.

    Whether a record's merit depends on that record alone is tested on every batch, in the mode of evaluation: models
    are watched in training only.

    Args:
        model: What is judged.
        loss: Its loss.
        data: The validation records.
        bound: A record's loss counts up to here.
        batch_size: Records at once.
        metric: What a record's merit is, by the table at the head of this file.

    >>> score(nn.Identity(), nn.functional.cross_entropy, (torch.eye(3), torch.tensor([0, 1, 1])))
    2.0
    """
    rows, each = as_rows(data), row_by_row(per_sample(loss))

    def judged(pair: tuple[tuple[Tensor, ...], Tensor]) -> list[Tensor]:
        """What the model says, and the merits that come of it."""
        output = model(*pair[0])
        merits = _merits(output, pair[1], each, bound, metric)
        if merits.shape != (len(pair[1]),):
            raise InvalidInput("the merits of records must be one number each: look at the shapes of model and loss.")
        return [*tensors_in([output]), merits]

    total = 0.0
    with at_rest(model):
        for start in range(0, rows.size, batch_size):
            pair = inputs_and_target(rows.take(np.arange(start, min(start + batch_size, rows.size))))
            total += float(_apart(model, judged, pair).nan_to_num(0.0).sum())
    return total


def _merits(output: Any, target: Tensor, each: Loss, bound: float, metric: str | None) -> Tensor:
    classes = target.ndim == 1 and not target.is_floating_point()
    if metric in _OF_CLASSES and not classes:
        raise InvalidInput(f"{metric} speaks of classes, and these targets are none.")
    if not isinstance(output, Tensor):
        if metric not in (None, "loss"):
            raise InvalidInput(
                f"a private choice by {metric} needs a model that returns one tensor, and this one returns a "
                f"{type(output).__name__}: choose by the loss (metric='loss')."
            )
    elif output.shape[:1] != target.shape[:1]:
        raise InvalidInput(
            f"the model returns {tuple(output.shape)} for {len(target)} records: a row each is needed, rows first."
        )
    elif metric in ("rmse", "r2"):
        return 1 - _squared_error(output, target).div(bound).clamp(0, 1)
    elif metric == "log_loss":
        scores = _class_scores(output, target)
        of_each = -scores.log_softmax(1).gather(1, target[:, None])[:, 0]
        return 1 - of_each.div(2 * math.log(scores.shape[1])).clamp(0, 1)
    elif classes and metric != "loss":
        return (predicted_class(output) == target).double()
    return 1 - each(output, target).double().div(bound).clamp(0, 1)


def _apart(model: nn.Module, judged: Callable[[Any], list[Tensor]], pair: tuple[Any, Tensor]) -> Tensor:
    """The merits of the records of a batch; refused where one depends on another, alone each where nobody can tell."""
    before, rows = Snapshot(model), len(pair[1])
    found = judged(pair)
    if rows < 2:
        return found[-1]
    dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors_in([pair]))
    where = [next((dim for dim, size in enumerate(tensor.shape) if size == rows), None) for tensor in found]
    places = tuple(None if dim is None else SamplePlacement(dim, True) for dim in where)
    answers = [
        others_change(model, judged, pair, dims, places, rows, found, before, first)
        for first in (CHANGES[1], CHANGES[3], MOST, None)
    ]
    if any(answers):
        raise Mixing(
            "records mix: without one of them the model says something else of others when it is evaluated, so one "
            "record may change a score by more than 1, and a private choice by such scores is none. Let the model "
            "treat every row by itself, in the mode of evaluation too, or declare the validation data public."
        )
    if all(answer is False for answer in answers):
        return found[-1]
    before.restore()
    return torch.cat([judged(part(pair, dims, row))[-1] for row in range(rows)])


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Of each row alone: nothing is broadcast."""
    wide, wanted = (each.double().reshape(len(target), -1) for each in (output, target))
    if wide.shape != wanted.shape:
        raise InvalidInput(
            f"a row of the model's results has {wide.shape[1]} numbers and one of the targets {wanted.shape[1]}: they "
            "cannot be compared by rmse or r2."
        )
    return (wide - wanted).square().mean(1)


def _class_scores(output: Tensor, target: Tensor) -> Tensor:
    """A score for each class and row; of two classes the first has zero where a model gives one number."""
    wide = output.double().reshape(len(target), -1)
    return torch.cat([torch.zeros_like(wide), wide], 1) if wide.shape[1] == 1 else wide
