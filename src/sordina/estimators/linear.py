"""Linear regression from noisy sufficient statistics around private means, or by the functional mechanism (004 4.1).

Rows are moved to [-1/2, 1/2] by public bounds, targets t as well. A fit is a sequence of Gaussian releases; all that is
done with them is post-processing. ``m`` is the number of rows a unit may have, and multiplies every sensitivity below.

``statistics`` first finds out where the rows are, so that bounds stated generously cost little (the idea of CoinPress,
Biswas et al. 2020), then releases the sums of least squares (AdaSSP, Wang 2018) there:

1. The number of rows: a row changes it by 1.
2. Two times: the mean of the rows and of the targets. Rows enter as ``y = z - c`` shortened to the length R, targets as
   ``r = t - b`` cut to [-q, q], with c, b the means and R, q the radii released so far (0, 0, and those of the bounds
   at first). Released is ``(sum y / R, sum r / q)``: a row changes it by at most ``sqrt 2``. Then R and q become
   smaller: of a histogram of ``|z - c|`` and one of ``|t - b|`` over half octaves (a row is in one cell of each,
   ``sqrt 2`` together), the outermost cells that hold next to nothing are left outside.
3. ``(svec(sum u u^T), sum u r / q)`` with ``u = (y / R, k) / sqrt(1 + k^2)``, of norm at most 1; svec lists the upper
   triangle with the off-diagonal times sqrt 2, so that its norm is the Frobenius norm: again ``sqrt 2``.

The mean that a prediction starts from is the inverse-variance average of its releases, and each eigenvector of the
noisy covariance gets the weight ``g r / (g (g + alpha) + s^2 / tau^2)`` (g its eigenvalue, r its covariance with the
target, s the noise on both): the posterior mean of a weight that is normal of deviation tau a priori. Where noise
dominates, that leaves the private mean, which is what a constant answer could have had. Below `FEW` rows per unit of
noise nothing but means is looked for, and the rows are counted once more. What decides is the *released* number of
rows: how many there are of persons with many is nowhere public. Either way the releases have ``mu^2`` together as
stated beforehand, and Gaussian releases chosen by what was released before compose to that (Smith and Thakurta 2022).

``functional`` is as the survey has it: z has a constant 1/2 besides, and norm at most B; released is ``(svec(sum z
z^T), 2 B sum z t)``, of sensitivity ``sqrt(2) B^2``. Those are the coefficients of the squared loss, a polynomial
(Zhang et al. 2012): it is regularised by 4 deviations of the noise, directions of negative curvature are left out.
Before that, features are split by relevance (Gong et al. 2019): the covariance of each with the target, released with a
tenth of the budget (a row changes the sums ``(z t, z, t, 1)`` by at most ``sqrt(5 d / 16 + 5/4)``). The less relevant
half is multiplied by 1/2, which lowers B, and with it the noise on the others. The paper has Laplace noise; with
Gaussian noise the scale does not grow with the number of coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from sordina.accounting import Composed, Event, Gaussian
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput
from sordina.estimators._base import (
    Floats,
    PrivateEstimator,
    add_noise,
    checked_rows,
    fitted_rows,
    limited,
    noise_for,
    scaled,
    scaled_targets,
)
from sordina.privacy import Budget

METHODS = ("statistics", "functional")
_LESS = 0.5
"""What features of little relevance are multiplied by."""


FEW = 60
"""Rows per unit of noise below which only means are looked for; this and the next were chosen on made-up tables of 200
to 20 000 rows and on numbers of Adult's training rows."""
_ROUNDS = 2
_CONSTANT = 0.1
"""k^2 of the module."""
_WEIGHT = 0.15
"""tau^2 of the module."""
_CELLS = 24
"""Half octaves below the bounds that a radius is looked for in."""
_PRIOR = 0.3
"""How far a mean is thought to be from the middle of its bounds, in parts of half their width."""


