"""A batch of a fixed size, uniform without replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sordina.accounting.events import Event, FixedSizeSampled
from sordina.arguments import checked
from sordina.errors import InvalidInput
from sordina.sampling.sampler import Indices
from sordina.types import Adjacency


@checked
@dataclass(frozen=True)
class FixedSize:
    """``batch`` of ``population`` units. Under replace-one adjacency the number of units is public, and is checked."""

    batch: int
    population: int

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.population:
            raise InvalidInput(f"the batch size must lie in [1, population], got {self.batch} of {self.population}.")

    @property
    def adjacency(self) -> Adjacency:
        """Replace-one."""
        return Adjacency.REPLACE_ONE

    @property
    def expected_batch(self) -> float:
        """``batch``, always."""
        return float(self.batch)

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """Draw a batch; refuses data whose size is not the stated population."""
        if size != self.population:
            raise InvalidInput(
                f"the data holds {size} units but the population was stated as {self.population}: fixed-size sampling "
                "rests on the exact number. State population=len(data)."
            )
        return np.sort(rng.choice(size, self.batch, replace=False, shuffle=False)).astype(np.int64, copy=False)

    def event(self, event: Event) -> Event:
        """``event`` on a sample without replacement."""
        return FixedSizeSampled(self.batch, self.population, event)
