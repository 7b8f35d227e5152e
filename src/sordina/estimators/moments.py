"""Estimators from a few noisy sums: principal components, Gaussian naive Bayes, k-means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, ClusterMixin, TransformerMixin

from sordina.accounting import Gaussian, Repeated
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput
from sordina.estimators._base import (
    Floats,
    PrivateEstimator,
    add_noise,
    checked_classes,
    checked_rows,
    fitted_rows,
    limited,
    noise_for,
    scaled,
)
from sordina.estimators._features import binned_features
from sordina.estimators.linear import symmetric_matrix, symmetric_vector
from sordina.privacy import Budget


class PCA(TransformerMixin, PrivateEstimator):
    """Principal components of a noisy Gram matrix (000 eq. 1.9-1.11, with errata 1).

    Rows are clipped to norm ``row_norm`` = p. One row changes ``sum x x^T`` by ``x x^T``, whose Frobenius norm is
    ``|x|^2 <= p^2`` (not p, as printed): L2 sensitivity p^2 under add/remove for the isometric upper triangle, on which
    symmetric Gaussian noise is drawn. Components are eigenvectors of the noisy matrix. Rows are not centred, but by a
    public ``center``: a mean of the rows would have to be paid for.

    Args:
        n_components: How many components; all if None.
        budget: (epsilon, delta) of one fit.
        row_norm: Public bound on the norm of a (centred) row; longer rows are shortened.
        center: Public centre that is subtracted; 0 if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def __init__(
        self,
        n_components: int | None = None,
        budget: Budget | tuple[float, float] | None = None,
        *,
        row_norm: float | None = None,
        center: Any = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.n_components, self.budget, self.row_norm, self.center = n_components, budget, row_norm, center
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, persons: Any = None) -> PCA:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Ignored.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        rows, _ = checked_rows(self, X)
        size = rows.shape[1]
        wanted = size if self.n_components is None else self.n_components
        if isinstance(wanted, bool) or not isinstance(wanted, (int, np.integer)) or not 1 <= wanted <= size:
            raise InvalidInput(f"n_components must be a whole number from 1 to {size}, got {self.n_components!r}.")
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        rows = self._shortened(rows[kept])
        multiplier = noise_for(self._budget(), Gaussian)
        sensitivity = self._sensitivity() * most
        with self._spending(Gaussian(multiplier), unit, len(kept)):
            released = add_noise(symmetric_vector(rows.T @ rows), sensitivity, multiplier, rng)
        values, vectors = np.linalg.eigh(symmetric_matrix(released, size))
        order = np.argsort(values)[::-1][: int(wanted)]
        self.components_ = vectors[:, order].T
        self.singular_values_ = np.sqrt(np.maximum(values[order], 0.0))
        self.mean_ = np.zeros(size) if self.center is None else np.broadcast_to(np.asarray(self.center, float), (size,))
        return self

    def _sensitivity(self) -> float:
        """Of the Gram matrix under add/remove: errata 1."""
        return float(self.row_norm or 0.0) ** 2

    def _shortened(self, rows: Floats) -> Floats:
        if self.row_norm is None or not 0 < self.row_norm < math.inf:
            raise InvalidInput("row_norm is missing: state a public bound on the norm of a row, such as 1.0.")
        with np.errstate(all="ignore"):  # a warning would tell of one row
            if self.center is not None:
                rows = rows - np.asarray(self.center, np.float64)
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            short = rows * np.minimum(1.0, self.row_norm / np.maximum(norms, 1e-300))
        return np.where(np.isfinite(norms) & np.isfinite(short).all(axis=1, keepdims=True), short, 0.0)

    def transform(self, X: Any) -> Floats:
        """Coordinates of the rows along the components.

        Args:
            X: Rows.
        """
        rows = fitted_rows(self, X)
        answers: Floats = (rows - self.mean_) @ self.components_.T
        return answers

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the new columns.

        Args:
            input_features: Ignored.
        """
        return np.asarray([f"pca{place}" for place in range(len(self.components_))], dtype=object)


class GaussianNB(ClassifierMixin, PrivateEstimator):
    """Naive Bayes from noisy moments: normal for numbers, a table of shares for categories.

    Numbers are moved to [-1/2, 1/2]; the columns ``name=value`` of a prepared table are one category again, because a
    normal law for 0 and 1 goes wrong the more the better its variance is known. A row adds to the statistics of one
    class only: a count (1), for each of d numbers a sum (at most 1/2) and a square (at most 1/4, centred at 1/8, so at
    most 1/8), for each of c categories one cell (1): L2 sensitivity ``sqrt(1 + c + d/4 + d/64)`` under add/remove, one
    Gaussian event. Classes are drawn towards what all classes have in common by as much as the noise weighs.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
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
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.rows_per_person = budget, bounds, rows_per_person
        self.ledger, self.dataset_budget, self.random_state = ledger, dataset_budget, random_state

    def fit(self, X: Any, y: Any, persons: Any = None, classes: Any = None) -> GaussianNB:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Classes.
            persons: Whose row it is; the unit of privacy is then a person.
            classes: The public list of classes; None takes those of ``y``, which then count as public.
        """
        rows, y = checked_rows(self, X, y, with_target=True)
        self.classes_, codes = checked_classes(y, classes)
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        self.features_ = binned_features(getattr(self, "feature_names_in_", None), rows.shape[1], 2)
        parts = self._parts(scaled(rows, self.bounds_)[kept])
        numbers, cells = parts[0].shape[1], [part.shape[1] for part in parts[1:]]
        multiplier = noise_for(self._budget(), Gaussian)
        sensitivity = math.sqrt(1 + len(cells) + numbers / 4 + numbers / 64) * most
        member = np.eye(len(self.classes_))[codes[kept]]
        with self._spending(Gaussian(multiplier), unit, len(kept)):
            z = parts[0]
            totals = member.T @ np.column_stack([np.ones(len(z)), z, z**2 - 0.125, *parts[1:]])
            totals = add_noise(totals, sensitivity, multiplier, rng)
        self._learn(totals, numbers, cells, sensitivity * multiplier)
        return self

    def _parts(self, unit_rows: Floats) -> list[Floats]:
        """The numbers, moved to [-1/2, 1/2], and for each category which cell each row is in."""
        numbers = [one.columns[0] for one in self.features_ if one.ordered]
        tables = [np.eye(one.cells)[one.codes(unit_rows)] for one in self.features_ if not one.ordered]
        return [unit_rows[:, numbers] - 0.5, *tables]

    def _learn(self, totals: Floats, numbers: int, cells: list[int], noise: float) -> None:
        counts = np.maximum(totals[:, :1], max(1.0, noise))
        _, sums, squares, *tables = np.split(totals, np.cumsum([1, numbers, numbers, *cells])[:-1], axis=1)

        def shared(part: Floats) -> Floats:
            means: Floats = (part + noise * part.sum(axis=0) / counts.sum()) / (counts + noise)
            return means

        self.theta_ = np.clip(shared(sums), -0.5, 0.5)
        self.var_ = np.clip(shared(squares) + 0.125 - self.theta_**2, 1e-3, 0.25)
        self.class_prior_ = counts[:, 0] / counts.sum()
        self.tables_ = []
        for table in tables:
            whole = np.maximum(table.sum(axis=0), 0.0) + max(1.0, noise)
            shares = np.maximum(table, 0.0) + (1 + noise) * whole / whole.sum()
            self.tables_.append(shares / shares.sum(axis=1, keepdims=True))

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes.

        Args:
            X: Rows.
        """
        rows = fitted_rows(self, X)
        z, *tables = self._parts(scaled(rows, self.bounds_))
        likelihood = np.stack(
            [
                -0.5 * (np.log(var) + (z - mean) ** 2 / var).sum(axis=1)
                for mean, var in zip(self.theta_, self.var_, strict=True)
            ],
            axis=1,
        )
        for part, table in zip(tables, self.tables_, strict=True):
            likelihood += part @ np.log(table).T
        scores = likelihood + np.log(self.class_prior_)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: Floats = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def predict(self, X: Any) -> Any:
        """The likeliest class of each row.

        Args:
            X: Rows.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]


class KMeans(ClusterMixin, TransformerMixin, PrivateEstimator):
    """k-means by noisy Lloyd steps from centres drawn without looking (Blum et al. 2005).

    Columns are moved to [-1/2, 1/2]. In a step a row adds a count (1) and its d coordinates (each at most 1/2) to one
    cluster: L2 sensitivity ``sqrt(1 + d/4)`` under add/remove; ``max_iter`` such Gaussian events.

    Args:
        n_clusters: Number of clusters.
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns.
        max_iter: Number of Lloyd steps.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        max_iter: int = 6,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.n_clusters, self.budget, self.bounds, self.max_iter = n_clusters, budget, bounds, max_iter
        self.rows_per_person, self.ledger, self.dataset_budget = rows_per_person, ledger, dataset_budget
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, persons: Any = None) -> KMeans:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Ignored.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        rows, _ = checked_rows(self, X)
        for name in ("n_clusters", "max_iter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}.")
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        z = scaled(rows, self.bounds_)[kept] - 0.5
        steps, size = int(self.max_iter), z.shape[1]
        multiplier = noise_for(self._budget(), lambda nu: Repeated(Gaussian(nu), steps))
        sensitivity = math.sqrt(1 + size / 4) * most
        centres = _spread_out(int(self.n_clusters), size, rng)
        with self._spending(Repeated(Gaussian(multiplier), steps), unit, len(kept)):
            for _ in range(steps):
                member = np.eye(len(centres))[_nearest(z, centres)]
                totals = add_noise(member.T @ np.column_stack([np.ones(len(z)), z]), sensitivity, multiplier, rng)
                enough = totals[:, :1] > 2 * sensitivity * multiplier
                centres = np.where(enough, np.clip(totals[:, 1:] / np.maximum(totals[:, :1], 1.0), -0.5, 0.5), centres)
        low, high = (np.broadcast_to(np.asarray(one, np.float64), (size,)) for one in self.bounds_)
        self.n_iter_ = steps
        self.cluster_centers_ = low + (centres + 0.5) * (high - low)
        return self

    def fit_predict(self, X: Any, y: Any = None, **fitting: Any) -> Any:
        """Fit, then the nearest cluster of each row; these labels are not private.

        Args:
            X: Rows.
            y: Ignored.
            fitting: Passed to `fit`.
        """
        return self.fit(X, y, **fitting).predict(X)

    def predict(self, X: Any) -> Any:
        """The nearest cluster of each row; on the rows of the fit these labels are not private.

        Args:
            X: Rows.
        """
        rows = fitted_rows(self, X)
        return _nearest(scaled(rows, self.bounds_), scaled(self.cluster_centers_, self.bounds_))

    def transform(self, X: Any) -> Floats:
        """Distances to the centres, on scaled columns.

        Args:
            X: Rows.
        """
        rows = fitted_rows(self, X)
        z, centres = scaled(rows, self.bounds_), scaled(self.cluster_centers_, self.bounds_)
        answers: Floats = np.sqrt(((z[:, None] - centres[None]) ** 2).sum(axis=2))
        return answers

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the new columns.

        Args:
            input_features: Ignored.
        """
        return np.asarray([f"kmeans{place}" for place in range(len(self.cluster_centers_))], dtype=object)


def _nearest(rows: Floats, centres: Floats) -> Any:
    return (((centres**2).sum(axis=1)) - 2 * rows @ centres.T).argmin(axis=1)


def _spread_out(count: int, size: int, rng: np.random.Generator) -> Floats:
    """Centres in the middle half of the box, the farthest apart of a few draws."""
    draws = [rng.uniform(-0.25, 0.25, (count, size)) for _ in range(8)]

    def least(points: Floats) -> float:
        gaps = ((points[:, None] - points[None]) ** 2).sum(axis=2) + np.eye(count) * 1e9
        return float(gaps.min())

    return max(draws, key=least)
