"""Every unit takes part independently, with the same probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sordina.accounting.events import Event, PoissonSampled
from sordina.arguments import checked
from sordina.errors import InvalidInput
from sordina.sampling.sampler import Indices
from sordina.types import Adjacency


@checked
@dataclass(frozen=True)
class Poisson:
    """Poisson sampling: the size of a batch is random, and may be zero.

    ``population`` is a public number, such as a census figure or a round number near the size of the data; the
    guarantee rests on the rate ``batch / population`` alone, so it holds however many units are really present.

    >>> round(Poisson(batch=512, population=60000).rate, 6)
    0.008533
    """

    batch: float
    population: int

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.population:
            raise InvalidInput(
                f"the expected batch size must lie in (0, population], got {self.batch} of {self.population}."
            )

    @property
    def rate(self) -> float:
        """The probability with which each unit takes part."""
        return self.batch / self.population

    @property
    def adjacency(self) -> Adjacency:
        """Add/remove."""
        return Adjacency.ADD_REMOVE

    @property
    def expected_batch(self) -> float:
        """``batch``."""
        return self.batch

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """Toss a coin for each of ``size`` units."""
        return np.flatnonzero(rng.random(size) < self.rate)

    def event(self, event: Event) -> Event:
        """``event`` on a Poisson sample."""
        return PoissonSampled(self.rate, event)
