"""Three ways to a private linear classifier that take no steps: perturb the objective, the answer, or a polynomial.

Each is planned from public facts, is one event, and releases the weights of all problems at once. Neighbours differ by
one unit (add/remove); R bounds the norm of a row, ``f`` is a convex loss of the margin:
a record is a row x and a sign s, its loss is ``f(s w.x)`` with ``|f'| <= 1`` and ``f'' <= curvature``. So its gradient
has norm at most R, and its second derivative is ``f'' x x^T``: of rank one, and at most ``curvature R^2``. Several
classes are as many problems, each class against the others.

**Objective perturbation** (Chaudhuri et al. 2011; Kifer et al. 2012; with approximate minima as Iyengar et al. 2019,
and the loss of privacy as Redberg et al. 2023). Released is the minimum w of ``sum f + ridge/2 |w|^2 + b.w``, b normal
of deviation sigma. Proof: ``b = -(grad sum f + ridge w)`` maps w to b one to one, so the density of w is that of b
times the determinant of ``H + ridge``. One more record with gradient g turns b into ``b - g`` and multiplies the
determinant by ``1 + f'' x^T (H + ridge)^-1 x``, between 1 and ``1 + curvature R^2 / ridge``. In both directions the
privacy loss is therefore at most

    log(1 + curvature R^2 / ridge) + |g|^2 / (2 sigma^2) + |b.g| / sigma^2,

and because ``g = f' s x`` has the direction of x, which does not depend on b, ``|b.g| <= R |N(0, sigma^2)|``. With
``t = R / sigma`` the loss is below ``c + |N(0, t^2)|``, ``c = log(1 + curvature R^2 / ridge) + t^2 / 2``, hence

    delta(epsilon) <= 2 (Phi(-a/t) - exp(a + t^2/2) Phi(-a/t - t)),   a = epsilon - c >= 0.

A person with up to m rows: the direction of the sum of their gradients may depend on b, so the argument is for one row.
Group privacy does the rest (Dwork and Roth 2014, theorem 2.2, with delta): a release that is (e, d) for a row is (m e,
d (exp(m e) - 1) / (exp(e) - 1)) for m of them. It costs more than m times the noise; ``method="gradient"`` does not.

The minimum is only approached: where the gradient's norm is at most T and b was rounded by at most r, the weights are
off by at most ``(T + r) / ridge``. Given the exact minimum that error is a function of the data, so it is released
under Gaussian noise of its own, of sensitivity ``2 (T + r) / ridge``: tiny, and on the account.

**Output perturbation** (Chaudhuri et al. 2011). ``sum f + ridge/2 |w|^2`` is strongly convex, so one more record moves
its minimum by at most ``R / ridge``; with m rows of a unit by ``m R / ridge``, with K problems by sqrt K times that.

**Functional mechanism** (Zhang et al. 2012). The logistic loss is replaced by its second Taylor polynomial at 0,
``log 2 - m/2 + m^2/8``; its coefficients ``sum x x^T`` (a record changes them by at most R^2, Frobenius) and ``sum s
x`` (sqrt K times R) are released with Gaussian noise (the paper has Laplace noise, whose scale grows with the number of
coefficients), and the noisy polynomial is regularised, its negative directions left out, and minimised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from sordina.accounting import ApproximateDP, Composed, Event, Gaussian, Repeated, accountant
from sordina.errors import InvalidInput
from sordina.estimators._base import Floats, add_noise, noise_for
from sordina.estimators.linear import symmetric_matrix, symmetric_vector
from sordina.mechanisms.exact import DyadicGrid, floored_gaussian
from sordina.privacy import Adjacency, Budget


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


_FINISH = 1e4
"""Noise multiplier that hides how far the computed minimum is from the true one; epsilon below 0.001."""
_DETERMINANT_SHARE = 0.2
"""Part of epsilon that pays for the determinant, unless more ridge is asked for."""


@dataclass(frozen=True)
class ObjectivePerturbation:
    """See the module.

    Args:
        loss: The loss f.
        bound: R.
        ridge: Weight of the squared norm.
        sigma: Deviation of the linear term's weights.
        event: What the release of all problems is to an accountant.
    """

    loss: MarginLoss
    bound: float
    ridge: float
    sigma: float
    event: Event

    @classmethod
    def within(
        cls, budget: Budget, loss: MarginLoss, bound: float, problems: int, alpha: float = 0.0, most: int = 1
    ) -> ObjectivePerturbation:
        """The least noise that keeps ``budget``.

        Args:
            budget: What all problems may cost together.
            loss: The loss f.
            bound: R.
            problems: How many there are.
            alpha: The least ridge; more is taken where the proof needs it.
            most: Rows a unit may have.
        """
        if budget.delta == 0 or math.isinf(budget.epsilon):
            raise InvalidInput("objective perturbation needs a finite epsilon and a delta above 0.")
        delta = 0.9 * budget.delta / problems

        def event(epsilon: float) -> Event:
            return Composed((Repeated(ApproximateDP(epsilon, delta), problems), Gaussian(_FINISH)))

        low, high = 0.0, budget.epsilon
        for _ in range(30):
            middle = (low + high) / 2
            spent = accountant("pld").epsilon(event(middle), budget.delta, Adjacency.ADD_REMOVE)
            low, high = (middle, high) if spent <= budget.epsilon else (low, middle)
            if high - low < 1e-4 * high:
                break
        if low == 0.0:
            raise InvalidInput("this budget is too small for objective perturbation: take method='gradient'.")
        row = low / most
        row_delta = delta * math.exp(row - low) * math.expm1(-row) / math.expm1(-low)  # as the module has it
        curvature = loss.curvature * bound**2
        ridge = max(alpha, curvature / math.expm1(_DETERMINANT_SHARE * row))
        left = row - math.log1p(curvature / ridge)
        t_low, t_high = 0.0, math.sqrt(2 * left)
        for _ in range(60):
            middle = (t_low + t_high) / 2
            t_low, t_high = (middle, t_high) if _delta(left - middle**2 / 2, middle) <= row_delta else (t_low, middle)
        return cls(loss, bound, ridge, bound / t_low, event(low))

    def release(self, rows: Floats, signs: Sequence[Floats], rng: np.random.Generator) -> Floats:
        """The weights, one line per problem.

        Args:
            rows: Rows of norm at most ``bound``.
            signs: Of the rows, for each problem.
            rng: Source of randomness.
        """
        problem, size = MarginProblem(self.loss, rows, self.ridge, self.bound), rows.shape[1]
        grid = DyadicGrid.under(self.sigma)
        found = []
        for one in signs:
            tilt: Floats = (floored_gaussian(grid.units(self.sigma), size, rng).astype(np.float64) + 0.5) * grid.step
            found.append(problem.minimum(one, tilt))
        error = math.sqrt(len(signs)) * (problem.tolerance + math.sqrt(size) * grid.step) / self.ridge
        return add_noise(np.stack(found), 2 * error, _FINISH, rng)


def _delta(a: float, t: float) -> float:
    """The delta of a privacy loss below ``epsilon - a + |N(0, t^2)|``, at that epsilon."""
    if a < 0:
        return 1.0
    second = a + t**2 / 2 + float(log_ndtr(-a / t - t))
    return float(2 * max(0.0, math.exp(float(log_ndtr(-a / t))) - math.exp(second)))


@dataclass(frozen=True)
class OutputPerturbation:
    """See the module.

    Args:
        loss: The loss f.
        bound: R.
        ridge: Weight of the squared norm.
        multiplier: Noise per unit of sensitivity.
        most: Rows a unit may have.
    """

    loss: MarginLoss
    bound: float
    ridge: float
    multiplier: float
    most: int

    @classmethod
    def within(
        cls, budget: Budget, loss: MarginLoss, bound: float, problems: int, most: int, size: tuple[int, int],
        alpha: float = 0.0,
    ) -> OutputPerturbation:  # fmt: skip
        """The least noise that keeps ``budget``, and a ridge that balances it with the bias it brings.

        Args:
            budget: What all problems may cost together.
            loss: The loss f.
            bound: R.
            problems: How many there are.
            most: Rows a unit may have.
            size: Public numbers of rows and columns.
            alpha: The ridge; chosen from public facts if 0.
        """
        multiplier = noise_for(budget, Gaussian)
        rows, columns = size
        noise = multiplier * most * bound * math.sqrt(problems)
        ridge = alpha or (0.04 * loss.curvature * rows * columns * noise**2) ** (1 / 3)
        return cls(loss, bound, ridge, multiplier, most)

    @property
    def event(self) -> Event:
        """What the release is to an accountant."""
        return Gaussian(self.multiplier)

    def sensitivity(self, problems: int, tolerance: float) -> float:
        """The largest change of all weights by one unit, the error of the computed minima included."""
        return math.sqrt(problems) * (self.most * self.bound + 2 * tolerance) / self.ridge

    def release(self, rows: Floats, signs: Sequence[Floats], rng: np.random.Generator) -> Floats:
        """The weights, one line per problem.

        Args:
            rows: Rows of norm at most ``bound``.
            signs: Of the rows, for each problem.
            rng: Source of randomness.
        """
        problem = MarginProblem(self.loss, rows, self.ridge, self.bound)
        found = np.stack([problem.minimum(one) for one in signs])
        return add_noise(found, self.sensitivity(len(signs), problem.tolerance), self.multiplier, rng)


@dataclass(frozen=True)
class FunctionalMechanism:
    """See the module.

    Args:
        bound: R.
        alpha: Ridge besides what the noise asks for.
        multiplier: Noise per unit of sensitivity.
        most: Rows a unit may have.
    """

    bound: float
    alpha: float
    multiplier: float
    most: int

    @property
    def event(self) -> Event:
        """What the release is to an accountant."""
        return Gaussian(self.multiplier)

    @property
    def sensitivity(self) -> float:
        """Of the coefficients, the linear ones scaled to weigh as much as the quadratic ones."""
        return math.sqrt(2) * self.most * self.bound**2

    def release(self, rows: Floats, signs: Sequence[Floats], rng: np.random.Generator) -> Floats:
        """The weights, one line per problem.

        Args:
            rows: Rows of norm at most ``bound``.
            signs: Of the rows, for each problem.
            rng: Source of randomness.
        """
        size, scale = rows.shape[1], self.bound / math.sqrt(len(signs))
        linear = np.stack([rows.T @ one for one in signs])
        total = np.concatenate([symmetric_vector(rows.T @ rows), scale * linear.ravel()])
        released = add_noise(total, self.sensitivity, self.multiplier, rng)
        triangle = size * (size + 1) // 2
        values, vectors = np.linalg.eigh(symmetric_matrix(released[:triangle], size))
        deviation = self.sensitivity * self.multiplier
        kept = values > 0
        inverse = np.where(kept, 1 / (np.where(kept, values, 1.0) / 4 + self.alpha + deviation), 0.0)
        answers: Floats = released[triangle:].reshape(linear.shape) / scale / 2 @ (vectors * inverse) @ vectors.T
        return answers
