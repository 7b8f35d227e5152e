"""Private training: the plan decides, the step clips and noises, the loop reads top to bottom."""

from __future__ import annotations

import warnings
from typing import Any

from sordina.plan import Plan, make_plan
from sordina.private_step import PrivateStep
from sordina.training.augmentation import ImageShift
from sordina.training.averaging import Averaging, ExponentialAverage, TailAverage
from sordina.training.callbacks import Callback, MetricsFile, ProgressBar, StopTraining, TensorBoard
from sordina.training.learning_rates import AutomaticRate, DistanceRate, LearningRateRule, SteadyRate
from sordina.training.loop import Private
from sordina.training.losses import evaluate
from sordina.training.optimizers import AdamBC, AdamWOSM
from sordina.training.planning import PlanReport, planned_schedule
from sordina.training.run import Run
from sordina.training.trainer import Trainer, make_private

__all__ = [
    "AdamBC",
    "AdamWOSM",
    "AutomaticRate",
    "Averaging",
    "Callback",
    "DistanceRate",
    "ExponentialAverage",
    "ImageShift",
    "LearningRateRule",
    "MetricsFile",
    "Plan",
    "PlanReport",
    "Private",
    "PrivateStep",
    "ProgressBar",
    "Run",
    "SteadyRate",
    "StopTraining",
    "TailAverage",
    "TensorBoard",
    "Trainer",
    "evaluate",
    "make_plan",
    "make_private",
    "planned_schedule",
]


def __getattr__(name: str) -> Any:
    """A name of 0.2, which now means `sordina.progress.Progress`; it goes with 0.5."""
    if name != "Progress":
        raise AttributeError(f"module 'sordina.training' has no attribute {name!r}")
    warnings.warn("sordina.training.Progress is now ProgressBar.", DeprecationWarning, stacklevel=2)
    return ProgressBar
