"""Private training: the plan decides, the step clips and noises, the loop reads top to bottom."""

from sordina.plan import Plan, make_plan
from sordina.private_step import PrivateStep
from sordina.training.callbacks import Callback, MetricsFile, Progress, StopTraining, TensorBoard
from sordina.training.learning_rates import AutomaticRate, DistanceRate, LearningRateRule, SteadyRate
from sordina.training.loop import Private
from sordina.training.losses import evaluate
from sordina.training.optimizers import AdamWOSM
from sordina.training.run import Run
from sordina.training.trainer import Trainer, make_private

__all__ = [
    "AdamWOSM",
    "AutomaticRate",
    "Callback",
    "DistanceRate",
    "LearningRateRule",
    "MetricsFile",
    "Plan",
    "Private",
    "PrivateStep",
    "Progress",
    "Run",
    "SteadyRate",
    "StopTraining",
    "TensorBoard",
    "Trainer",
    "evaluate",
    "make_plan",
    "make_private",
]
