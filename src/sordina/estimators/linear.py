"""Linear regression from noisy sufficient statistics (AdaSSP, Wang 2018; 004 section 4.1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from sordina.accounting import Gaussian
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
from sordina.types import Budget


class Ridge(RegressorMixin, PrivateEstimator):
    """Ridge regression under a budget.

    Rows are moved to [-1/2, 1/2] by public bounds and given a constant, so that a row z has norm at most B; targets t
    lie in [-1/2, 1/2]. Released is ``(svec(sum z z^T), 2 B sum z t)``, where svec lists the upper triangle with the
    off-diagonal times sqrt 2, so that its norm is the Frobenius norm. One row changes the first part by
    ``|z|^2 <= B^2`` and the second by at most ``B^2``: L2 sensitivity ``sqrt(2) B^2`` under add/remove, one Gaussian
    event. The ridge that keeps the noisy matrix well conditioned, and the solution, are post-processing.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
        target_bounds: Public ``(low, high)`` of the target.
        alpha: Ridge on scaled columns, besides what the noise asks for.
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
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.target_bounds, self.alpha = budget, bounds, target_bounds, alpha
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state = random_state

    def fit(self, X: Any, y: Any, persons: Any = None) -> Ridge:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Targets.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        rows, targets = checked_rows(self, X, y, with_target=True)
        if self.alpha < 0 or not math.isfinite(self.alpha):
            raise InvalidInput(f"alpha must be a number of at least 0, got {self.alpha}.")
        unit_rows = scaled(rows, self.bounds)
        answers, middle, width = scaled_targets(np.asarray(targets, np.float64), self.target_bounds)
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        multiplier = noise_for(self._budget(), Gaussian)
        z = np.column_stack([unit_rows[kept] - 0.5, np.full(len(kept), 0.5)])
        bound = 0.5 * math.sqrt(z.shape[1])
        with self._spending(Gaussian(multiplier), unit):
            released = add_noise(
                np.concatenate([symmetric_vector(z.T @ z), 2 * bound * (z.T @ answers[kept])]),
                math.sqrt(2) * bound**2 * most, multiplier, rng,
            )  # fmt: skip
        self._solve(released, z.shape[1], bound, math.sqrt(2) * bound**2 * most * multiplier, middle, width)
        return self

    def _solve(self, released: Floats, size: int, bound: float, noise: float, middle: float, width: float) -> None:
        gram = symmetric_matrix(released[: size * (size + 1) // 2], size)
        values, vectors = np.linalg.eigh(gram)
        floor = max(0.0, math.sqrt(size) * noise - float(values[0]))
        ridge = max(self.alpha, floor, 1e-9)
        cross = released[size * (size + 1) // 2 :] / (2 * bound)
        weights = vectors @ ((vectors.T @ cross) / np.maximum(values + ridge, 1e-9))
        low, high = (np.broadcast_to(np.asarray(one, np.float64), (size - 1,)) for one in self.bounds)
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
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.target_bounds = budget, bounds, target_bounds
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state = random_state


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
