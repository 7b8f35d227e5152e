"""Additive noise on totals, what it does to an answer, and confidence intervals for what is computed from it.

A question is asked in units in which one row adds at most 1 to its totals, in L1 and hence in L2. Totals are whole
numbers of ``1 / 2^30`` (counts: of 1), summed exactly; noise is drawn exactly on the same grid (`sordina.mechanisms`),
so no floating-point number depends on the data before the noise is in.

==================  ================================  =====================  ==========================================
family              noise of one total                event                  used where
==================  ================================  =====================  ==========================================
pure                Laplace of scale ``m S1``          ``Laplace(m)``         totals of numbers
pure, counts        discrete Laplace, scale ``m S1``   ``PureDP(1 / m)``      counts: its privacy loss is just +-1/m
concentrated        Gaussian of deviation ``m S2``     ``Gaussian(m)``        both, if many questions share a budget
==================  ================================  =====================  ==========================================

``m`` is the noise multiplier. Laplace and Gaussian noise is the real-valued one rounded down, plus half a step.

Confidence intervals for what is computed from noisy totals.

They cover the value of the table's kept rows (the truth behind the noise); where asked, also sampling error, as if the
rows were drawn from a large population.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sordina.accounting import Event
from sordina.accounting import events as happened
from sordina.errors import InvalidInput
from sordina.mechanisms import DiscreteLaplace
from sordina.mechanisms.exact import floored_gaussian, floored_laplace

Floats = NDArray[np.float64]
UNIT = 1 << 30
"""Steps of the grid in 1; a power of two, so the largest whole number of steps that a row adds."""
_MOST_STEPS = 1 << 49
_ROUND_UP = 1 + 2.0**-48


class Family(str, Enum):
    """How privacy is lost: at most so much (pure), or about as with Gaussian noise (concentrated)."""

    PURE = "pure"
    CONCENTRATED = "concentrated"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Choice:
    """What a question is answered with.

    Args:
        family: Of the noise.
        multiplier: Noise per unit of sensitivity; of what is chosen by the exponential mechanism, ``1 / epsilon``.
    """

    family: Family
    multiplier: float


@dataclass(frozen=True)
class TotalsNoise:
    """Independent noise on every total.

    Args:
        choice: Family and multiplier.
        l1: By how much a person changes the totals at most, in L1.
        l2: The same in L2.
        counts: Whether the totals are counts.
    """

    choice: Choice
    l1: float
    l2: float
    counts: bool = False

    @property
    def pure(self) -> bool:
        """Whether the noise is of Laplace's kind."""
        return self.choice.family is Family.PURE

    @property
    def scale(self) -> float:
        """Laplace's scale or the standard deviation of the Gaussian, in units of a row."""
        return self.choice.multiplier * (self.l1 if self.pure else self.l2)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return self.scale * math.sqrt(2) if self.pure else self.scale

    def event(self) -> Event:
        """What the release is to an accountant."""
        multiplier = self.choice.multiplier
        if not self.pure:
            return happened.Gaussian(multiplier)
        return happened.PureDP(1 / multiplier) if self.counts else happened.Laplace(multiplier)

    @property
    def steps(self) -> int:
        """Steps of the grid in 1: `UNIT`, or fewer where the noise is so large that it would leave 64 bits."""
        if self.counts and self.pure:
            return 1
        if self.scale > _MOST_STEPS:
            raise InvalidInput(
                f"a noise scale of {self.scale:.3g} rows is out of range: give the question more budget."
            )
        return min(UNIT, 1 << int(math.log2(_MOST_STEPS / self.scale)))

    def release(self, totals: NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """Totals (counts, or multiples of ``1 / UNIT``) with noise, in units of a row.

        Args:
            totals: The exact totals.
            rng: Source of noise.
        """
        if self.counts and self.pure:
            noisy = DiscreteLaplace(int(self.l1), 1 / self.choice.multiplier).release(totals, rng)
            return np.asarray(noisy, np.float64)
        steps = self.steps
        exact = totals * steps if self.counts else totals // (UNIT // steps)
        scale = math.ceil(self._rounded_scale(exact.size) * steps * _ROUND_UP)
        draw = floored_laplace if self.pure else floored_gaussian
        noisy_steps = exact + draw(scale, totals.size, rng).reshape(totals.shape)
        return (noisy_steps + 0.5) / steps

    def _rounded_scale(self, size: int) -> float:
        """The scale, raised where a coarser grid rounds the totals: each of them may then move by a step."""
        if self.counts or self.steps == UNIT:
            return self.scale
        return self.scale + self.choice.multiplier * (size if self.pure else math.sqrt(size)) / self.steps

    def bounds(self, confidence: float) -> tuple[float, float]:
        """How far below and above the truth a total may lie, with probability ``confidence``.

        Discrete noise: the two are whole, and differ by one where that is enough.

        Args:
            confidence: Such as 0.95.
        """
        beta = 1 - confidence
        if not self.pure:
            far = -float(ndtri(beta / 2)) * self.scale
        elif self.counts:
            return _discrete_bounds(self.scale, beta)
        else:
            far = -math.log(beta) * self.scale
        return far, far

    def tail(self, far: float, terms: int = 1) -> float:
        """The chance that the sum of the noise of ``terms`` totals is at least ``far`` >= 0.

        Args:
            far: In units of a row.
            terms: How many independent totals are added, at most three.
        """
        if not self.pure:
            return float(ndtr(-far / (self.scale * math.sqrt(terms))))
        x = far / self.scale
        if self.counts:
            return math.exp(-math.ceil(far) / self.scale) / (1 + math.exp(-1 / self.scale))
        return math.exp(-x) * (0.5, (2 + x) / 4, (8 + 5 * x + x * x) / 16)[terms - 1]

    def tail_point(self, chance: float, terms: int = 1) -> float:
        """The least ``far`` with ``tail(far) <= chance``, rounded up.

        Args:
            chance: Above 0.
            terms: As in `tail`.
        """
        low, high = 0.0, self.scale
        while self.tail(high, terms) > chance:
            low, high = high, 2 * high
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self.tail(middle, terms) > chance else (low, middle)
        # The tail of whole noise falls just above m - 1, where the search ends: a tolerance here would return m - 1.
        return math.ceil(high) if self.counts and self.pure else high

    def simulated(self, draws: int, totals: int) -> Floats:
        """Noise of ``totals`` totals, drawn ``draws`` times by an ordinary generator: to learn its law, not to use.

        Args:
            draws: Rows of the answer.
            totals: Columns of the answer.
        """
        rng = np.random.default_rng(20260101)
        shape = (draws, totals)
        return rng.laplace(0, self.scale, shape) if self.pure else rng.normal(0, self.scale, shape)


def _discrete_bounds(scale: float, beta: float) -> tuple[float, float]:
    """Whole ``(m, m)`` or ``(m, m + 1)``, left out with chance ``beta`` at most; ``P(Z >= m) = a^m / (1 + a)``."""
    a = math.exp(-1 / scale)

    def beyond(m: int) -> float:
        return math.exp(-(m + 1) / scale) / (1 + a)

    m = max(0, math.ceil(-math.log(beta * (1 + a) / 2) * scale - 1e-9) - 1)
    if m > 0 and beyond(m - 1) + beyond(m) <= beta:
        return float(m - 1), float(m)
    return float(m), float(m)


# Confidence intervals for what is computed from noisy totals.

_DRAWS = 40_000
_FAR = 20.0
_WHOLE = 4.0
"""A noisy count of fewer than this many noise bounds says nothing about a mean: its interval is the whole range."""


def ratio_interval(part: Floats, count: Floats, noise: TotalsNoise, confidence: float) -> tuple[Floats, Floats]:
    """Where ``A / (A + B)`` lies, for the noisy totals ``A`` and ``count = A + B``: exact (Fieller 1954).

    For the true ratio t, ``(1 - t) A - t B`` is noise alone: ``(1 - t) Z_A - t Z_B``, whose law is known for each t.
    The interval holds every t for which the noisy value is no larger than its bound q(t): ``|A - t (A + B)| <= q(t)``.

    Args:
        part: Noisy A, one for each cell.
        count: Noisy A + B.
        noise: On A and on B.
        confidence: Such as 0.95.
    """
    grid, bound = _ratio_bounds(noise, confidence)
    ends = []
    for sign in (1.0, -1.0):
        low, high = np.zeros_like(part), np.ones_like(part)
        for _ in range(60):
            middle = (low + high) / 2
            right = part - middle * count > sign * np.interp(middle, grid, bound)
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        ends.append((low + high) / 2)
    vague = count < _WHOLE * bound[0]
    return np.where(vague, 0.0, ends[0]), np.where(vague, 1.0, ends[1])


@lru_cache(maxsize=64)
def _ratio_bounds(noise: TotalsNoise, confidence: float) -> tuple[Floats, Floats]:
    """``q(t)`` on a grid of t: the ``confidence`` quantile of ``|(1 - t) Z_A - t Z_B|``."""
    grid = np.linspace(0.0, 1.0, 1025)
    large, small = np.maximum(grid, 1 - grid), np.minimum(grid, 1 - grid)
    if not noise.pure:
        return grid, -float(ndtri((1 - confidence) / 2)) * noise.scale * np.hypot(large, small)
    low, high = np.zeros_like(grid), np.full_like(grid, 3 - 3 * np.log(1 - confidence))
    for _ in range(60):
        middle = (low + high) / 2
        beyond = _two_laplace_tail(middle, large, small) > 1 - confidence
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return grid, high * noise.scale


def _two_laplace_tail(far: Floats, large: Floats, small: Floats) -> Floats:
    """``P(|a Z + c Z'| > t)`` for standard Laplace Z, Z': ``(a^2 e^(-t/a) - c^2 e^(-t/c)) / (a^2 - c^2)``."""
    close = large - small < 1e-5
    c = np.where(close, 0.5, np.maximum(small, 1e-9))
    a = np.where(close, 1.0, large)
    apart = (a * a * np.exp(-far / a) - c * c * np.exp(-far / c)) / (a * a - c * c)
    return np.where(close, (1 + far / (2 * large)) * np.exp(-far / large), apart)


def linear_bounds(weights: Floats, noise: TotalsNoise, confidence: float, sampling: Floats | None = None) -> Floats:
    """For each row of ``weights``, the ``confidence`` quantile of ``|weights . Z + sampling G|``.

    Args:
        weights: One row for each cell, one column for each noisy total.
        noise: Of every total (Z).
        confidence: Such as 0.95.
        sampling: The standard deviation of a normal error G besides, for each cell.
    """
    draws = _simulated(noise, weights.shape[1])
    normal = np.random.default_rng(20260102).standard_normal(_DRAWS) if sampling is not None else None
    bounds = np.empty(len(weights))
    for cell, row in enumerate(weights):
        errors = draws @ row
        if normal is not None and sampling is not None:
            errors = errors + sampling[cell] * normal
        bounds[cell] = np.quantile(np.abs(errors), confidence)
    return bounds


@lru_cache(maxsize=16)
def _simulated(noise: TotalsNoise, totals: int) -> Floats:
    return noise.simulated(_DRAWS, totals)


def above_threshold_interval(
    value: float, threshold: float, noise: TotalsNoise, confidence: float
) -> tuple[float, float]:
    """Where a count lies that was shown because its noisy value reached ``threshold``.

    Given that it was shown, the noise is cut off below; every count m is kept for which the noisy value is neither too
    far up nor too far down among those that would have been shown: ``P(m + Z >= value) / P(m + Z >= threshold)``.

    Args:
        value: The noisy count, at least the threshold.
        threshold: From which on counts are shown.
        noise: On the count.
        confidence: Such as 0.95.
    """
    if value - threshold > _FAR * noise.scale:  # shown in any case: nothing is cut off
        below, above = noise.bounds(confidence)
        return value - above, value + below
    half = (1 - confidence) / 2

    def survival(count: float, point: float) -> float:
        far = point - count
        return noise.tail(far) if far >= 0 else 1 - noise.tail(-far + (1 if noise.counts and noise.pure else 0))

    def end(share: float, strict: bool) -> float:
        low, high = value - 60 * noise.scale, value + 60 * noise.scale
        shift = 1 if strict and noise.counts and noise.pure else 0
        for _ in range(80):
            middle = (low + high) / 2
            reach = survival(middle, threshold)
            enough = reach > 0 and survival(middle, value + shift) / reach >= share
            low, high = (low, middle) if enough else (middle, high)
        return high

    return max(0.0, end(half, False)), max(0.0, end(1 - half, True))
