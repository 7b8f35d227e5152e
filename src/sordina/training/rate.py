"""The learning-rate rule of 000 (eq. 3.21): the sign of two successive released gradients' product.

``rho <- rho exp(r sign(g_t . g_{t-1}))``: pure post-processing, so it is free and works with every policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RateState:
    """The factor on the optimiser's learning rate and the last released gradient."""

    factor: float = 1.0
    gradient: Tensor | None = None


@dataclass(frozen=True)
class LearningRateRule:
    """Grow the learning rate while successive gradients agree, shrink it when they turn against each other."""

    rate: float = 2.5e-3

    def init(self) -> RateState:
        """Factor one, nothing seen."""
        return RateState()

    def adapt(self, state: RateState, gradient: Tensor) -> RateState:
        """The next factor, from the released ``gradient`` of this step."""
        factor = state.factor
        if state.gradient is not None:
            factor *= math.exp(self.rate * float(torch.sign(torch.dot(gradient, state.gradient))))
        return RateState(factor, gradient)
