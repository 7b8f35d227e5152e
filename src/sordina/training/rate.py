"""Learning rates that adapt to what was released: post-processing, so free, and good with every policy.

``rho <- rho exp(r sign(g_t . g_{t-1}))`` (000 eq. 3.21; errata 9 on its sign). To first order the expected change of
the loss in a step is ``-rho |g|^2 + rho^2/2 (g'Hg + sigma^2 tr H)``, and ``E[g_t . g_{t-1}]`` is minus its derivative
by rho: the rule seeks the best step for this much noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.clipping.schedule import Decay
from sordina.types import check_positive


@dataclass(frozen=True)
class RateState:
    """The factor found so far, the number of steps, and the last released gradient, scaled to unit noise."""

    factor: float = 1.0
    step: int = 0
    gradient: Tensor | None = None


@dataclass(frozen=True)
class LearningRateRule:
    """Grow the learning rate while successive gradients agree, shrink it when they turn against each other.

    The optimiser's own rate is the start. The thesis's rule is ``LearningRateRule(Decay(2.5e-3))``.
    """

    rate: Decay = Decay(0.05, 100)

    def init(self) -> RateState:
        """Factor one, nothing seen."""
        return RateState()

    def adapt(self, state: RateState, gradient: Tensor) -> RateState:
        """The next factor, from the released ``gradient`` of this step."""
        factor = state.factor
        if state.gradient is not None:
            agreement = float(torch.sign(torch.dot(gradient, state.gradient)))
            factor *= math.exp(self.rate(state.step) * agreement)
        return RateState(factor, state.step + 1, gradient)

    def learning_rate(self, state: RateState, base: float, noise: float) -> float:
        """The optimiser's rate ``base`` times the factor."""
        return base * state.factor


@dataclass(frozen=True)
class AutomaticRate(LearningRateRule):
    """The rule above in units of the noise: ``rho = step / sigma * factor``, sigma the noise on the mean gradient.

    A parameter then moves by ``step`` per step on account of the noise, whatever threshold, batch size and budget are,
    as in AdamWOSM; and a change of the threshold does not change the length of the steps. Nothing is left to tune.
    """

    step: float = 1e-3

    def __post_init__(self) -> None:
        check_positive("step of the automatic learning rate", self.step)

    def learning_rate(self, state: RateState, base: float, noise: float) -> float:
        """``step / noise`` times the factor; without noise there is no such unit, and ``base`` is kept."""
        return (self.step / noise if noise > 0 else base) * state.factor
