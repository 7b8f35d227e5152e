"""The default: a threshold at the typical norm of the first gradients, found once and then left alone.

Why it is found: what a good threshold is depends on the scale of the inputs and of the model, which nobody knows
beforehand. Why it is found *first*: before a model has learnt anything all gradients are about equally long, those of
rare labels too. Later the norms of samples that are learnt shrink, and a threshold that follows them gives them the
weight of those that are not: with 5 % of positive labels the model then learns that labels are negative, and nothing
else. Below a threshold that stays, a learnt sample counts for as little as it should.

How: the typical norm is the geometric mean. A step releases, beside the gradient, the mean over the batch of

    clamp(log |g_i| - m, -w / 3, w)    with |.| <= w, the bound of the query,

where m is the estimate so far. The noise on it is known, so the estimate is updated as a Kalman filter would:
with prior variance P and noise variance R, ``m += P / (P + R) * answer``, ``P <- P R / (P + R)``; w is three standard
deviations. An answer that moves the estimate far is not the last: the doubt stays, and the next step asks again. Norms
far below the estimate count for less than those above it: where a model's first outputs are so large that half of its
guesses are certain and right, half of the gradients vanish, and what is typical is the other half. The gradient and
this number share the precision of such a step (Prop. 1 of 000, as all side queries). Once the standard deviation is
below `precise`, usually after one to three steps, nothing is asked beside the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina._arguments import checked
from sordina.clipping.policy import ReleasedNorm, ball, moved, shrink, side_query
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, ScalarQuery, Scalars, VectorQuery

_WIDTH = 3.0
"""Norms count as far as this many standard deviations of the estimate."""
_LEAST_WIDTH = 1.0
_BELOW = 1 / 3
"""Norms below the estimate count as far as this part of the width."""
_FAR = 0.8
"""An answer that moves the logarithm by more leaves the doubt as it was."""


@dataclass(frozen=True)
class TypicalNormState:
    """The logarithm of the typical norm, the variance of this estimate, the steps taken, and whether it is settled."""

    log_norm: float
    variance: float
    step: int = 0
    found: bool = False

    @property
    def width(self) -> float:
        """How far from the estimate a logarithm counts."""
        return max(_LEAST_WIDTH, _WIDTH * math.sqrt(self.variance))

    @property
    def below(self) -> float:
        """How far below the estimate."""
        return max(_LEAST_WIDTH, _BELOW * self.width)


@checked
@dataclass(frozen=True)
class TypicalNorm:
    """Clip at ``multiple`` times the typical norm of the first gradients.

    Args:
        threshold: The threshold with which the search for the typical norm begins.
        multiple: The threshold over the typical norm.
        doubt: The standard deviation of its natural logarithm, before anything is seen.
        precise: At this standard deviation the search ends.
        longest: After this many steps it ends in any case.
        share: The share of a step's precision that the search takes, while it lasts.
    """

    threshold: float = 3.0
    multiple: float = 1.0
    doubt: float = 2.0
    precise: float = 0.3
    longest: int = 10
    share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("threshold", "multiple", "doubt", "precise"):
            check_positive(f"{name} of the typical norm", getattr(self, name))
        if not 0 < self.share < 1 or self.longest < 1:
            raise InvalidInput("the search for the typical norm needs a share in (0, 1) and at least one step.")

    def init(self, size: int) -> TypicalNormState:
        """At the first threshold, in doubt."""
        return TypicalNormState(math.log(self.threshold / self.multiple), self.doubt**2)

    def direction(self, state: TypicalNormState) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: TypicalNormState) -> tuple[Query, ...]:
        """The clipped sum, and while the search lasts the sum of clamped logarithms; one of no number counts zero."""
        norms = scalars.norms
        clipped = VectorQuery(shrink(norms, self.current_threshold(state)))
        if state.found:
            return (clipped,)
        apart = norms.log().sub_(state.log_norm).clamp_(-state.below, state.width)
        return clipped, ScalarQuery(torch.where(norms.isfinite(), apart, torch.zeros_like(apart)))

    def bounds(self, state: TypicalNormState, adjacency: Adjacency) -> tuple[float, ...]:
        """The threshold and the width, or twice that."""
        threshold = ball(self.current_threshold(state), adjacency)
        return (threshold,) if state.found else (threshold, ball(state.width, adjacency))

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """As in the first step: a part of the precision goes to the search."""
        return side_query(noise_multiplier, (1 - self.share) ** -0.5 - 1)

    def split_at(self, noise_multiplier: float, state: TypicalNormState) -> tuple[float, ...]:
        """Once the search has ended, the gradient has it all."""
        return (noise_multiplier,) if state.found else self.split(noise_multiplier)

    def adapt(self, state: TypicalNormState, released: Released) -> TypicalNormState:
        """The filter's update; an answer that moves the estimate far leaves the doubt."""
        if state.found:
            return state
        width = state.width
        noise = (released.noise[1] / released.divisor) ** 2 + 1 / released.divisor
        gain = state.variance / (state.variance + noise)
        answer = min(max(float(released.mean(1)), -width), width)
        if answer < -0.9 * state.below:  # next to all norms are further below than counts
            answer = -width
        log_norm = math.log(moved(math.exp(state.log_norm), gain * answer))
        off = gain * abs(answer) > _FAR
        variance = state.variance if off else gain * noise
        step = state.step + 1
        found = (not off and math.sqrt(variance) <= self.precise) or step >= self.longest
        return TypicalNormState(log_norm, variance, step, found)

    def current_threshold(self, state: TypicalNormState) -> float:
        """``multiple`` times the typical norm."""
        return moved(self.multiple, state.log_norm)

    def released_norm(self, state: TypicalNormState) -> ReleasedNorm:
        """The typical norm, for who chooses the length of a step."""
        return ReleasedNorm(math.exp(state.log_norm), state.found)
