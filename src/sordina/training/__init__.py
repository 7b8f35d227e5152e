"""Private training: the plan decides, the step clips and noises, the loop reads top to bottom."""

from sordina.training.callbacks import Callback, MetricsFile, Progress, StopTraining, TensorBoard
from sordina.training.distance import AutomaticRate, DistanceRate
from sordina.training.evaluate import evaluate
from sordina.training.own_loop import make_private
from sordina.training.plan import Plan, make_plan
from sordina.training.private import Private
from sordina.training.rate import LearningRateRule, SteadyRate
from sordina.training.run import Run
from sordina.training.step import PrivateStep
from sordina.training.trainer import Trainer
from sordina.training.wosm import AdamWOSM

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
