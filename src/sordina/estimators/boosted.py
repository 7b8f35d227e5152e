"""Cyclic boosting with noisy histograms: one additive model, one curve per feature (DP-EBM, Nori et al. 2021).

Epoch by epoch, feature by feature: the cells of the feature are grouped into a few leaves by cuts that are drawn, more
of them where the released counts say that there are rows; the residuals ``y - p`` of each leaf are added up and noised
by sigma; the leaf's score takes a step

    score += rate * R h N / ((h N)^2 + (sigma / tau)^2)

with N the leaf's noisy count and h the public curvature ``p (1 - p)`` at the noisy base rate (1 for regression). That
is the posterior mean of a step that is normal of deviation tau a priori, seen through the noise: leaves with few rows
hardly move.

**Sensitivity** (add/remove). A row is in one leaf, and its residual has norm at most r: 1 for two classes (the second
score is fixed), sqrt 2 for more, 1 for targets in [-1/2, 1/2] and scores clipped to the same range. The counts of all F
features together change by ``sqrt(F)``. Regression starts from the targets' noisy mean (a row changes their sum by
1/2), drawn to the middle of the bounds where noise dominates; its later constants are steps like any other. All
releases are Gaussian, so that the whole fit is one Gaussian event. Cuts, scores, averages over epochs and predictions
are post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from sordina.accounting import Composed, Gaussian, Repeated
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
    scaled_targets,
)
from sordina.estimators._features import BinnedFeature, Codes, all_codes, binned_features
from sordina.privacy import Budget

_COUNT_SHARE = 0.1
"""Part of the budget (of mu squared) that goes to counting the cells."""


@dataclass(frozen=True)
class _Noise:
    """How much noise the parts of a fit get, so that all of it is one Gaussian of ``multiplier``.

    Args:
        multiplier: Of the whole.
        queries: How many sums of residuals there are.
        start_share: Part of the budget (of mu squared) of the constant to start from; 0 for none.
    """

    multiplier: float
    queries: int
    start_share: float = 0.0

    @property
    def start(self) -> float:
        return self.multiplier / math.sqrt(self.start_share)

    @property
    def counts(self) -> float:
        return self.multiplier / math.sqrt(_COUNT_SHARE)

    @property
    def residuals(self) -> float:
        return self.multiplier * math.sqrt(self.queries / (1 - _COUNT_SHARE - self.start_share))

    def event(self) -> Composed:
        start = (Gaussian(self.start),) if self.start_share else ()
        return Composed((Gaussian(self.counts), *start, Repeated(Gaussian(self.residuals), self.queries)))


class _Boosted(PrivateEstimator):
    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        bins: int | None = None,
        leaves: int | None = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.epochs, self.learning_rate = budget, bounds, epochs, learning_rate
        self.bins, self.leaves, self.rows_per_person = bins, leaves, rows_per_person
        self.ledger, self.dataset_budget, self.random_state = ledger, dataset_budget, random_state

    def _check(self) -> None:
        for name, least in [("epochs", 1), ("bins", 2), ("leaves", 2)]:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise InvalidInput(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.learning_rate is not None and not (0 < self.learning_rate < math.inf):
            raise InvalidInput(f"learning_rate must be positive, got {self.learning_rate}.")

    def _boost(self, rows: Floats, targets: Floats, loss: _Loss, persons: Any) -> None:
        """Learn ``intercept_`` and one table of scores per feature; ``targets`` has one column per score."""
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        names = getattr(self, "feature_names_in_", None)
        units = len(kept) // most
        bins = self.bins or min(256, max(16, int(units * min(self._budget().epsilon, 1.0) / 64)))
        features = binned_features(names, rows.shape[1], int(bins))
        codes, targets = all_codes(features, rows[kept]), targets[kept]
        shape = self._shape(units)
        queries = shape.epochs * (len(features) + 1)
        share = loss.start_share
        multiplier = noise_for(self._budget(), lambda nu: _Noise(nu, queries, share).event())
        noise = _Noise(multiplier, queries, share)
        with self._spending(noise.event(), unit, len(kept)):
            counts = _noisy_counts(codes, features, most, noise.counts, rng)
            self._cycle(codes, targets, features, counts, loss, most, noise, shape, rng)
        self.features_ = features

    def _shape(self, units: int) -> BoostingShape:
        usual = shape_for(units, self._budget().epsilon)
        return BoostingShape(
            int(self.epochs or usual.epochs), int(self.leaves or usual.leaves),
            float(self.learning_rate or usual.learning_rate),
        )  # fmt: skip

    def _cycle(
        self,
        codes: Codes,
        targets: Floats,
        features: tuple[BinnedFeature, ...],
        counts: list[Floats],
        loss: _Loss,
        most: int,
        noise: _Noise,
        shape: BoostingShape,
        rng: np.random.Generator,
    ) -> None:
        width = targets.shape[1]
        sensitivity = loss.residual * most
        deviation = sensitivity * noise.residuals
        population = max(float(np.mean([one.sum() for one in counts])), 1.0)
        rate, cell_noise = shape.learning_rate, math.sqrt(len(features)) * most * noise.counts
        intercept = np.zeros(width)
        if noise.start_share:
            total = add_noise(targets.sum(axis=0), sensitivity / 2, noise.start, rng)
            intercept = loss.start(total, population, sensitivity / 2 * noise.start)
        tables = [np.zeros((feature.cells, width)) for feature in features]
        averages, average_intercept, averaged = [table.copy() for table in tables], intercept.copy(), 0
        scores = np.tile(intercept, (len(codes), 1))
        for epoch in range(shape.epochs):
            total = add_noise(loss.residuals(targets, scores).sum(axis=0), sensitivity, noise.residuals, rng)
            step = rate * loss.constant_step(total, intercept, population, deviation)
            intercept, scores = intercept + step, scores + step
            for place, feature in enumerate(features):
                leaf_of = _leaves(feature, shape.leaves, counts[place], cell_noise, rng)
                size = int(leaf_of.max()) + 1
                own = leaf_of[codes[:, place]]
                residuals = loss.residuals(targets, scores)
                raw = np.stack([np.bincount(own, residuals[:, k], size) for k in range(width)], axis=1)
                sums = add_noise(raw.astype(np.float64), sensitivity, noise.residuals, rng)
                inside = np.maximum(np.bincount(leaf_of, counts[place], size), 0.0)[:, None]
                bend = loss.curvature(intercept) * inside
                steps = rate * sums * bend / (bend**2 + (deviation / loss.spread) ** 2)
                tables[place] += steps[leaf_of]
                scores += steps[own]
            if 2 * (epoch + 1) > shape.epochs:
                averaged += 1
                average_intercept = average_intercept + (intercept - average_intercept) / averaged
                averages = [mean + (table - mean) / averaged for mean, table in zip(averages, tables, strict=True)]
        self.intercept_, self.tables_ = average_intercept, averages

    def _scores(self, X: Any) -> Floats:
        rows = fitted_rows(self, X)
        codes = all_codes(self.features_, scaled(rows, self.bounds_))
        scores = np.tile(self.intercept_, (len(rows), 1))
        for place, table in enumerate(self.tables_):
            scores += table[codes[:, place]]
        return scores


class _Loss:
    """Residuals and curvature; ``residual`` bounds the norm of one row's residuals, ``spread`` is tau of the module."""

    residual = 1.0
    spread = 1.0
    start_share = 0.0

    def residuals(self, targets: Floats, scores: Floats) -> Floats:
        raise NotImplementedError

    def start(self, total: Floats, population: float, deviation: float) -> Floats:
        """The constant to start from, given the targets' noisy ``total``."""
        raise NotImplementedError

    def constant_step(self, total: Floats, intercept: Floats, population: float, deviation: float) -> Floats:
        """A full step of the constant; all rows take part, so that they are no small leaf."""
        step: Floats = total / (self.curvature(intercept) * population + deviation)
        return step

    def curvature(self, intercept: Floats) -> Any:
        return 1.0