@dataclass(frozen=True)
class _FunctionalNoise:
    """How much noise the two parts get, so that both are one Gaussian of ``multiplier``."""

    multiplier: float

    @property
    def relevance(self) -> float:
        return self.multiplier / math.sqrt(0.1)

    @property
    def statistics(self) -> float:
        return self.multiplier / math.sqrt(0.9)

    @property
    def event(self) -> Event:
        return Composed((Gaussian(self.relevance), Gaussian(self.statistics)))


@dataclass(frozen=True)
class _Shares:
    """What part of the budget (of mu squared) each release of ``statistics`` gets; 1 together.

    Args:
        count: The number of rows, at first.
        again: The number of rows once more; 0 for not.
        mean: Each release of means.
        radius: Each release of the two histograms; 0 for none.
        rounds: How many there are of both.
    """

    count: float = 0.05
    again: float = 0.0
    mean: float = 0.08
    radius: float = 0.05
    rounds: int = _ROUNDS

    @property
    def sums(self) -> float:
        return 1 - self.count - self.again - self.rounds * (self.mean + self.radius)

    @classmethod
    def for_rows(cls, rows: float, multiplier: float) -> _Shares:
        """For a *released* number of units: ``count`` is spent when it is known, and the same in both."""
        return cls() if rows >= FEW * multiplier else cls(again=0.15, mean=0.55, radius=0.0, rounds=1)


@dataclass(frozen=True)
class _Place:
    """Where rows and targets are: centre, radius, and what is known of the centre's error (a variance)."""

    centre: Floats
    radius: float
    variance: float

    def around(self, values: Floats) -> Floats:
        """``values`` less the centre, in radii, none longer than 1."""
        gaps = (values - self.centre) / self.radius
        short: Floats = gaps / np.maximum(1.0, np.linalg.norm(gaps, axis=1, keepdims=True))
        return short

    def moved(self, mean: Floats, variance: float) -> _Place:
        """With the mean of what `around` gave, released with noise of ``variance``, taken into account."""
        noise = variance * self.radius**2
        centre = self.centre + self.radius * mean * self.variance / (self.variance + noise)
        return _Place(np.clip(centre, -0.5, 0.5), self.radius, 1 / (1 / self.variance + 1 / noise))


