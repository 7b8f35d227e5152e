"""The hockey-stick curve ``delta(epsilon) = sum_x p(x) (1 - e^(epsilon - x))_+`` of losses on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordina.accounting.special import Array

_REACH = 600.0


@dataclass(frozen=True)
class Curve:
    """Upper bounds on delta at grid points. Between them delta is linear in e^epsilon, so nothing is lost there."""

    losses: Array
    deltas: Array
    shift: float
    """Rounding of the losses themselves: added to every epsilon."""

    @classmethod
    def of(cls, losses: Array, masses: Array, centre: float, lost: float, slack: float, shift: float) -> Curve:
        """From masses on a grid of equal steps, ``lost`` mass that counts in full, and a relative ``slack``.

        Epsilons more than 600 below ``centre`` are not resolved.

        With tails ``S(x) = sum_(y > x) p(y)``, summation by parts gives
        ``delta(x_j) = (1 - e^-h) sum_(m >= j) e^(x_j - x_m) S(x_m)``: all terms are positive, so none cancel.
        """
        step = float(losses[1] - losses[0])
        tails = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
        kept = losses >= centre - _REACH
        losses, tails = losses[kept], tails[kept]
        fading = np.exp(np.maximum(centre - losses, -_REACH))
        sums = np.cumsum((fading * tails)[::-1])[::-1] / fading
        deltas = -math.expm1(-step) * sums
        return cls(losses, np.minimum(deltas * slack + lost, 1.0), shift)

    def starts_late(self, delta: float) -> bool:
        """Whether the epsilon at ``delta`` lies before the first grid point."""
        return bool(self.deltas[0] <= delta and self.losses[0] > 0)

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with at most ``delta``."""
        if self.deltas[-1] > delta:
            return math.inf
        at = int(np.argmax(self.deltas <= delta))
        if at == 0:
            return max(0.0, float(self.losses[0]) + self.shift)
        left, right = float(self.deltas[at - 1]), float(self.deltas[at])
        share = (left - delta) / (left - right)
        step = float(self.losses[at] - self.losses[at - 1])
        inside = math.log1p(math.expm1(step) * share) if step < 30 else step
        return max(0.0, float(self.losses[at - 1]) + inside + self.shift)

    def delta(self, epsilon: float) -> float:
        """The delta at ``epsilon``."""
        at = int(np.searchsorted(self.losses, epsilon - self.shift))
        if at == 0:
            return 1.0 if epsilon - self.shift < self.losses[0] else float(self.deltas[0])
        if at == self.losses.size:
            return float(self.deltas[-1])
        left, right = float(self.losses[at - 1]), float(self.losses[at])
        if right - left > 30:
            return float(self.deltas[at - 1])
        share = math.expm1(epsilon - self.shift - left) / math.expm1(right - left)
        return float((1 - share) * self.deltas[at - 1] + share * self.deltas[at])
