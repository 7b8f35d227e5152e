"""The Laplace mechanism (000 section 1.2): scale ``S1 / epsilon``, pure epsilon-DP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordina._arguments import checked
from sordina.accounting import events
from sordina.mechanisms.exact import DyadicGrid, floored_laplace
from sordina.mechanisms.mechanism import number, open_floats, settle, source, tail, word
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon, check_positive


@checked
@dataclass(frozen=True)
class LaplaceMechanism:
    """Adds Laplace noise to a number, array or tensor whose L1 distance between neighbours is at most ``sensitivity``.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.

    >>> mechanism = LaplaceMechanism(sensitivity=1, epsilon=0.5)
    >>> mechanism.scale
    2.0
    >>> round(mechanism.error_bound(0.95), 2)
    5.99

    The guarantee holds for the floats released, not only for the reals of the textbook: noise is sampled exactly on a
    grid of about 2^-40 scales, and the scale is raised for the rounding of the input, by a factor below
    ``1 + 2^-39 (size / epsilon + 1)``. See `sordina.mechanisms.exact`.
    """

    sensitivity: float
    epsilon: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def __post_init__(self) -> None:
        settle(
            self,
            sensitivity=check_positive("sensitivity", number("sensitivity", self.sensitivity)),
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            adjacency=word("adjacency", Adjacency, self.adjacency),
            unit=word("unit", Unit, self.unit),
            trust=word("trust", Trust, self.trust),
        )
        DyadicGrid.under(self.scale)

    @property
    def scale(self) -> float:
        """``b = S1 / epsilon``; the standard deviation is ``sqrt(2) b``."""
        return self.sensitivity / self.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP."""
        return Guarantee(self.epsilon, 0.0, self.adjacency, self.unit, self.trust)

    def event(self) -> events.Event:
        """Laplace noise of ``1 / epsilon`` sensitivities."""
        return events.Laplace(1 / self.epsilon)

    def density(self, output: float, value: float = 0.0) -> float:
        """``exp(-|output - value| / b) / (2 b)``."""
        return math.exp(-abs(output - value) / self.scale) / (2 * self.scale)

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """No component of ``size`` is off by more, with probability ``confidence``: ``P(|Z| > t) = e^{-t/b}``."""
        grid = DyadicGrid.under(self.scale)
        return -math.log(tail(confidence, size)) * self._units(grid, size) * grid.step + grid.step

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """``value`` with independent Laplace noise on every component."""
        floats, close = open_floats(value)
        grid = DyadicGrid.under(self.scale)
        noise = floored_laplace(self._units(grid, floats.size), floats.size, source(rng))
        return close(grid.add(grid.round(floats), noise))

    def _units(self, grid: DyadicGrid, size: int) -> int:
        return grid.units((self.sensitivity + size * grid.step) / self.epsilon)
