"""The Gaussian mechanism, calibrated analytically (Balle and Wang 2018) or, for epsilon < 1, classically."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput, Unsupported
from sordina.mechanisms.exact import DyadicGrid, floored_gaussian
from sordina.mechanisms.mechanism import number, open_floats, settle, source, tail, word
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_delta, check_epsilon, check_positive

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_MARGIN = 1e-9
"""Relative slack in delta: far above the error of `gaussian_delta` (about 1e-12), far below what is noticed."""


class Calibration(str, Enum):
    """How the noise follows from (epsilon, delta)."""

    ANALYTIC = "analytic"
    CLASSICAL = "classical"


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """The least delta for which noise of ``noise_multiplier`` L2 sensitivities is (epsilon, delta)-DP.

    Balle and Wang 2018, Theorem 8: ``Phi(-low) - e^epsilon Phi(-high)`` with ``low, high = epsilon/mu -+ mu/2`` and
    ``mu = 1 / noise_multiplier``. As ``e^epsilon phi(high) = phi(low)``, it equals ``phi(low) (R(low) - R(high))`` with
    Mills' ratio R, which neither overflows nor, written as the integral of ``-R'(x) = 1 - x R(x)``, cancels when mu is
    small.

    It is never 0: what is smaller is rounded up to the least normal float.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    return max(_gaussian_delta(epsilon, 1 / noise_multiplier), sys.float_info.min)


def _gaussian_delta(epsilon: float, mu: float) -> float:
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if low < -5:
        return float(ndtr(-low) - math.exp(epsilon) * ndtr(-high)) if epsilon < 700 else 1.0
    density = math.exp(-low * low / 2) / math.sqrt(2 * math.pi)
    if mu < 0.5:
        middle = epsilon / mu
        x = middle + _NODES * mu / 2
        return density * float(np.dot(_WEIGHTS, 1 - x * _mills(x))) * mu / 2
    return density * float(_mills(low) - _mills(high))


def _mills(x: Any) -> Any:
    """``(1 - Phi(x)) / phi(x)``."""
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def analytic_multiplier(epsilon: float, delta: float) -> float:
    """The least noise multiplier that is (epsilon, delta)-DP, rounded up (Balle and Wang 2018).

    >>> multiplier = analytic_multiplier(1.0, 1e-5)
    >>> gaussian_delta(1.0, multiplier) <= 1e-5
    True
    """
    target = math.log(max(delta * (1 - _MARGIN), sys.float_info.min))
    epsilon = min(epsilon, 1e12)  # the least noise that is told apart from none

    def excess(log_multiplier: float) -> float:
        return math.log(gaussian_delta(epsilon, math.exp(log_multiplier))) - target

    root = float(brentq(excess, *_bracket(excess), xtol=1e-13, rtol=1e-13))
    while excess(root) > 0:
        root += 1e-13
    return math.exp(root)


def _bracket(excess: Any) -> tuple[float, float]:
    low, high = -1.0, 1.0
    while excess(low) < 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
    return low, high


@checked
@dataclass(frozen=True)
class GaussianMechanism:
    """Adds Gaussian noise to a value whose L2 distance between neighbours is at most ``sensitivity``.

    Args:
        calibration: analytic (any epsilon) or classical (epsilon below 1).
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.

    >>> mechanism = GaussianMechanism(sensitivity=1, epsilon=1, delta=1e-5)
    >>> round(mechanism.noise_multiplier, 3)
    3.731

    The guarantee holds for the floats released: noise is sampled exactly on a grid of about 2^-40 standard deviations,
    raised for the rounding of the input by a factor below ``1 + 2^-39 (sqrt(size) m + 1)``, m the noise multiplier. See
    `sordina.mechanisms.exact`. That costs about 2 microseconds per component; for noise on gradients there is
    `sordina.random.add_gaussian`, a thousand times faster and as exact, on a coarser grid.
    """

    sensitivity: float
    epsilon: float
    delta: float
    calibration: Calibration = Calibration.ANALYTIC
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def __post_init__(self) -> None:
        settle(
            self,
            sensitivity=check_positive("sensitivity", number("sensitivity", self.sensitivity)),
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            delta=check_delta(number("delta", self.delta)),
            calibration=word("calibration", Calibration, self.calibration),
            adjacency=word("adjacency", Adjacency, self.adjacency),
            unit=word("unit", Unit, self.unit),
            trust=word("trust", Trust, self.trust),
        )
        if self.delta < 1e-250:
            raise InvalidInput(
                f"Gaussian noise needs a delta of at least 1e-250, got {self.delta}: use Laplace for none."
            )
        if self.calibration is Calibration.CLASSICAL and self.epsilon >= 1:
            raise Unsupported(f"classical calibration holds for epsilon < 1 only, got {self.epsilon}: use analytic.")
        DyadicGrid.under(self.sigma)

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation over sensitivity; classically ``sqrt(2 ln(1.25/delta)) / epsilon``, errata 12."""
        if self.calibration is Calibration.CLASSICAL:
            return math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        return analytic_multiplier(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return self.noise_multiplier * self.sensitivity

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta)-DP."""
        return Guarantee(self.epsilon, self.delta, self.adjacency, self.unit, self.trust)

    def event(self) -> events.Event:
        """Gaussian noise of ``noise_multiplier`` sensitivities."""
        return events.Gaussian(self.noise_multiplier)

    def density(self, output: float, value: float = 0.0) -> float:
        """``exp(-(output - value)^2 / (2 sigma^2)) / (sigma sqrt(2 pi))``."""
        return math.exp(-(((output - value) / self.sigma) ** 2) / 2) / (self.sigma * math.sqrt(2 * math.pi))

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """No component of ``size`` is off by more, with probability ``confidence``."""
        grid = DyadicGrid.under(self.sigma)
        quantile = -float(ndtri(tail(confidence, size) / 2))
        return quantile * self._units(grid, size) * grid.step + grid.step

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """``value`` with independent Gaussian noise on every component."""
        floats, close = open_floats(value)
        grid = DyadicGrid.under(self.sigma)
        noise = floored_gaussian(self._units(grid, floats.size), floats.size, source(rng))
        return close(grid.add(grid.round(floats), noise))

    def _units(self, grid: DyadicGrid, size: int) -> int:
        return grid.units((self.sensitivity + math.sqrt(size) * grid.step) * self.noise_multiplier)
