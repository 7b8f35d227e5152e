"""The bounded model of 000 chapter 5: map every vector into a sector of an annulus around a public direction.

Under replace-one adjacency the sensitivity of a sum is the *diameter* of the set its terms live in. A ball of radius C
has diameter 2C; a sector ``{c <= |g| <= C, angle(g, d) <= a}`` can have a much smaller one.

With n = |g|, p = <g, d>, s = sqrt(n^2 - p^2) and r = clamp(n, c, C):

================  ==================  =======================
case              own                 ref
================  ==================  =======================
inside the angle  r / n               0
outside           r sin(a) / s        r cos(a) - own p
n = 0             0                   c
n not finite      0                   c
no direction yet  min(1, C / n)       0 (the ball, 2C)
================  ==================  =======================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.clipping.policy import moved, shrink, side_query
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, check_positive
from sordina.queries import SLACK, Query, Released, ScalarQuery, Scalars, VectorQuery

_NEARLY_ANTIPARALLEL = 1e-4
"""Added to (s / n)^2: rounding in n^2 - p^2 may then only shrink the sideways part, never push it out of the set."""


def diameter(high: float, low: float, angle: float) -> float:
    """The largest distance between two points of the sector (private-training.md, after 000 section 5.3).

    Args:
        high: The outer radius.
        low: The inner radius.
        angle: The angle around the direction, in radians.

    >>> diameter(1.0, 0.0, math.pi)
    2.0
    >>> round(diameter(1.0, 1.0, math.pi / 6), 6)
    1.0
    """
    if angle > math.pi / 2:
        return 2 * high
    across = math.sqrt(high**2 + low**2 - 2 * high * low * math.cos(2 * angle))
    return max(2 * high * math.sin(angle), across)


@checked
@dataclass(frozen=True)
class Follow:
    """Let the sector follow noisy quantiles of norms and angles: each bound moves by ``exp(-rate (b - target))``.

    Args:
        high: The quantile of norms that the outer radius follows.
        low: The quantile of norms that the inner radius follows.
        angle: The quantile of angles that the angle follows.
        inflation: By how much the gradient's noise grows to pay for the side queries.
    """

    high: float = 0.9
    low: float = 0.1
    angle: float = 0.9
    rate: float = 0.1
    inflation: float = 0.01

    def __post_init__(self) -> None:
        if not (0 < self.low < self.high < 1 and 0 < self.angle < 1):
            raise InvalidInput("the quantiles a sector follows must satisfy 0 < low < high < 1 and 0 < angle < 1.")
        check_positive("rate", self.rate)
        check_positive("inflation", self.inflation)


@renamed(high="threshold")
@dataclass(frozen=True)
class SectorState:
    """The sector's bounds, its direction, and the running mean the direction comes from."""

    threshold: float
    low: float
    angle: float
    mean: Tensor | None = None
    direction: Tensor | None = None


