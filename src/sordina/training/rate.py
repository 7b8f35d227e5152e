"""Learning rates that adapt to what was released: post-processing, so free, and good with every policy.

`LearningRateRule` is the thesis's, `SteadyRate` keeps one step length, `sordina.training.distance` has the default.

``rho <- rho exp(r sign(g_t . g_{t-1}))`` (000 eq. 3.21; errata 9 on its sign). To first order the expected change of
the loss in a step is ``-rho |g|^2 + rho^2/2 (g'Hg + sigma^2 tr H)``, and ``E[g_t . g_{t-1}]`` is minus its derivative
by rho: the rule seeks the best step for this much noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from sordina.clipping.schedule import Decay
from sordina.types import check_positive

S = TypeVar("S")


@dataclass(frozen=True)
class Start:
    """Public facts of a run: its steps, the optimiser's own rate, how many weights and their typical size."""

    steps: int
    lr: float
    weights: int
    size: float


def fall(step: int, steps: int) -> float:
    """One in the first half of a run, then linearly to zero, which averages the noise of the last steps away."""
    return min(1.0, 2 * (1 - step / steps))


class Rate(Protocol[S]):
    """Decides the learning rate of every step from released values and public facts."""

    def init(self, start: Start) -> S:
        """The first state of a run."""
        ...

    def adapt(self, state: S, gradient: Tensor, noise: float) -> S:
        """The next state, from the released mean ``gradient`` and the standard deviation of the noise on it."""
        ...

    def learning_rate(self, state: S, base: float) -> float:
        """The rate, given the optimiser's own."""
        ...


@dataclass(frozen=True)
class RateState:
    """The factor found so far, the steps taken and the last released gradient."""

    factor: float = 1.0
    step: int = 0
    gradient: Tensor | None = None


@dataclass(frozen=True)
class LearningRateRule:
    """Grow the learning rate while successive gradients agree, shrink it when they turn against each other.

    The optimiser's own rate is the start. The thesis's rule is ``LearningRateRule(Decay(2.5e-3))``.
    """

    rate: Decay = Decay(0.05, 100)

    def init(self, start: Start) -> RateState:
        """Factor one, nothing seen."""
        return RateState()

    def adapt(self, state: RateState, gradient: Tensor, noise: float) -> RateState:
        """The next factor, from the released ``gradient`` of this step."""
        factor = state.factor
        if state.gradient is not None:
            agreement = float(torch.sign(torch.dot(gradient, state.gradient)))
            factor *= math.exp(self.rate(state.step) * agreement)
        return RateState(factor, state.step + 1, gradient)

    def learning_rate(self, state: RateState, base: float) -> float:
        """The optimiser's rate ``base`` times the factor."""
        return base * state.factor


@dataclass(frozen=True)
class SteadyState:
    """The steps taken of how many, and the rate that follows (None: the optimiser's own)."""

    steps: int
    step: int = 0
    rate: float | None = None


@dataclass(frozen=True)
class SteadyRate:
    """Steps of one length in units of the noise, whatever the threshold and the noise multiplier are.

    A weight whose released gradient were one standard deviation of the noise in every step would move by ``reach`` in
    the run (by three quarters of it with the `fall`). That makes the best ``reach`` much the same from model to model.
    """

    reach: float = 1.0

    def __post_init__(self) -> None:
        check_positive("reach of the steady learning rate", self.reach)

    def init(self, start: Start) -> SteadyState:
        """Nothing seen."""
        return SteadyState(start.steps)

    def adapt(self, state: SteadyState, gradient: Tensor, noise: float) -> SteadyState:
        """The next rate; without noise there is no unit, and the optimiser's own stays."""
        if noise == 0:
            return state
        rate = self.reach / state.steps / noise * fall(state.step, state.steps)
        return SteadyState(state.steps, state.step + 1, rate)

    def learning_rate(self, state: SteadyState, base: float) -> float:
        """The rate of the step, or ``base``."""
        return base if state.rate is None else state.rate


@torch.no_grad()
def typical_size(model: nn.Module) -> float:
    """The root mean square of the trainable matrices' weights, every matrix counting alike, whatever its size."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [weight for weight in weights if weight.dim() > 1] or weights
    return math.sqrt(sum(float(matrix.double().square().mean()) for matrix in matrices) / max(1, len(matrices)))