class Ridge(RegressorMixin, PrivateEstimator):
    """Ridge regression under a budget; see the module for methods and proof.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
        target_bounds: Public ``(low, high)`` of the target.
        alpha: Ridge on scaled columns, besides what the noise asks for.
        method: "statistics" or "functional".
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        alpha: float = 1.0,
        method: str = "statistics",
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.target_bounds, self.alpha = budget, bounds, target_bounds, alpha
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state, self.method = random_state, method

    def fit(self, X: Any, y: Any, persons: Any = None) -> Ridge:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Targets.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        rows, targets = checked_rows(self, X, y, with_target=True)
        if self.method not in METHODS:
            raise InvalidInput(f"no method is called {self.method!r}: choose {', '.join(METHODS)}.")
        if self.alpha < 0 or not math.isfinite(self.alpha):
            raise InvalidInput(f"alpha must be a number of at least 0, got {self.alpha}.")
        unit_rows = scaled(rows, self.bounds_)
        answers, middle, width = scaled_targets(np.asarray(targets, np.float64), self.target_bounds)
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        unit_rows -= 0.5
        z, answers = (unit_rows, answers) if len(kept) == len(rows) else (unit_rows[kept], answers[kept])
        if self.method == "functional":
            noise = _FunctionalNoise(noise_for(self._budget(), lambda nu: _FunctionalNoise(nu).event))
            with self._spending(noise.event, unit, len(kept)):
                weights, constant = self._functional(z, answers, most, noise, rng)
        else:
            multiplier = noise_for(self._budget(), Gaussian)
            with self._spending(Gaussian(multiplier), unit, len(kept)):
                weights, constant = self._around_means(z, answers, most, multiplier, rng)
        low, high = (np.broadcast_to(np.asarray(one, np.float64), weights.shape) for one in self.bounds_)
        self.coef_ = weights * width / (high - low)
        self.intercept_ = middle + width * (constant - 0.5 * float(weights.sum())) - float(self.coef_ @ low)
        return self

    def _around_means(
        self, z: Floats, answers: Floats, most: int, multiplier: float, rng: np.random.Generator
    ) -> tuple[Floats, float]:
        """Weights of z and the constant, by ``statistics``."""
        size, pair = z.shape[1], math.sqrt(2) * most
        first = _Shares.count
        rows = _count(z, most, multiplier / math.sqrt(first), rng)
        shares = _Shares.for_rows(rows / most, multiplier)
        if shares.again:
            second = _count(z, most, multiplier / math.sqrt(shares.again), rng)
            rows = (first * rows + shares.again * second) / (first + shares.again)
        rows = max(rows, multiplier / math.sqrt(first + shares.again) * most)
        outer = (0.5 * math.sqrt(size), 0.5)
        at = _Place(np.zeros(size), outer[0], (0.5 * _PRIOR) ** 2)
        of = _Place(np.zeros(1), outer[1], (0.5 * _PRIOR) ** 2)
        t = answers[:, None]
        for _ in range(shares.rounds):
            noise = multiplier / math.sqrt(shares.mean)
            sums = np.concatenate([at.around(z).sum(axis=0), of.around(t).sum(axis=0)])
            means, variance = add_noise(sums, pair, noise, rng) / rows, (pair * noise / rows) ** 2
            at, of = at.moved(means[:-1], variance), of.moved(means[-1:], variance)
            if shares.radius:
                noise = multiplier / math.sqrt(shares.radius)
                found = [_cells(z - at.centre, outer[0]), _cells(t - of.centre, outer[1])]
                counts = add_noise(np.concatenate(found), pair, noise, rng)
                outside = rows * min(0.1, max(0.002, 100 * multiplier * most / rows))
                at = replace(at, radius=_radius(counts[:_CELLS], outer[0], pair * noise, outside))
                of = replace(of, radius=_radius(counts[_CELLS:], outer[1], pair * noise, outside))
        k, unit = math.sqrt(_CONSTANT / (1 + _CONSTANT)), 1 / math.sqrt(1 + _CONSTANT)
        u = np.column_stack([unit * at.around(z), np.full(len(z), k)])
        sums = np.concatenate([symmetric_vector(u.T @ u), u.T @ of.around(t)[:, 0]])
        released = add_noise(sums, pair, multiplier / math.sqrt(shares.sums), rng)
        return self._solved(released, at, of, rows, pair * multiplier / math.sqrt(shares.sums))

    def _solved(self, released: Floats, at: _Place, of: _Place, rows: float, noise: float) -> tuple[Floats, float]:
        size = len(at.centre)
        k, unit = math.sqrt(_CONSTANT / (1 + _CONSTANT)), 1 / math.sqrt(1 + _CONSTANT)
        gram = symmetric_matrix(released[: -size - 1], size + 1)
        cross = released[-size - 1 :]

        def mean(total: Any, prior: float, variance: float) -> Any:
            return total / (k * rows) * prior / (prior + variance / (k * rows) ** 2)

        v = float(mean(cross[-1], of.variance / of.radius**2, noise**2))
        y = mean(gram[:-1, -1], unit**2 * at.variance / at.radius**2, noise**2 / 2)
        values, vectors = np.linalg.eigh(gram[:-1, :-1] - rows * np.outer(y, y))
        along, values = vectors.T @ (cross[:-1] - rows * y * v), np.maximum(values, 0.0)
        ridge = self.alpha * (unit / at.radius) ** 2
        solved = vectors @ (values * along / (values * (values + ridge) + noise**2 / _WEIGHT + 1e-12))
        weights: Floats = of.radius * unit / at.radius * solved
        constant = float(of.centre[0]) + of.radius * (v - float(y @ solved)) - float(weights @ at.centre)
        return weights, constant

    def _functional(
        self, z: Floats, answers: Floats, most: int, noise: _FunctionalNoise, rng: np.random.Generator
    ) -> tuple[Floats, float]:
        """Weights of z and the constant, by ``functional``."""
        scales = self._relevance(z, answers, most, noise, rng)
        size = len(scales) + 1
        z = np.column_stack([z * scales, np.full(len(z), 0.5)])
        bound = 0.5 * math.sqrt(float(scales @ scales) + 1)
        sensitivity = math.sqrt(2) * bound**2 * most
        sums = np.concatenate([symmetric_vector(z.T @ z), 2 * bound * (z.T @ answers)])
        released = add_noise(sums, sensitivity, noise.statistics, rng)
        values, vectors = np.linalg.eigh(symmetric_matrix(released[:-size], size))
        values, vectors = values[values > 0], vectors[:, values > 0]
        along = vectors.T @ released[-size:] / (2 * bound)
        weights = vectors @ (along / (values + self.alpha + 4 * sensitivity * noise.statistics))
        return weights[:-1] * scales, 0.5 * float(weights[-1])

    def _relevance(
        self, z: Floats, answers: Floats, most: int, noise: _FunctionalNoise, rng: np.random.Generator
    ) -> Floats:
        """What each feature is multiplied by: 1, or 1/2 for the half whose noisy covariance is smaller."""
        size = z.shape[1]
        sums = np.concatenate([z.T @ answers, z.sum(axis=0), [answers.sum(), len(z)]])
        bound = math.sqrt(5 * size / 16 + 1.25) * most
        released = add_noise(sums, bound, noise.relevance, rng)
        count = max(float(released[-1]), 1.0)
        relevance = np.abs(released[:size] / count - released[size:-2] / count * released[-2] / count)
        self.relevance_ = relevance
        return np.where(relevance >= np.median(relevance), 1.0, _LESS)

    def predict(self, X: Any) -> Floats:
        """Predicted targets, none outside ``target_bounds``.

        Args:
            X: Rows.
        """
        rows = fitted_rows(self, X)
        answers: Floats = np.clip(rows @ self.coef_ + self.intercept_, *self.target_bounds)
        return answers


class LinearRegression(Ridge):
    """Least squares under a budget: `Ridge` with no more ridge than the noise asks for.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
        target_bounds: Public ``(low, high)`` of the target.
        method: "statistics" or "functional".
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    alpha = 0.0

    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        method: str = "statistics",
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.target_bounds = budget, bounds, target_bounds
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state, self.method = random_state, method


