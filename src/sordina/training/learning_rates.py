"""Learning rates that adapt to what was released: post-processing, so free, and good with every policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from sordina.clipping.policy import Decay
from sordina.privacy import check_positive

# Learning rates that adapt to what was released: post-processing, so free, and good with every policy.
#
# `LearningRateRule` is the thesis's, `SteadyRate` keeps one step length, `sordina.training.learning_rates` has the
# default.
#
# ``rho <- rho exp(r sign(g_t . g_{t-1}))`` (000 eq. 3.21; errata 9 on its sign). To first order the expected change of
# the loss in a step is ``-rho |g|^2 + rho^2/2 (g'Hg + sigma^2 tr H)``, and ``E[g_t . g_{t-1}]`` is minus its derivative
# by rho: the rule seeks the best step for this much noise.

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


# How far the weights got over how hard they were pulled: a learning rate that finds itself.
#
# DoG (Ivgi, Hinder and Carmon 2023, eq. 1): ``rho_t = max_{i<=t} |theta_i - theta_0| / sqrt(sum_{i<=t} |g_i|^2)``. Both
# are known to everybody who sees the released gradients, so it is free. Here every gradient counts in units of the
# noise on it, so that a change of the clipping threshold does not change the length of the steps.
#
# A walk driven by noise alone gets ``sqrt(t)`` far in t steps, so noise neither raises nor lowers the rate. Where
# gradients agree the distance grows faster, and the rate with it; where they turn against each other it falls behind.
# From the middle of the run on the rate falls (`sordina.training.learning_rates.fall`).
#
# The rule takes weights to move by ``rho_t g_t``, as plain SGD moves them.

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
