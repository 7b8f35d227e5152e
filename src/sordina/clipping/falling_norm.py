"""A threshold that begins at the typical norm and falls as the longest gradients do.

Where a model is to give back what it is shown, or a number, the gradients of *all* samples shrink as it learns. A
threshold that stays then has noise added for lengths that no gradient has any more. One that follows the usual norm
would lose who is rare (`sordina.clipping.typical_norm` says why); so this one follows the longest.

How: a public *boundary* b, which begins at twice the typical norm, follows the norm that all but a `rare` share stay
below. Once the typical norm is found, every step releases, beside the gradient, the share of the batch whose norm is
above b / f, for a factor f. The released shares since b last moved have a mean m and, since the noise and the size of
the batch are known, a standard error s. If ``m + 2 s <= rare``, and ``2 s <= rare`` too, b falls by f; if
``m - 2 s > 2 rare``, it rises by f. The threshold is

    C = typical norm * b / (the largest b so far):

where the longest gradients are a tenth of what they were, C is a tenth of what it was. A label that more than `rare` of
the samples have so keeps most of its weight for as long as it is not learnt. Where noise hides so small a share the
threshold stays where it is.

The count has sensitivity one, and shares the noise with the gradient by Prop. 1 of 000: the gradient's grows by
`inflation`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from sordina._arguments import checked
from sordina.clipping.policy import ReleasedNorm, ball, moved, shrink, side_query
from sordina.clipping.typical_norm import TypicalNorm, TypicalNormState
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, ScalarQuery, Scalars, VectorQuery

_BOUNDARY = 2.0
"""The boundary over the typical norm, at first."""
_SURE = 2.0
"""So many standard errors."""
_MANY = 2.0
"""The boundary rises where more than this many times the rare share are counted."""
_MEMORY = 256
"""Of more steps than these at one boundary the older half counts for half."""


@dataclass(frozen=True)
class FallingNormState:
    """How far the search for the typical norm is, and what was seen since the threshold last changed."""

    search: TypicalNormState
    level: float = 0.0
    highest: float = 0.0
    """The logarithm of the boundary over where it began, and the largest so far."""
    share: float = 0.0
    variance: float = 0.0
    """The mean of the released shares, and the variance of the noise on that mean."""
    steps: int = 0


@checked
@dataclass(frozen=True)
class FallingNorm:
    """Clip at the typical norm of the first gradients, and lower as the longest gradients shrink.

    The default of `sordina.Trainer` where a model gives back what it is shown.

    Args:
        threshold: The threshold with which the search for the typical norm begins.
        rare: So large a share of the samples may be longer than the boundary.
        factor: By how much the boundary, and so the threshold, falls or rises at once.
        inflation: By how much the gradient's noise grows for the count of those who are longer.
    """

    threshold: float = 3.0
    rare: float = 0.01
    factor: float = 1.3
    inflation: float = 0.01

    def __post_init__(self) -> None:
        check_positive("threshold of the falling norm", self.threshold)
        check_positive("inflation", self.inflation)
        if not 0 < self.rare < 0.5:
            raise InvalidInput(f"the rare share must lie in (0, 0.5), got {self.rare}.")
        if not 1 < self.factor <= 2:
            raise InvalidInput(f"the factor by which a threshold falls must lie in (1, 2], got {self.factor}.")

    @cached_property
    def search(self) -> TypicalNorm:
        """What finds the typical norm."""
        return TypicalNorm(self.threshold)

    def init(self, size: int) -> FallingNormState:
        """As the search begins."""
        return FallingNormState(self.search.init(size))

    def direction(self, state: FallingNormState) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: FallingNormState) -> tuple[Query, ...]:
        """What the search asks; then the clipped sum, and the count of who is longer than the boundary."""
        if not state.search.found:
            return self.search.ask(scalars, state.search)
        norms, threshold = scalars.norms, self.current_threshold(state)
        boundary = moved(_BOUNDARY * self.search.current_threshold(state.search), state.level) / self.factor
        longer = norms.isfinite() & (norms > boundary)
        return VectorQuery(shrink(norms, threshold)), ScalarQuery(longer.to(norms))

    def bounds(self, state: FallingNormState, adjacency: Adjacency) -> tuple[float, ...]:
        """The search's; then the threshold, or twice that, and one: a sample is counted or not."""
        if not state.search.found:
            return self.search.bounds(state.search, adjacency)
        return ball(self.current_threshold(state), adjacency), 1.0

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """As in the first step."""
        return self.search.split(noise_multiplier)

    def split_at(self, noise_multiplier: float, state: FallingNormState) -> tuple[float, ...]:
        """The search's; then little noise more on the gradient pays for the count."""
        if not state.search.found:
            return self.search.split_at(noise_multiplier, state.search)
        return side_query(noise_multiplier, self.inflation)

    def adapt(self, state: FallingNormState, released: Released) -> FallingNormState:
        """Search, or look whether the boundary may fall or must rise."""
        if not state.search.found:
            return replace(state, search=self.search.adapt(state.search, released))
        before = min(state.steps, _MEMORY // 2) if state.steps >= _MEMORY else state.steps
        steps = before + 1
        share = (before * state.share + float(released.mean(1))) / steps
        noise = (released.noise[1] / released.divisor) ** 2
        variance = (before**2 * state.variance + noise) / steps**2
        doubt = _SURE * math.sqrt(variance + self.rare / (released.divisor * steps))
        if doubt <= self.rare and share + doubt <= self.rare:
            return FallingNormState(state.search, state.level - math.log(self.factor), state.highest)
        if share - doubt > _MANY * self.rare:
            level = state.level + math.log(self.factor)
            return FallingNormState(state.search, level, max(level, state.highest))
        return replace(state, share=share, variance=variance, steps=steps)

    def current_threshold(self, state: FallingNormState) -> float:
        """The typical norm, times how far the boundary has fallen."""
        return moved(self.search.current_threshold(state.search), state.level - state.highest)

    def released_norm(self, state: FallingNormState) -> ReleasedNorm:
        """The typical norm of first gradients, for who chooses the length of a step."""
        return self.search.released_norm(state.search)
