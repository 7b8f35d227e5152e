"""Linear regression from noisy sufficient statistics (AdaSSP, Wang 2018), or by the functional mechanism (004 4.1).

Rows are moved to [-1/2, 1/2] by public bounds and given a constant, so that a row z has norm at most B; targets t lie
in [-1/2, 1/2]. Released is ``(svec(sum z z^T), 2 B sum z t)``, where svec lists the upper triangle with the
off-diagonal times sqrt 2, so that its norm is the Frobenius norm. One row changes the first part by ``|z|^2 <= B^2``
and the second by at most ``B^2``: L2 sensitivity ``sqrt(2) B^2`` under add/remove, one Gaussian event. All that follows
is post-processing.

==============  ====================================================================================================
method          what follows
==============  ====================================================================================================
``statistics``  the ridge that keeps the noisy matrix well conditioned, and the solution (AdaSSP)
``functional``  those statistics are the coefficients of the squared loss, a polynomial (Zhang et al. 2012): it is
                regularised by 4 deviations of the noise, directions of negative curvature are left out. Before that,
                features are split by relevance (Gong et al. 2019): the covariance of each with the target, released
                with a tenth of the budget (a row changes the sums ``(z t, z, t, 1)`` by at most ``sqrt(5 d / 16 +
                5/4)``). The less relevant half is multiplied by 1/2, which lowers B, and with it the noise on the
                others. The paper has Laplace noise; with Gaussian noise the scale does not grow with the number of
                coefficients.
==============  ====================================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Noise:
    """How much noise the parts of a fit get, so that all of it is one Gaussian of ``multiplier``."""

    multiplier: float
    method: str

    @property
    def relevance(self) -> float:
        return self.multiplier / math.sqrt(0.1)

    @property
    def statistics(self) -> float:
        return self.multiplier if self.method == "statistics" else self.multiplier / math.sqrt(0.9)

    @property
    def event(self) -> Event:
        if self.method == "statistics":
            return Gaussian(self.statistics)
        return Composed((Gaussian(self.relevance), Gaussian(self.statistics)))


class Ridge(RegressorMixin, PrivateEstimator):
    """Ridge regression under a budget; see the module for methods and proof.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
        target_bounds: Public ``(low, high)`` of the target.
        alpha: Ridge on scaled columns, besides what the noise asks for.
        method: "statistics" (AdaSSP) or "functional".
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
        z = unit_rows[kept] - 0.5
        noise = _Noise(noise_for(self._budget(), lambda nu: _Noise(nu, self.method).event), self.method)
        with self._spending(noise.event, unit, len(kept)):
            scales = self._relevance(z, answers[kept], most, noise, rng)
            z = np.column_stack([z * scales, np.full(len(kept), 0.5)])
            bound = 0.5 * math.sqrt(float(scales @ scales) + 1)
            released = add_noise(
                np.concatenate([symmetric_vector(z.T @ z), 2 * bound * (z.T @ answers[kept])]),
                math.sqrt(2) * bound**2 * most, noise.statistics, rng,
            )  # fmt: skip
        self._solve(released, scales, bound, math.sqrt(2) * bound**2 * most * noise.statistics, middle, width)
        return self

    def _relevance(self, z: Floats, answers: Floats, most: int, noise: _Noise, rng: np.random.Generator) -> Floats:
        """What each feature is multiplied by: 1, or 1/2 for the half whose noisy covariance is smaller."""
        size = z.shape[1]
        if self.method == "statistics":
            return np.ones(size)
        sums = np.concatenate([z.T @ answers, z.sum(axis=0), [answers.sum(), len(z)]])
        bound = math.sqrt(5 * size / 16 + 1.25) * most
        released = add_noise(sums, bound, noise.relevance, rng)
        count = max(float(released[-1]), 1.0)
        relevance = np.abs(released[:size] / count - released[size:-2] / count * released[-2] / count)
        self.relevance_ = relevance
        return np.where(relevance >= np.median(relevance), 1.0, _LESS)

    def _solve(self, released: Floats, scales: Floats, bound: float, noise: float, middle: float, width: float) -> None:
        size = len(scales) + 1
        gram = symmetric_matrix(released[: size * (size + 1) // 2], size)
        values, vectors = np.linalg.eigh(gram)
        norm = math.sqrt(size * math.log(2 * size**2 / 0.05)) * noise  # of the noise matrix, with 95 % confidence
        floor = max(0.0, norm - float(values[0]))
        ridge = max(self.alpha, floor, 1e-9)
        if self.method == "functional":
            ridge = self.alpha + 4 * noise
            values, vectors = values[values > 0], vectors[:, values > 0]
        cross = released[size * (size + 1) // 2 :] / (2 * bound)
        weights = vectors @ ((vectors.T @ cross) / np.maximum(values + ridge, 1e-9)) * np.append(scales, 1.0)
        low, high = (np.broadcast_to(np.asarray(one, np.float64), (size - 1,)) for one in self.bounds_)
        self.coef_ = weights[:-1] * width / (high - low)
        self.intercept_ = middle + width * (0.5 * weights[-1] - 0.5 * weights[:-1].sum()) - float(self.coef_ @ low)
        self.noise_multiplier_ = noise

    def predict(self, X: Any) -> Floats:
        """Predicted targets.

        Args:
            X: Rows.
        """
        rows = fitted_rows(self, X)
        answers: Floats = rows @ self.coef_ + self.intercept_
        return answers


class LinearRegression(Ridge):
    """Least squares under a budget: `Ridge` with no more ridge than the noise asks for.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
        target_bounds: Public ``(low, high)`` of the target.
        method: "statistics" (AdaSSP) or "functional".
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
