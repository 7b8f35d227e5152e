"""Clip every vector to one public threshold (Abadi et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.clipping.policy import ball, shrink
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, Scalars, VectorQuery


@renamed(C="threshold")
@checked
@dataclass(frozen=True)
class Fixed:
    """``g -> g min(1, C / |g|)``; sensitivity C (add/remove) or 2C (replace-one).

    Args:
        threshold: C, the largest norm a vector keeps.

    >>> Fixed(1.0).bounds(None, Adjacency.REPLACE_ONE)
    (2.0,)
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        check_positive("clipping threshold", self.threshold)

    def init(self, size: int) -> None:
        """Nothing to remember."""

    def direction(self, state: None) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: None) -> tuple[Query, ...]:
        """The sum of clipped vectors."""
        return (VectorQuery(shrink(scalars.norms, self.threshold)),)

    def bounds(self, state: None, adjacency: Adjacency) -> tuple[float, ...]:
        """C or 2C."""
        return (ball(self.threshold, adjacency),)

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """All noise on the one query."""
        return (noise_multiplier,)

    def adapt(self, state: None, released: Released) -> None:
        """Nothing changes."""

    def current_threshold(self, state: None) -> float:
        """The threshold."""
        return self.threshold