def _count(rows: Floats, most: int, noise: float, rng: np.random.Generator) -> float:
    """How many rows there are, released."""
    return float(add_noise(np.array([float(len(rows))]), float(most), noise, rng)[0])


def _cells(gaps: Floats, outer: float) -> Floats:
    """How many rows of ``gaps`` have their length in each half octave below ``outer``, the last for all beyond."""
    edges = outer * 2.0 ** (-0.5 * np.arange(_CELLS)[:0:-1])
    places = np.searchsorted(edges, np.linalg.norm(gaps, axis=1))
    return np.bincount(places, minlength=_CELLS).astype(np.float64)


def _radius(counts: Floats, outer: float, noise: float, outside: float) -> float:
    """The upper edge of the outermost cell from which on more lies outside than may, or than noise explains.

    Args:
        counts: Noisy counts of `_cells`.
        outer: The last cell's edge.
        noise: Deviation of the noise on each.
        outside: How many rows may be left outside.
    """
    beyond = np.cumsum(counts[::-1])[::-1]
    much = beyond > np.maximum(outside, 2 * noise * np.sqrt(np.arange(_CELLS, 0, -1)))
    last = int(np.flatnonzero(much)[-1]) if much.any() else _CELLS - 1
    return float(outer * 2.0 ** (-0.5 * (_CELLS - 1 - last)))


def symmetric_vector(matrix: Floats) -> Floats:
    """The upper triangle, off-diagonal times sqrt 2: its norm is the Frobenius norm of the symmetric matrix.

    Args:
        matrix: Symmetric.
    """
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2))


def symmetric_matrix(vector: Floats, size: int) -> Floats:
    """The symmetric matrix that `symmetric_vector` made ``vector`` of.

    Args:
        vector: The upper triangle, off-diagonal times sqrt 2.
        size: Number of rows.
    """
    rows, columns = np.triu_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = vector / np.where(rows == columns, 1.0, math.sqrt(2))
    return matrix + np.triu(matrix, 1).T
