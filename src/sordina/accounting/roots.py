"""Roots of monotone functions, always from the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable


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
