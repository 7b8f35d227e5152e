"""Numbers the accountants share: the normal distribution from the standard library, and safe roots."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

# The normal distribution function and its kin, from the standard library: importing scipy would take most of a second.
#
# ``math.erfc`` is exact to a unit in the last place (glibc), so the relative error of `ndtr` is that of rounding its
# argument, ``x^2 u`` with u = 1.1e-16: below 2e-13 as far as its values are normal numbers.

Array = npt.NDArray[np.float64]

_STANDARD = NormalDist()
_ROOT_HALF = math.sqrt(0.5)
_TAIL = 36.0
"""Beyond, the distribution function underflows and its asymptotic series is exact to rounding."""


def ndtr(x: Array) -> Array:
    """``Phi(x)``, elementwise.

    >>> ndtr(np.array([-np.inf, 0.0, np.inf])).tolist()
    [0.0, 0.5, 1.0]
    """
    scaled = (-_ROOT_HALF * x).ravel().tolist()
    return 0.5 * np.fromiter(map(math.erfc, scaled), np.float64, x.size).reshape(x.shape)


def ndtri(probability: float) -> float:
    """``Phi^-1(p)``, -inf at 0 and inf at 1."""
    if probability <= 0:
        return -math.inf
    if probability >= 1:
        return math.inf
    return _STANDARD.inv_cdf(probability)


def log_ndtr(x: float) -> float:
    """``ln Phi(x)`` of a single number, far into both tails.

    >>> round(log_ndtr(-40.0), 6)
    -804.608442
    """
    if x > 0:
        return math.log1p(-0.5 * math.erfc(_ROOT_HALF * x))
    if x > -_TAIL:
        return math.log(0.5 * math.erfc(-_ROOT_HALF * x))
    if math.isinf(x):
        return -math.inf
    square = 1 / x / x
    series = -square * (1 - square * (3 - square * (15 - 105 * square)))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(series)


def fast_length(size: int) -> int:
    """The least product of powers of 2, 3 and 5 that is at least ``size``: lengths at which an FFT is fast.

    >>> fast_length(1025)
    1080
    """
    best = 1 << max(size - 1, 1).bit_length()
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            whole = -(-size // threes)
            best = min(best, threes << max(whole - 1, 0).bit_length())
            threes *= 3
        fives *= 5
    return best


# Roots of monotone functions, always from the safe side.


def falling_root(function: Callable[[float], float], low: float, high: float, relative: float = 1e-3) -> float:
    """A point where the falling ``function`` is <= 0, within ``relative`` of the first such point in [low, high].

    ``high`` is taken to be such a point without being asked. Bisects on a logarithmic scale, so 0 < low < high.

    >>> round(falling_root(lambda x: 2.0 - x, 0.1, 100.0, 1e-9), 6)
    2.0
    """
    while high > low * (1 + relative):
        middle = math.sqrt(low) * math.sqrt(high)
        if function(middle) <= 0:
            high = middle
        else:
            low = middle
    return high


def smooth_falling_root(function: Callable[[float], float], low: float, high: float, relative: float = 1e-13) -> float:
    """As `falling_root` on a linear scale, by false position (Illinois), for functions that are nearly straight.

    >>> round(smooth_falling_root(lambda x: 2.0 - x * x, 0.0, 4.0), 12)
    1.414213562373
    """
    above, below = function(low), function(high)
    for turn in range(200):
        if high - low <= relative * abs(high):
            break
        share = above / (above - below) if turn % 8 < 7 else 0.5
        middle = min(max(low + share * (high - low), low + 0.25 * relative * abs(high)), high)
        value = function(middle)
        if value <= 0:
            high, below, above = middle, value, above / 2
        else:
            low, above, below = middle, value, below / 2
    return high