class _Squared(_Loss):
    spread = 0.05  # of the width of the target's bounds; chosen on numbers of Adult's training rows
    start_share = 0.1

    def start(self, total: Floats, population: float, deviation: float) -> Floats:
        mean: Floats = total * population / (population**2 + (deviation / 0.15) ** 2)
        return np.clip(mean, -0.5, 0.5)

    def constant_step(self, total: Floats, intercept: Floats, population: float, deviation: float) -> Floats:
        step: Floats = total * population / (population**2 + (deviation / self.spread) ** 2)
        return step

    def residuals(self, targets: Floats, scores: Floats) -> Floats:
        return targets - np.clip(scores, -0.5, 0.5)


class _Logistic(_Loss):
    def residuals(self, targets: Floats, scores: Floats) -> Floats:
        return targets - _sigmoid(scores)

    def curvature(self, intercept: Floats) -> Any:
        chance = _sigmoid(intercept)
        return np.maximum(chance * (1 - chance), 0.02)


class _Softmax(_Loss):
    residual = math.sqrt(2)

    def residuals(self, targets: Floats, scores: Floats) -> Floats:
        return targets - _softmax(scores)

    def curvature(self, intercept: Floats) -> Any:
        chance = _softmax(intercept[None])[0]
        return np.maximum(chance * (1 - chance), 0.02)


