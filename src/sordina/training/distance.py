"""How far the weights got over how hard they were pulled: a learning rate that finds itself.

DoG (Ivgi, Hinder and Carmon 2023, eq. 1): ``rho_t = max_{i<=t} |theta_i - theta_0| / sqrt(sum_{i<=t} |g_i|^2)``. Both
are known to everybody who sees the released gradients, so it is free. Here every gradient counts in units of the noise
on it, so that a change of the clipping threshold does not change the length of the steps.

A walk driven by noise alone gets ``sqrt(t)`` far in t steps, so noise neither raises nor lowers the rate. Where
gradients agree the distance grows faster, and the rate with it; where they turn against each other it falls behind.
From the middle of the run on the rate falls (`sordina.training.rate.fall`).

The rule takes weights to move by ``rho_t g_t``, as plain SGD moves them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from sordina.training.rate import Start, fall
from sordina.types import check_positive

_USUAL_SIZE = 0.06


@dataclass(frozen=True)
class DistanceState:
    """Where the run is: what was summed up so far, and the rate that follows (None: the optimiser's own)."""

    steps: int
    first: float
    step: int = 0
    distance: float = 0.0
    squares: float = 0.0
    moved: Tensor | None = None
    rate: float | None = None


@dataclass(frozen=True)
class DistanceRate:
    """DoG from the optimiser's own rate on: what was given is the rate of the first step."""

    def init(self, start: Start) -> DistanceState:
        """Nothing seen."""
        return DistanceState(start.steps, start.lr)

    def adapt(self, state: DistanceState, gradient: Tensor, noise: float) -> DistanceState:
        """The next rate; without noise there is no unit, and the optimiser's own stays."""
        if noise == 0:
            return state
        norm = float(gradient.norm())
        distance = state.distance or state.first * norm
        squares = state.squares + (norm / noise) ** 2
        rate = distance / math.sqrt(squares) / noise * fall(state.step, state.steps)
        moved = gradient * rate if state.moved is None else state.moved.add(gradient, alpha=rate)
        distance = max(distance, float(moved.norm()))
        return DistanceState(state.steps, state.first, state.step + 1, distance, squares, moved, rate)

    def learning_rate(self, state: DistanceState, base: float) -> float:
        """The rate found, or ``base``."""
        return base if state.rate is None else state.rate


@dataclass(frozen=True)
class AutomaticRate(DistanceRate):
    """DoG with nothing to tune: at its first rate, noise alone would move a weight ``travel`` times its size in a run.

    That size is `typical_size` of the first weights: a public fact, as is the number of steps.
    """

    travel: float = 1.5

    def __post_init__(self) -> None:
        check_positive("travel of the automatic learning rate", self.travel)

    def init(self, start: Start) -> DistanceState:
        """The first step's length; where all first weights are zero, a usual size stands in for theirs."""
        length = self.travel * (start.size or _USUAL_SIZE) / math.sqrt(start.steps)
        return replace(super().init(start), distance=length * math.sqrt(start.weights))
