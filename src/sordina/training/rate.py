"""Learning rates that adapt to what was released: post-processing, so free, and good with every policy.

``rho <- rho exp(r sign(g_t . g_{t-1}))`` (000 eq. 3.21; errata 9 on its sign). To first order the expected change of
the loss in a step is ``-rho |g|^2 + rho^2/2 (g'Hg + sigma^2 tr H)``, and ``E[g_t . g_{t-1}]`` is minus its derivative
by rho: the rule seeks the best step for this much noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from sordina.clipping.schedule import Decay
from sordina.types import check_positive

_USUAL_SIZE = 0.03


@dataclass(frozen=True)
class RateState:
    """The factor found so far, the steps taken, the last released gradient, and how many steps there will be."""

    factor: float = 1.0
    step: int = 0
    gradient: Tensor | None = None
    steps: int = 1


@dataclass(frozen=True)
class Start:
    """Public facts of a run: its steps, noise multiplier over batch size, number and root mean square of weights."""

    steps: int
    noise: float
    weights: int
    size: float


class Rate(Protocol):
    """Decides the learning rate of every step from released values and public facts."""

    def init(self, start: Start) -> RateState:
        """The first state of a run."""
        ...

    def adapt(self, state: RateState, gradient: Tensor) -> RateState:
        """The next state, from the released ``gradient``."""
        ...

    def learning_rate(self, state: RateState, base: float, noise: float) -> float:
        """The rate, given the optimiser's own and the noise on the mean gradient."""
        ...


@dataclass(frozen=True)
class LearningRateRule:
    """Grow the learning rate while successive gradients agree, shrink it when they turn against each other.

    The optimiser's own rate is the start. The thesis's rule is ``LearningRateRule(Decay(2.5e-3))``.
    """

    rate: Decay = Decay(0.05, 100)

    def init(self, start: Start) -> RateState:
        """Factor one, nothing seen."""
        return RateState(steps=start.steps)

    def adapt(self, state: RateState, gradient: Tensor) -> RateState:
        """The next factor, from the released ``gradient`` of this step."""
        factor = state.factor
        if state.gradient is not None:
            agreement = float(torch.sign(torch.dot(gradient, state.gradient)))
            factor *= math.exp(self.rate(state.step) * agreement)
        return RateState(factor, state.step + 1, gradient, state.steps)

    def learning_rate(self, state: RateState, base: float, noise: float) -> float:
        """The optimiser's rate ``base`` times the factor."""
        return base * state.factor


@dataclass(frozen=True)
class AutomaticRate:
    """A rate in units of the noise: over the whole run, noise alone moves a weight ``travel`` times its typical size.

    ``rho_t = travel * size / (sqrt(T) sigma_t)``, with size the root mean square of the first weights, T the number of
    steps and sigma_t the noise on the mean gradient; but no more than lets a batch whose clipped gradients all agree
    move the weights by their own norm in one step. From the middle of the run on the rate falls linearly to zero. All
    of that is public, so nothing is left to tune. As with AdamWOSM a change of the threshold does not change the
    length of the steps. `LearningRateRule` on top made long runs worse: the best rate for the next step is smaller than
    the best one for the run.
    """

    travel: float = 5.0

    def __post_init__(self) -> None:
        check_positive("travel of the automatic learning rate", self.travel)

    def init(self, start: Start) -> RateState:
        """The length of a step; where all first weights are zero, a usual size stands in for theirs."""
        size = start.size or _USUAL_SIZE
        by_noise = self.travel * size / math.sqrt(start.steps)
        by_signal = size * math.sqrt(start.weights) * start.noise
        return RateState(min(by_noise, by_signal), steps=start.steps)

    def adapt(self, state: RateState, gradient: Tensor) -> RateState:
        """One step on."""
        return replace(state, step=state.step + 1)

    def learning_rate(self, state: RateState, base: float, noise: float) -> float:
        """Length over noise, times what is left of the schedule; without noise there is no unit, and ``base`` stays."""
        if noise == 0:
            return base
        left = 1 - max(0, state.step - 1) / state.steps
        return state.factor / noise * min(1.0, 2 * left)


@torch.no_grad()
def root_mean_square(model: nn.Module) -> float:
    """Of all trainable weights."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = sum(float(weight.double().square().sum()) for weight in weights)
    return math.sqrt(total / max(1, sum(weight.numel() for weight in weights)))
