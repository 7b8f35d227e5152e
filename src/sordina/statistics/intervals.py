"""Confidence intervals for what is computed from noisy totals.

They cover the value of the table's kept rows (the truth behind the noise); where asked, also sampling error, as if the
rows were drawn from a large population.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from sordina.statistics.noise import Floats, TotalsNoise

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