class BoostedClassifier(ClassifierMixin, _Boosted):
    """Classification by cyclic boosting under a budget; see the module for method and proof.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        epochs: Passes over the features; from public facts if None.
        learning_rate: Part of a full step that is taken; from public facts if None.
        bins: Cells of a number; from public facts if None.
        leaves: Leaves a number's cells are grouped into, anew in every step; from public facts if None.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def fit(self, X: Any, y: Any, persons: Any = None, classes: Any = None) -> BoostedClassifier:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Classes.
            persons: Whose row it is; the unit of privacy is then a person.
            classes: The public list of classes; None takes those of ``y``, which then count as public.
        """
        self._check()
        rows, y = checked_rows(self, X, y, with_target=True)
        self.classes_, codes = checked_classes(y, classes)
        unit_rows = scaled(rows, self.bounds_)
        if len(self.classes_) == 2:
            self._boost(unit_rows, codes[:, None].astype(np.float64), _Logistic(), persons)
        else:
            self._boost(unit_rows, np.eye(len(self.classes_))[codes], _Softmax(), persons)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes.

        Args:
            X: Rows.
        """
        scores = self._scores(X)
        if len(self.classes_) == 2:
            chance = _sigmoid(scores[:, 0])
            return np.column_stack([1 - chance, chance])
        return _softmax(scores)

    def predict(self, X: Any) -> Any:
        """The likeliest class of each row.

        Args:
            X: Rows.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]


class BoostedRegressor(RegressorMixin, _Boosted):
    """Regression by cyclic boosting under a budget; see the module for method and proof.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        target_bounds: Public ``(low, high)`` of the target.
        epochs: Passes over the features; from public facts if None.
        learning_rate: Part of a full step that is taken; from public facts if None.
        bins: Cells of a number; from public facts if None.
        leaves: Leaves a number's cells are grouped into, anew in every step; from public facts if None.
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
        epochs: int | None = None,
        learning_rate: float | None = None,
        bins: int | None = None,
        leaves: int | None = None,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            budget, bounds=bounds, epochs=epochs, learning_rate=learning_rate, bins=bins, leaves=leaves,
            rows_per_person=rows_per_person, ledger=ledger, dataset_budget=dataset_budget, random_state=random_state,
        )  # fmt: skip
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any, persons: Any = None) -> BoostedRegressor:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Targets.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        self._check()
        rows, y = checked_rows(self, X, y, with_target=True)
        unit_rows = scaled(rows, self.bounds_)
        answers, self.middle_, self.width_ = scaled_targets(np.asarray(y, np.float64), self.target_bounds)
        self._boost(unit_rows, answers[:, None], _Squared(), persons)
        return self

    def predict(self, X: Any) -> Floats:
        """Predicted targets.

        Args:
            X: Rows.
        """
        scores = np.clip(self._scores(X)[:, 0], -0.5, 0.5)
        answers: Floats = self.middle_ + self.width_ * scores
        return answers


@dataclass(frozen=True)
class BoostingShape:
    """How a fit goes.

    Args:
        epochs: Passes over the features.
        leaves: Leaves of a number.
        learning_rate: Part of a full step that is taken.
    """

    epochs: int
    leaves: int
    learning_rate: float


def shape_for(units: int, epsilon: float) -> BoostingShape:
    """More passes, more leaves and longer steps where there is little noise.

    Chosen by five-fold cross-validation on Adult's training rows.

    Args:
        units: The public number of rows, or of persons.
        epsilon: Of the budget.
    """
    plenty = units * epsilon
    leaves = round(min(max(8.0, math.sqrt(plenty) / 7), 48.0))
    return BoostingShape(10 if plenty < 100_000 else 20, leaves, 0.4 if plenty < 20_000 else 0.7)


def _noisy_counts(
    codes: Codes, features: tuple[BinnedFeature, ...], most: int, multiplier: float, rng: np.random.Generator
) -> list[Floats]:
    counts = [np.bincount(codes[:, place], minlength=one.cells) for place, one in enumerate(features)]
    noisy = add_noise(np.concatenate(counts).astype(np.float64), math.sqrt(len(features)) * most, multiplier, rng)
    return np.split(noisy, np.cumsum([one.cells for one in features])[:-1])


def _leaves(feature: BinnedFeature, leaves: int, counts: Floats, noise: float, rng: np.random.Generator) -> Codes:
    """Which leaf each cell belongs to: drawn cuts for a number, every value its own leaf for a category.

    A cut is the likelier the more rows the *released* counts put beside it, as the square root; four fifths of the
    chance go by that, the rest evenly.
    """
    if not feature.ordered:
        return np.arange(feature.cells)
    rows = np.sqrt(np.maximum(counts - 2 * noise, 0.0))
    beside = rows[1:] + rows[:-1] + np.minimum(rows[1:], rows[:-1])
    even = np.full(feature.cells - 1, 1 / (feature.cells - 1))
    chances = 0.8 * beside / beside.sum() + 0.2 * even if beside.sum() > 0 else even
    cuts = np.sort(rng.choice(feature.cells - 1, min(leaves, feature.cells) - 1, replace=False, p=chances)) + 1
    return np.searchsorted(cuts, np.arange(feature.cells), side="right")


def _sigmoid(scores: Floats) -> Floats:
    chances: Floats = 0.5 * (1 + np.tanh(0.5 * scores))
    return chances


def _softmax(scores: Floats) -> Floats:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances: Floats = odds / odds.sum(axis=1, keepdims=True)
    return chances
