"""From a Renyi guarantee to a dominating pair, for what has no other (zero-concentrated events, random stopping).

A Renyi curve bounds delta at every epsilon >= 0 for both directions. The true curve, as a function of ``e^epsilon``, is
convex, so it lies below the lower convex hull of that bound; the hull, mirrored, is the curve of a pair whose losses
are the hull's corners. Divergences are added up before, so nothing is lost among such events; something is lost when
the pair is composed with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordina.accounting.rdp import delta_from, epsilon_from
from sordina.accounting.special import Array
from sordina.errors import Unsupported

_POINTS = 600
_LEAST = 1e-30
"""Where the curve may end: the mass beyond counts as lost."""
_ROUNDING = 1e-15
"""Absolute error of the curve, on the safe side."""
_REACH = 600.0


@dataclass(frozen=True)
class CornerLoss:
    """Losses ``corners`` >= 0 with tail masses under P and Q *beyond* each; only the part >= 0, to be mirrored."""

    corners: tuple[float, ...]
    upper: tuple[float, ...]
    lower: tuple[float, ...]

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """Steps at the corners; beyond the last one only lost mass remains."""
        at = np.searchsorted(np.array(self.corners), thresholds, side="right")
        upper = np.array([self.upper[0], *self.upper])[at]
        lower = np.array([self.lower[0], *self.lower])[at]
        return np.where(thresholds == math.inf, 0.0, upper), np.where(thresholds == math.inf, 0.0, lower)

    def span(self, tail: float) -> tuple[float, float]:
        """The corners end where next to nothing is left."""
        return -self.corners[-1], self.corners[-1]

    @property
    def leak(self) -> float:
        """What is left beyond the last corner."""
        return self.upper[-1]

    @property
    def scale(self) -> float:
        """The largest corner."""
        return self.corners[-1]


def corner_loss(orders: Array, divergences: Array) -> CornerLoss:
    """The loss that dominates everything with these Renyi divergences."""
    last = epsilon_from(orders, divergences, _LEAST)
    if last > _REACH:
        raise Unsupported(
            f"a zero-concentrated or randomly stopped event of epsilon above {_REACH:g} cannot be composed by pld. "
            "Use the accountant rdp."
        )
    losses = np.linspace(0.0, max(last, 1e-9), _POINTS)
    deltas = np.array([delta_from(orders, divergences, float(loss)) for loss in losses])
    return CornerLoss(*corners_of(losses, np.minimum(deltas * (1 + 1e-9) + _ROUNDING, 1.0)))


def corners_of(losses: Array, deltas: Array) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """The fields of a `CornerLoss` whose curve is the lower convex hull of ``deltas``, as a function of ``e^loss``.

    Args:
        losses: From 0 on, increasing.
        deltas: Upper bounds on delta there.
    """
    odds, kept = _hull(np.exp(losses), deltas)
    lower = np.append(-np.diff(kept) / np.diff(odds), 0.0)
    upper = kept + odds * lower
    return tuple(np.log(odds).tolist()), tuple(upper.tolist()), tuple(lower.tolist())


def _hull(points: Array, values: Array) -> tuple[Array, Array]:
    """The corners of the lower convex hull, from left to right."""
    kept: list[int] = []
    for new in range(points.size):
        while len(kept) > 1:
            first, middle = kept[-2], kept[-1]
            chord = (values[new] - values[first]) * (points[middle] - points[first])
            if (values[middle] - values[first]) * (points[new] - points[first]) < chord:
                break
            kept.pop()
        kept.append(new)
    return points[kept], values[kept]
