"""The seam of this room: a sampler draws batches and knows the event that drawing them causes.

The sampler decides the adjacency: a Poisson sample is accounted under add/remove, a fixed-size sample under
replace-one (errata 3). Nobody else says it again.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordina.accounting.events import Event
from sordina.types import Adjacency

Indices = NDArray[np.int64]


class Sampler(Protocol):
    """Who takes part in a step."""

    @property
    def adjacency(self) -> Adjacency:
        """The neighbours under which the event holds."""
        ...

    @property
    def expected_batch(self) -> float:
        """The public number that sums are divided by."""
        ...

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """The units of one batch, out of ``size`` units present."""
        ...

    def event(self, event: Event) -> Event:
        """What a step costs that does ``event`` on a drawn batch."""
        ...
