"""Online sensitivity optimisation: let the loss say which way the threshold should go (000 chapter 3).

The derivative of the loss with respect to the threshold C is ``-rho g_t . q_{t-1}`` (eq. 3.12), where q sums the unit
vectors of the samples that were clipped. Both vectors are released with Gaussian noise (Prop. 1; errata 2: the noise on
q is nu_q, inside the sum), so the rule ``C <- C exp(rate sign(g . q))`` (eq. 3.20) is post-processing.

In large models that sign is mostly noise, and where nothing is clipped q carries no signal at all. Three things help,
and make `Online()` (`Online.as_in_thesis` is the rule as printed; the default of training is `TypicalNorm`,
because a threshold that follows shrinking gradients fails where labels are rare):

- *averaging*: the sign is taken of running means of g and q, whose signal adds up and whose noise does not;
- *rails*: a noisy count of clipped samples, one number that costs almost nothing, tells when C is far off. Outside
  the rails C moves towards them, the faster the further it is away. They lie where most samples are clipped: with a
  learning rate in units of the noise (`sordina.training.learning_rates`) a smaller threshold costs no progress;
- *a schedule* whose steps have a finite sum (`Decay`): C finds the scale of the first gradients from any start and
  stays near it. A threshold that follows the shrinking gradients to the end of a run gives samples that are learned
  already the weight of those that are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.clipping.policy import Decay, ball, moved, shrink, side_query
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, ScalarQuery, Scalars, VectorQuery


@checked
@dataclass(frozen=True)
class Rails:
    """Between which fractions of clipped samples the sign rule may roam; ``share`` of the side noise budget.

    Args:
        low: The least fraction of clipped samples.
        high: The largest fraction of clipped samples.
        speed: How fast the threshold returns when it is outside.
    """

    low: float = 0.5
    high: float = 0.8
    speed: float = 3.0
    share: float = 0.2

    def __post_init__(self) -> None:
        if not (0 < self.low < self.high < 1 and 0 < self.share < 1):
            raise InvalidInput("rails must satisfy 0 < low < high < 1, and their share must lie in (0, 1).")
        check_positive("speed of the rails", self.speed)

    def push(self, clipped: float) -> float:
        """How hard to push C, down if too few samples are clipped and up if too many; 0 between the rails."""
        clipped = min(max(clipped, 0.0), 1.0)
        if clipped < self.low:
            return -self.speed * (self.low - clipped) / self.low
        if clipped > self.high:
            return self.speed * (clipped - self.high) / (1 - self.high)
        return 0.0


@renamed(C="threshold")
@dataclass(frozen=True)
class OnlineState:
    """The threshold, the number of steps and the running means of the released vectors."""

    threshold: float
    step: int = 0
    gradient: Tensor | None = None
    derivative: Tensor | None = None


@renamed(initial="threshold")
@checked
@dataclass(frozen=True)
class Online:
    """Move the threshold along the sign of ``g . q``, starting at ``threshold``.

    ``memory`` is the weight of the past in the running means, ``inflation`` the growth of the gradient's noise that
    pays for the side queries.

    Args:
        threshold: The first threshold.
        rate: How fast the threshold moves.
        rails: Between which fractions of clipped samples the rule may roam; None for no rails.
    """

    threshold: float = 0.1
    rate: Decay = Decay(0.4, 25, power=2)
    memory: float = 0.9
    rails: Rails | None = Rails()
    inflation: float = 0.01

    def __post_init__(self) -> None:
        check_positive("initial clipping threshold", self.threshold)
        check_positive("inflation", self.inflation)
        if not 0 <= self.memory < 1:
            raise InvalidInput(f"memory must lie in [0, 1), got {self.memory}.")

    @classmethod
    @renamed(initial="threshold")
    def as_in_thesis(cls, threshold: float = 0.1, rate: float = 2.5e-3) -> Online:
        """Algorithm 3 of 000: constant rate, no averaging, no rails."""
        return cls(threshold, Decay(rate), memory=0.0, rails=None)

    def init(self, size: int) -> OnlineState:
        """Start at ``threshold``."""
        return OnlineState(self.threshold)

    def direction(self, state: OnlineState) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: OnlineState) -> tuple[Query, ...]:
        """The clipped sum, the sum of unit vectors of clipped samples (eq. 3.11), and their centred count."""
        norms = scalars.norms
        clipped = norms > state.threshold
        unit = torch.where(clipped, norms.reciprocal(), 0.0)
        vectors = (VectorQuery(shrink(norms, state.threshold)), VectorQuery(unit))
        if self.rails is None:
            return vectors
        return (*vectors, ScalarQuery(clipped.to(norms).sub_(0.5)))

    def bounds(self, state: OnlineState, adjacency: Adjacency) -> tuple[float, ...]:
        """C, 1 and 1/2, or twice that."""
        vectors = (ball(state.threshold, adjacency), ball(1.0, adjacency))
        return vectors if self.rails is None else (*vectors, ball(0.5, adjacency))

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """Prop. 1 of 000: ``nu_q = 7.124 nu`` at an inflation of 1 %, shared with the count if there are rails."""
        shares = (1.0,) if self.rails is None else (1 - self.rails.share, self.rails.share)
        return side_query(noise_multiplier, self.inflation, shares)

    def adapt(self, state: OnlineState, released: Released) -> OnlineState:
        """Eq. 3.20 on running means of the sums (their sign does not depend on the divisor), or back to the rails.

        The means stay where they are in memory: each is as long as all weights together (`kept`).
        """
        gradient, derivative = released.answers[:2]
        push = self.rails.push(float(released.mean(2)) + 0.5) if self.rails else 0.0
        if state.derivative is None or state.gradient is None:
            return OnlineState(state.threshold, state.step + 1, kept(gradient), kept(derivative))
        blend(state.gradient, gradient, self.memory)
        if push == 0:
            push = float(np.sign(inner(state.gradient, state.derivative)))
        threshold = moved(state.threshold, self.rate(state.step) * push)
        blend(state.derivative, derivative, self.memory)
        return OnlineState(threshold, state.step + 1, state.gradient, state.derivative)

    def current_threshold(self, state: OnlineState) -> float:
        """The current threshold."""
        return state.threshold


# Running means of released vectors. They are as long as the model, and only the sign of an inner product is asked of
# them: those of large models are kept in sixteen bits, so that they do not double the memory that training takes.

LARGE = 1 << 24
"""Means of more values than this are kept in sixteen bits."""
_PIECE = 1 << 20
"""So many values are computed with at a time."""


def kept(vector: Tensor) -> Tensor:
    """A copy to begin a running mean with."""
    return vector.to(torch.bfloat16) if vector.numel() > LARGE else vector.clone()


def blend(mean: Tensor, vector: Tensor, memory: float) -> None:
    """``mean = memory mean + (1 - memory) vector``, in place.

    >>> mean = torch.ones(2)
    >>> blend(mean, torch.zeros(2), 0.75)
    >>> mean
    tensor([0.7500, 0.7500])
    """
    if mean.dtype == vector.dtype:
        torch.lerp(vector, mean, memory, out=mean)
        return
    for old, new in zip(torch.split(mean, _PIECE), torch.split(vector, _PIECE), strict=True):
        old.copy_(torch.lerp(new, old.to(new), memory))


def inner(one: Tensor, two: Tensor) -> float:
    """The inner product of two means."""
    if one.dtype != torch.bfloat16:
        return float(torch.dot(one, two))
    pieces = zip(torch.split(one, _PIECE), torch.split(two, _PIECE), strict=True)
    return sum(float(torch.dot(a.float(), b.float())) for a, b in pieces)
