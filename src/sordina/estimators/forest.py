"""Random forests under a budget: trees whose splits and leaves are released, averaged by their probabilities.

How splits are found is chosen by ``splits``: from noisy histograms (the default, which learned best on Adult), at
random, or by the exponential mechanism on disjoint bags of rows; `sordina.estimators._trees` proves each. A last query
adds up the classes of the leaves, which are smoothed towards their parents by the size of the noise.

**Sensitivity** of the leaves (add/remove): a row is in one leaf of a tree, under one class: 1 (regression: ``sqrt(5 /
4)``, a count and a target in [-1/2, 1/2]); a person's rows as many times that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

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
from sordina.estimators._features import Codes, all_codes, binned_features
from sordina.estimators._trees import SPLITS, GrownTree, SplitCriterion, TreeShares, smoothed
from sordina.privacy import Budget


class _Forest(PrivateEstimator, SplitCriterion):
    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        n_estimators: int = 4,
        max_depth: int = 5,
        max_features: float = 0.5,
        bins: int = 32,
        splits: str = "histogram",
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.n_estimators, self.max_depth = budget, bounds, n_estimators, max_depth
        self.max_features, self.bins, self.splits, self.rows_per_person = max_features, bins, splits, rows_per_person
        self.ledger, self.dataset_budget, self.random_state = ledger, dataset_budget, random_state

    def _check(self) -> None:
        for name, least, most in [("n_estimators", 1, 10_000), ("max_depth", 1, 12), ("bins", 2, 4096)]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
                raise InvalidInput(f"{name} must be a whole number from {least} to {most}, got {value!r}.")
        if self.splits not in SPLITS:
            raise InvalidInput(f"no way to split is called {self.splits!r}: choose {', '.join(SPLITS)}.")
        if not 0 < self.max_features <= 1:
            raise InvalidInput(f"max_features is a share of the features, above 0 and at most 1: {self.max_features}.")

    def _grow(self, rows: Floats, statistics: Floats, norm: float, persons: Any) -> None:
        """Grow the trees; ``statistics`` holds what is added up for each row, of norm at most ``norm``."""
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        self.features_ = binned_features(getattr(self, "feature_names_in_", None), rows.shape[1], int(self.bins))
        codes, statistics = all_codes(self.features_, rows[kept]), statistics[kept]
        trees, depth, way = int(self.n_estimators), int(self.max_depth), SPLITS[self.splits]
        apart = way.pure(self._budget(), depth)
        multiplier = noise_for(self._budget(), lambda nu: way(nu, trees, depth, apart).event())
        shares = way(multiplier, trees, depth, apart, most)
        with self._spending(shares.event(), unit, len(kept)):
            bags = shares.bags(kept if persons is None else np.asarray(persons)[kept], rng)
            self.trees_ = [self._tree(codes[bag], statistics[bag], norm * most, shares, rng) for bag in bags]

    def _tree(
        self, codes: Codes, statistics: Floats, norm: float, shares: TreeShares, rng: np.random.Generator
    ) -> GrownTree:
        tree, nodes = GrownTree(), np.zeros(len(codes), np.int64)
        chooser = shares.chooser(self, self.features_, float(self.max_features), norm, rng)
        frontier = [0]
        for _ in range(shares.depth):
            born: list[int] = []
            for node, split in zip(frontier, chooser.splits(codes, statistics, nodes, frontier), strict=True):
                if split is not None:
                    born += tree.split(node, *split)
            nodes, frontier = tree.descend(nodes, codes), born
        size = len(tree.feature)
        sums = np.stack([np.bincount(nodes, column, size) for column in statistics.T], axis=1)
        tree.values = add_noise(sums.astype(np.float64), norm, shares.leaf, rng)
        tree.values = smoothed(tree, norm * shares.leaf, self._clean)
        return tree

    def _clean(self, values: Floats) -> Floats:
        raise NotImplementedError

    def _answers(self, X: Any) -> Floats:
        rows = fitted_rows(self, X)
        codes = all_codes(self.features_, scaled(rows, self.bounds_))
        answers: Floats = np.mean([tree.values[tree.leaf_of(codes)] for tree in self.trees_], axis=0)
        return answers


class RandomForestClassifier(ClassifierMixin, _Forest):
    """A forest for classes under a budget; see the module for method and proof.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        n_estimators: Number of trees.
        max_depth: Levels of splits.
        max_features: Share of the features a level may use.
        bins: Cells of a number.
        splits: "histogram", "random" or "exponential"; see `sordina.estimators._trees` for the proofs.
        rows_per_person: With ``persons`` in `fit`: how many rows of one person count.
        ledger: Where the fit is booked, with ``dataset_budget``.
        dataset_budget: The ledger's name of the data set.
        random_state: A seed makes the fit repeatable, and not releasable.
    """

    def fit(self, X: Any, y: Any, persons: Any = None, classes: Any = None) -> RandomForestClassifier:
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
        self._grow(scaled(rows, self.bounds_), np.eye(len(self.classes_))[codes], 1.0, persons)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes.

        Args:
            X: Rows.
        """
        return self._answers(X)

    def predict(self, X: Any) -> Any:
        """The likeliest class of each row.

        Args:
            X: Rows.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def _clean(self, values: Floats) -> Floats:
        counts = np.maximum(values, 0.0)
        total = counts.sum(axis=-1, keepdims=True)
        shares: Floats = np.where(total > 0, counts / np.maximum(total, 1e-12), 1 / values.shape[-1])
        return shares

    def size(self, sums: Floats) -> Floats:
        """The number of rows of each node."""
        sizes: Floats = sums.sum(axis=-1)
        return sizes

    def impurity(self, sums: Floats) -> Floats:
        """Rows times Gini impurity."""
        counts = np.maximum(sums, 0.0)
        total = np.maximum(counts.sum(axis=-1), 1e-12)
        impurity: Floats = total - (counts**2).sum(axis=-1) / total
        return impurity

    def order(self, part: Floats, deviation: float) -> Floats:
        """Cells by the share of the second most frequent class."""
        whole = np.maximum(part.sum(axis=0), 0.0)
        heavy = int(np.argsort(whole)[-2]) if len(whole) > 1 else 0
        size = np.maximum(part.sum(axis=1), 0.0)
        share = whole[heavy] / max(float(whole.sum()), 1e-12)
        order: Floats = (np.maximum(part[:, heavy], 0.0) + share * deviation) / (size + deviation)
        return order


class RandomForestRegressor(RegressorMixin, _Forest):
    """A forest for numbers under a budget; see the module for method and proof.

    Args:
        budget: (epsilon, delta) of one fit.
        bounds: Public ``(low, high)`` of the columns; ``(0, 1)`` after `sordina.tables.Prepare`.
        target_bounds: Public ``(low, high)`` of the target.
        n_estimators: Number of trees.
        max_depth: Levels of splits.
        max_features: Share of the features a level may use.
        bins: Cells of a number.
        splits: "histogram", "random" or "exponential"; see `sordina.estimators._trees` for the proofs.
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
        n_estimators: int = 4,
        max_depth: int = 5,
        max_features: float = 0.5,
        bins: int = 32,
        splits: str = "histogram",
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            budget, bounds=bounds, n_estimators=n_estimators, max_depth=max_depth, max_features=max_features, bins=bins,
            splits=splits, rows_per_person=rows_per_person, ledger=ledger, dataset_budget=dataset_budget,
            random_state=random_state,
        )  # fmt: skip
        self.target_bounds = target_bounds

    squares = 1.0

    def fit(self, X: Any, y: Any, persons: Any = None) -> RandomForestRegressor:
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
        self._grow(unit_rows, np.column_stack([np.ones(len(answers)), answers]), math.sqrt(1.25), persons)
        return self

    def predict(self, X: Any) -> Floats:
        """Predicted targets.

        Args:
            X: Rows.
        """
        means = self._answers(X)[:, 0]
        answers: Floats = self.middle_ + self.width_ * means
        return answers

    def _clean(self, values: Floats) -> Floats:
        means: Floats = np.clip(values[..., 1:] / np.maximum(values[..., :1], 1.0), -0.5, 0.5)
        return means

    def size(self, sums: Floats) -> Floats:
        """The number of rows of each node."""
        sizes: Floats = sums[..., 0]
        return sizes

    def impurity(self, sums: Floats) -> Floats:
        """The sum of squares, less that of the targets themselves."""
        impurity: Floats = -(sums[..., 1] ** 2) / np.maximum(sums[..., 0], 1.0)
        return impurity

    def order(self, part: Floats, deviation: float) -> Floats:
        """Cells by their mean."""
        order: Floats = part[:, 1] / (np.maximum(part[:, 0], 0.0) + deviation)
        return order
