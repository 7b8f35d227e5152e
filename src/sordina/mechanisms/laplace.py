"""The Laplace mechanism, and Laplace noise under the Euclidean metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput, Unsupported
from sordina.mechanisms.exact import DyadicGrid, floored_laplace
from sordina.mechanisms.mechanism import check_confidence, number, open_floats, settle, source, tail, whole, word
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


# Laplace noise in R^n under the Euclidean metric: d-privacy (000 chapter 2), geo-indistinguishability if n = 2.

_FINENESS = 20


@checked
@dataclass(frozen=True)
class MetricLaplace:
    """Adds noise of density ``K e^{-epsilon |x|}`` in R^n: inputs at distance d are told apart by at most epsilon d.

    ``epsilon`` is per unit of distance; n is the number of components of what is released. The radius is drawn from
    Gamma(n, 1/epsilon), the direction uniformly, both with the exact law whatever n.

    What is guaranteed of the floats: the proof is about reals, and these draws are floating-point ones. The sum is
    rounded to a grid of 2^-20 standard deviations of a component, which hides the low bits that Mironov's attack (2012)
    reads, but is no proof to the last bit, as `Laplace` and `Gaussian` have it.

    >>> MetricLaplace(epsilon=0.5).component_variance(2)
    12.0
    """

    epsilon: float
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        settle(self, epsilon=check_epsilon(number("epsilon", self.epsilon)), unit=word("unit", Unit, self.unit))
        DyadicGrid.under(1 / self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon per unit of Euclidean distance, between any two inputs."""
        return Guarantee(self.epsilon, 0.0, Adjacency.REPLACE_ONE, self.unit, Trust.METRIC)

    def event(self, distance: float | None = None) -> events.Event:
        """Between inputs at most ``distance`` apart: pure (epsilon distance)-DP. No event without a distance."""
        if distance is None:
            raise Unsupported("d-privacy has no finite epsilon by itself: state the distance inputs can be apart.")
        return events.PureDP(self.epsilon * check_positive("distance", number("distance", distance)))

    def log_density(self, output: Any, value: Any) -> float:
        """``ln K - epsilon |output - value|``, with ``K = epsilon^n Gamma(n/2) / (2 pi^{n/2} Gamma(n))``."""
        difference = open_floats(output)[0] - open_floats(value)[0]
        return self.log_constant(difference.size) - self.epsilon * float(np.linalg.norm(difference))

    def log_constant(self, dimension: int) -> float:
        """``ln K`` in dimension n: K itself underflows beyond a few hundred."""
        n = whole("dimension", dimension)
        surface = math.log(2) + n / 2 * math.log(math.pi) - float(gammaln(n / 2))
        return n * math.log(self.epsilon) - surface - float(gammaln(n))

    def component_variance(self, dimension: int) -> float:
        """``(n + 1) / epsilon^2``."""
        return (whole("dimension", dimension) + 1) / self.epsilon**2

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """The released point of R^``size`` is no further off (Euclidean), with probability ``confidence``."""
        radius = float(gammaincinv(whole("size", size), check_confidence(confidence))) / self.epsilon
        return radius * (1 + 1e-9) + self._grid(size).step * math.sqrt(size)

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """``value``, one point of R^n whatever its shape, with noise."""
        floats, close = open_floats(value)
        return close(self._noised(floats.reshape(1, -1), source(rng)).reshape(floats.shape))

    def release_rows(self, points: Any, rng: np.random.Generator | None = None) -> Any:
        """Every row of ``points`` as a point of its own: each is protected by itself."""
        floats, close = open_floats(points)
        if floats.ndim != 2:
            raise InvalidInput(f"points must be a table with one point per row, got shape {floats.shape}.")
        return close(self._noised(floats, source(rng)))

    def _grid(self, dimension: int) -> DyadicGrid:
        return DyadicGrid.under(math.sqrt(self.component_variance(dimension)), _FINENESS)

    def _noised(self, points: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        count, dimension = points.shape
        if dimension == 0:
            raise InvalidInput("a point needs at least one coordinate.")
        noise = rng.standard_normal((count, dimension))
        radius = rng.standard_gamma(dimension, size=count) / self.epsilon
        noise *= (radius / np.sqrt(np.einsum("ij,ij->i", noise, noise)))[:, None]
        noise += points
        grid = self._grid(dimension)
        grid.round(noise, out=noise)
        noise *= grid.step
        return noise