@renamed(high="threshold")
@checked
@dataclass(frozen=True)
class Sector:
    """Clip into ``{low <= |g| <= threshold, angle(g, d) <= angle}``; d from the last released aggregates.

    Until something was released there is no direction, and the whole ball is used. ``memory`` is the weight of the past
    in the running mean of released aggregates that gives d. Replace-one adjacency only.

    Args:
        threshold: The outer radius, the largest norm a vector keeps.
        low: The inner radius.
        angle: The angle around the direction, in radians.
        follow: How the sector adapts; None keeps it fixed.
    """

    threshold: float = 1.0
    low: float = 0.0
    angle: float = math.pi / 2
    memory: float = 0.9
    follow: Follow | None = None

    def __post_init__(self) -> None:
        check_positive("upper threshold of the sector", self.threshold)
        if not 0 <= self.low <= self.threshold:
            raise InvalidInput(f"the lower threshold must lie in [0, {self.threshold}], got {self.low}.")
        if not 0 < self.angle <= math.pi:
            raise InvalidInput(f"the angle must lie in (0, pi], got {self.angle}.")
        if not 0 <= self.memory < 1:
            raise InvalidInput(f"memory must lie in [0, 1), got {self.memory}.")

    def init(self, size: int) -> SectorState:
        """The stated bounds, no direction."""
        return SectorState(self.threshold, self.low, self.angle)

    def direction(self, state: SectorState) -> Tensor | None:
        """The unit vector along the running mean of what was released."""
        return state.direction

    def ask(self, scalars: Scalars, state: SectorState) -> tuple[Query, ...]:
        """The sum of vectors mapped into the sector; with `Follow`, three centred counts."""
        norms = scalars.norms
        if state.direction is None or scalars.projections is None:
            vector = VectorQuery(shrink(norms, state.threshold))
            inside = torch.ones_like(norms, dtype=torch.bool)
        else:
            vector, inside = _into_sector(norms, scalars.projections, state)
        if self.follow is None:
            return (vector,)
        counts = (norms <= state.threshold, norms <= state.low, inside)
        return (vector, *(ScalarQuery(torch.where(count, 0.5, -0.5).to(norms)) for count in counts))

    def bounds(self, state: SectorState, adjacency: Adjacency) -> tuple[float, ...]:
        """The diameter, and 1 for each count. A norm may be `SLACK` too large, so a vector that much too short."""
        if adjacency is not Adjacency.REPLACE_ONE:
            raise Unsupported(
                "sector clipping bounds the distance between two vectors, not their length: it needs replace-one "
                "adjacency (fixed-size sampling). Use Fixed, Quantile or Online under add/remove."
            )
        low = state.low / (1 + SLACK)
        vector = 2 * state.threshold if state.direction is None else diameter(state.threshold, low, state.angle)
        return (vector,) if self.follow is None else (vector, 1.0, 1.0, 1.0)

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """All noise on the vector, or a little for the counts."""
        if self.follow is None:
            return (noise_multiplier,)
        return side_query(noise_multiplier, self.follow.inflation, (1 / 3, 1 / 3, 1 / 3))

    def adapt(self, state: SectorState, released: Released) -> SectorState:
        """Turn the direction towards what was released; move the bounds if asked to."""
        new = released.mean().double()
        mean = new if state.mean is None else self.memory * state.mean + (1 - self.memory) * new
        length = float(mean.norm())
        direction = (mean / length).to(released.answers[0].dtype) if length > 0 else None
        state = replace(state, mean=mean, direction=direction)
        if self.follow is None:
            return state
        rate = self.follow.rate
        high, low, angle = (float(released.mean(k)) + 0.5 for k in (1, 2, 3))
        new_high = moved(state.threshold, -rate * (high - self.follow.high))
        new_low = min(moved(max(state.low, 1e-6 * new_high), -rate * (low - self.follow.low)), new_high)
        new_angle = min(moved(state.angle, -rate * (angle - self.follow.angle)), math.pi)
        return replace(state, threshold=new_high, low=new_low, angle=new_angle)

    def current_threshold(self, state: SectorState) -> float:
        """The upper threshold."""
        return state.threshold


def _into_sector(norms: Tensor, projections: Tensor, state: SectorState) -> tuple[VectorQuery, Tensor]:
    n, p = norms.double(), projections.double()
    usable = n.isfinite() & p.isfinite() & (n > 0)
    n, p = torch.where(usable, n, 1.0), torch.where(usable, p, 0.0)
    r = n.clamp(state.low, state.threshold)
    inside = p >= n * math.cos(state.angle)
    sideways = ((n.square() - p.square()).clamp(min=0) + _NEARLY_ANTIPARALLEL * n.square()).sqrt()
    outside_own = r * math.sin(state.angle) / sideways
    own = torch.where(inside, r / n, outside_own)
    ref = torch.where(inside, 0.0, r * math.cos(state.angle) - outside_own * p)
    own = torch.where(usable, own, 0.0)
    ref = torch.where(usable, ref, state.low)
    return VectorQuery(own.to(norms), ref.to(norms)), inside & usable
