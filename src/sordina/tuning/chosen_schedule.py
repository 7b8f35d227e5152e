"""Batch size and epochs of a search whose trainer states none: chosen once, for all of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sordina.plan import check_whole
from sordina.privacy import Budget, check_positive
from sordina.training import Trainer, planned_schedule

_LEAST_SHARE = 1e-3
"""Of so many runs that one alone costs next to nothing at the delta of all, a thousandth of epsilon is the share."""


@dataclass(frozen=True)
class ChosenSchedule:
    """What a trainer left open, from public facts: the budget, the population, the weights and the number of runs.

    Args:
        batch_size: Expected size of a batch.
        epochs: Passes over the data, on average; None where the trainer states its steps.
        epsilon_of_a_run: What the steps of one run may cost, which the schedule was chosen for; None without a budget.
    """

    batch_size: int
    epochs: float | None
    epsilon_of_a_run: float | None

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size)
        for name in ("epochs", "epsilon_of_a_run"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    def __str__(self) -> str:
        over = "" if self.epochs is None else f" over {self.epochs:g} epochs"
        share = self.epsilon_of_a_run
        cost = "" if share is None else f"; one run may cost epsilon {share:.3g}"
        return f"batch size {self.batch_size}{over}, chosen from public facts{cost}"

    def complete(self, trainer: Trainer) -> Trainer:
        """``trainer`` with what it left open; what it states stays.

        Args:
            trainer: Of any run of the search.
        """
        size = self.batch_size if trainer.batch_size is None else trainer.batch_size
        return replace(trainer, batch_size=size, epochs=self.epochs if trainer.epochs is None else trainer.epochs)


def left_open(trainer: Trainer) -> bool:
    """Whether ``trainer`` leaves a part of its schedule to be chosen."""
    return trainer.batch_size is None or (trainer.epochs is None and trainer.steps is None)


def choose_schedule(trainer: Trainer, budget: Budget, units: int, epsilon_of_a_run: float) -> ChosenSchedule:
    """The schedule for a trainer that leaves some of it open.

    Args:
        trainer: What it states is kept.
        budget: That of the whole search.
        units: The public number of units.
        epsilon_of_a_run: What the steps of one run may cost.
    """
    share = max(epsilon_of_a_run, _LEAST_SHARE * budget.epsilon)
    weights = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    size, epochs = planned_schedule(
        Budget(share, budget.delta), units, weights, batch_size=trainer.batch_size, epochs=trainer.epochs
    )
    return ChosenSchedule(
        size, epochs if trainer.steps is None else trainer.epochs, None if math.isinf(share) else share
    )


def configured(trainer: Trainer, chosen: ChosenSchedule | None, fields: Mapping[str, Any]) -> Trainer:
    """The trainer of one run: what the search chose fills the trainer, and the configuration comes last.

    A configuration that sets the batch size or the epochs to None takes those of the others.

    Args:
        trainer: As the user made it.
        chosen: The schedule of the search, if it chose one.
        fields: What the configuration sets.
    """
    base = trainer if chosen is None else chosen.complete(trainer)
    schedule = ("batch_size", "epochs")
    return replace(base, **{name: value for name, value in fields.items() if value is not None or name not in schedule})
