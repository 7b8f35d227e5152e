"""Convex losses of a margin and their minimum, for the methods that perturb an objective or its answer.

A record is a row x of norm at most R and a sign s; its loss is ``f(s w.x)`` with ``|f'| <= 1`` and ``f'' <=
curvature``. So its gradient has norm at most R, and its second derivative is ``f'' x x^T``: of rank one, and at most
``curvature R^2``. Several classes are as many problems, each class against the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sordina.estimators._base import Floats


class MarginLoss:
    """A convex loss f of the margin ``m = s w.x``, with ``|f'| <= 1`` and ``0 <= f'' <= curvature``."""

    curvature: float

    def value(self, margins: Floats) -> Floats:
        """The loss at each margin."""
        raise NotImplementedError

    def slope(self, margins: Floats) -> Floats:
        """Its derivative."""
        raise NotImplementedError

    def bend(self, margins: Floats) -> Floats:
        """Its second derivative, or one of its limits where it jumps."""
        raise NotImplementedError


class LogisticLoss(MarginLoss):
    """``log(1 + exp(-m))``."""

    curvature = 0.25

    def value(self, margins: Floats) -> Floats:
        """The loss at each margin."""
        losses: Floats = np.logaddexp(0.0, -margins)
        return losses

    def slope(self, margins: Floats) -> Floats:
        """Its derivative."""
        slopes: Floats = -0.5 * (1 - np.tanh(0.5 * margins))
        return slopes

    def bend(self, margins: Floats) -> Floats:
        """Its second derivative."""
        return -self.slope(margins) * (1 + self.slope(margins))


class SmoothedHinge(MarginLoss):
    """Huber's hinge: 0 from margin 1.5 on, linear below 0.5, a parabola between."""

    curvature = 1.0

    def value(self, margins: Floats) -> Floats:
        """The loss at each margin."""
        gap = np.maximum(1.5 - margins, 0.0)
        return np.where(gap < 1, gap**2 / 2, gap - 0.5)

    def slope(self, margins: Floats) -> Floats:
        """Its derivative."""
        slopes: Floats = -np.clip(1.5 - margins, 0.0, 1.0)
        return slopes

    def bend(self, margins: Floats) -> Floats:
        """Its second derivative, or one of its limits where it jumps."""
        return ((margins > 0.5) & (margins < 1.5)).astype(np.float64)


@dataclass(frozen=True)
class MarginProblem:
    """``sum_i f(s_i w.x_i) + ridge/2 |w|^2 + tilt.w``, strongly convex, so that it has one minimum.

    Args:
        loss: The loss f.
        rows: Rows of norm at most `bound`.
        ridge: Weight of the squared norm.
        bound: R, the public bound on the norm of a row.
    """

    loss: MarginLoss
    rows: Floats
    ridge: float
    bound: float

    @property
    def tolerance(self) -> float:
        """The norm of the gradient at which `minimum` stops; far above the rounding of sums of doubles."""
        return 1e-6 * self.bound

    def minimum(self, signs: Floats, tilt: Floats | float = 0.0) -> Floats:
        """Weights at which the gradient's norm is at most `tolerance`, by Newton steps that always descend.

        The objective is strongly convex with a Lipschitz gradient, so that damped steps reach every tolerance; there
        is no number of steps after which it gives up, which would be for a record to cause.

        Args:
            signs: +1 or -1 for each row.
            tilt: Weight of the linear term.
        """
        signed = self.rows * signs[:, None]
        weights = np.zeros(self.rows.shape[1])
        margins = signed @ weights

        def objective(w: Floats, m: Floats) -> float:
            return float(self.loss.value(m).sum() + self.ridge / 2 * (w @ w) + np.sum(tilt * w))

        while True:
            gradient = signed.T @ self.loss.slope(margins) + self.ridge * weights + tilt
            if float(np.linalg.norm(gradient)) <= self.tolerance / 2:
                return weights
            hessian = (signed * self.loss.bend(margins)[:, None]).T @ signed
            hessian[np.diag_indices_from(hessian)] += self.ridge
            step = -np.linalg.solve(hessian, gradient)
            slope, here, length = float(gradient @ step), objective(weights, margins), 1.0
            along = signed @ step
            while length > 1e-12 and not (
                objective(weights + length * step, margins + length * along) <= here + 1e-4 * length * slope
                or abs(length * slope) <= 1e-12 * abs(here)
            ):
                length /= 2
            weights, margins = weights + length * step, signed @ (weights + length * step)


def shortened(rows: Floats, bound: float) -> Floats:
    """``rows`` with those longer than ``bound`` cut to that length.

    Args:
        rows: One row per record.
        bound: The public bound.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    short: Floats = rows * np.minimum(1.0, bound / np.maximum(norms, 1e-300))
    return short


def signs_of(codes: Any, classes: int) -> list[Floats]:
    """The signs of each problem: one problem for two classes, else one a class.

    Args:
        codes: The class of each row.
        classes: How many classes there are.
    """
    wanted = [1] if classes == 2 else list(range(classes))
    return [np.where(codes == one, 1.0, -1.0) for one in wanted]
