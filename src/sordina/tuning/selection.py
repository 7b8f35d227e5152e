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
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import nn

from sordina import mechanisms
from sordina.errors import InvalidInput
from sordina.models.metrics import predicted_class
from sordina.privacy import Adjacency, Budget, check_positive
from sordina.training.batches import as_rows, inputs_and_target
from sordina.training.losses import Loss, per_sample, row_by_row

SENSITIVITY = 1.0


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
    """A kind of selection; for the private one, its ``share`` of epsilon and the loss ``bound`` of a record's merit."""

    kind: SelectionKind | str = SelectionKind.PRIVATE
    share: float = 0.05
    bound: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in list(SelectionKind):
            raise InvalidInput(
                f"unknown selection {str(self.kind)!r}: choose one of {', '.join(map(str, SelectionKind))}."
            )
        object.__setattr__(self, "kind", SelectionKind(self.kind))
        if not 0 < self.share < 1:
            raise InvalidInput(f"selection's share of epsilon must lie in (0, 1), got {self.share}.")
        check_positive("the bound on a record's loss", self.bound)

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


@torch.no_grad()
def score(model: nn.Module, loss: Loss, data: Any, bound: float = 1.0, batch_size: int = 1000) -> float:
    """The sum of the records' merits, each in [0, 1] whatever the model does: NaN counts as 0.

    >>> score(nn.Identity(), nn.functional.cross_entropy, (torch.eye(3), torch.tensor([0, 1, 1])))
    2.0
    """
    rows, each = as_rows(data), row_by_row(per_sample(loss))
    was_training = model.training
    model.eval()
    total = 0.0
    for start in range(0, rows.size, batch_size):
        inputs, target = inputs_and_target(rows.take(np.arange(start, min(start + batch_size, rows.size))))
        output = model(*inputs)
        if target.ndim == 1 and not target.is_floating_point():
            merits = (predicted_class(output) == target).double()
        else:
            merits = 1 - each(output, target).double().div(bound).clamp(0, 1)
        total += float(merits.nan_to_num(0.0).sum())
    model.train(was_training)
    return total
