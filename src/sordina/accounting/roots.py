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
