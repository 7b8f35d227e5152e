"""Automatic clipping: every vector to (almost) unit norm (Bu et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina._arguments import checked
from sordina.clipping.policy import ball
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, Scalars, VectorQuery


@checked
@dataclass(frozen=True)
class Automatic:
    """``g -> g / (|g| + gamma)``; sensitivity 1 (add/remove) or 2 (replace-one). ``gamma`` keeps tiny vectors tiny."""

    gamma: float = 0.01

    def __post_init__(self) -> None:
        check_positive("gamma of automatic clipping", self.gamma)

    def init(self, size: int) -> None:
        """Nothing to remember."""

    def direction(self, state: None) -> Tensor | None:
        """No projections are wanted."""
        return None

    def ask(self, scalars: Scalars, state: None) -> tuple[Query, ...]:
        """The sum of normalised vectors."""
        norms = scalars.norms
        own = 1 / (norms + self.gamma)
        return (VectorQuery(torch.where(norms.isfinite(), own, torch.zeros_like(own))),)

    def bounds(self, state: None, adjacency: Adjacency) -> tuple[float, ...]:
        """1 or 2."""
        return (ball(1.0, adjacency),)

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """All noise on the one query."""
        return (noise_multiplier,)

    def adapt(self, state: None, released: Released) -> None:
        """Nothing changes."""

    def current_threshold(self, state: None) -> float:
        """The norm bound, 1."""
        return 1.0
