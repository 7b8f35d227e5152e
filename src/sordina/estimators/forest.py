"""Trees grown from noisy histograms: every split is read off counts that were released, so the tree itself is free.

A tree grows level by level. One query per level counts, for every node, feature, cell and class at once, the rows that
are there; splits are then chosen by the Gini gain of the *noisy* counts (regression: by the reduction of squares), and
that is post-processing. A last query counts the classes of the leaves. Leaves are smoothed towards their parents by the
size of the noise, and trees are averaged by their probabilities.

**Sensitivity** (add/remove). On one level a row is in one node, in one cell of each of the m features tried, under one
class: L2 sensitivity ``sqrt(m)`` (regression: ``sqrt(5 m / 4)``, a count and a target in [-1/2, 1/2]); in the leaves 1
(``sqrt(5 / 4)``). Which features a level may use is drawn without looking. All trees see all rows; everything is
Gaussian, so that the whole fit is one Gaussian event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
from sordina.estimators._bins import Codes, all_codes, binned_features
from sordina.privacy import Budget

_LEAF_SHARE = 0.3
"""Part of a tree's budget (of mu squared) that goes to its leaves."""


@dataclass(frozen=True)
class _Shares:
    """Noise multipliers of the parts, so that all of them are one Gaussian of ``multiplier``."""

    multiplier: float
    trees: int
    depth: int

    @property
    def level(self) -> float:
        return self.multiplier * math.sqrt(self.trees * self.depth / (1 - _LEAF_SHARE))

    @property
    def leaf(self) -> float:
        return self.multiplier * math.sqrt(self.trees / _LEAF_SHARE)

    def event(self) -> Composed:
        levels = Repeated(Gaussian(self.level), self.trees * self.depth)
        return Composed((levels, Repeated(Gaussian(self.leaf), self.trees)))


@dataclass
class GrownTree:
    """A tree that was grown.

    Nodes are in order of birth: ``feature`` -1 marks a leaf; rows whose cell is in ``right`` go to the second child.
    """

    feature: list[int] = field(default_factory=lambda: [-1])
    right: list[Any] = field(default_factory=lambda: [None])
    child: list[int] = field(default_factory=lambda: [-1])
    parent: list[int] = field(default_factory=lambda: [-1])
    values: Floats = field(default_factory=lambda: np.zeros((1, 1)))

    def split(self, node: int, feature: int, right: Any) -> tuple[int, int]:
        """Give ``node`` two children, and return their numbers."""
        first = len(self.feature)
        self.feature[node], self.right[node], self.child[node] = feature, right, first
        for _ in range(2):
            self.feature.append(-1)
            self.right.append(None)
            self.child.append(-1)
            self.parent.append(node)
        return first, first + 1

    def descend(self, nodes: Codes, codes: Codes) -> Codes:
        """One level down for every row that stands in a node with children."""
        below = nodes.copy()
        for node in np.unique(nodes):
            if self.feature[node] >= 0:
                here = nodes == node
                below[here] = self.child[node] + self.right[node][codes[here, self.feature[node]]]
        return below

    def arrays(self) -> dict[str, Any]:
        """The tree as plain arrays, for a file."""
        cells = max((len(right) for right in self.right if right is not None), default=1)
        right = np.zeros((len(self.feature), cells), np.int64)
        for node, side in enumerate(self.right):
            if side is not None:
                right[node, : len(side)] = side
        links = {name: np.array(getattr(self, name), np.int64) for name in ("feature", "child", "parent")}
        return {**links, "right": right, "values": self.values}

    @classmethod
    def of(cls, arrays: dict[str, Any]) -> GrownTree:
        """The tree that `arrays` described; children come after their parents, so that every walk ends.

        Args:
            arrays: As `arrays` gives them.
        """
        feature, child, parent = (arrays[name].tolist() for name in ("feature", "child", "parent"))
        wrong = any(
            f >= 0 and not node < c < len(feature) - 1 for node, (f, c) in enumerate(zip(feature, child, strict=True))
        )
        sides = arrays["right"]
        wrong |= sides.shape[:1] != (len(feature),) or not np.isin(sides, (0, 1)).all()
        if wrong or len(parent) != len(feature) or len(arrays["values"]) != len(feature):
            raise InvalidInput("the model file holds a tree that is none.")
        return cls(feature, list(arrays["right"]), child, parent, arrays["values"])

    def leaf_of(self, codes: Codes) -> Codes:
        """The leaf that each row ends in."""
        nodes = np.zeros(len(codes), np.int64)
        while True:
            below = self.descend(nodes, codes)
            if (below == nodes).all():
                return nodes
            nodes = below


class _Forest(PrivateEstimator):
    def __init__(
        self,
        budget: Budget | tuple[float, float] | None = None,
        *,
        bounds: Any = None,
        n_estimators: int = 4,
        max_depth: int = 5,
        max_features: float = 0.5,
        bins: int = 32,
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.budget, self.bounds, self.n_estimators, self.max_depth = budget, bounds, n_estimators, max_depth
        self.max_features, self.bins, self.rows_per_person = max_features, bins, rows_per_person
        self.ledger, self.dataset_budget, self.random_state = ledger, dataset_budget, random_state

    def _check(self) -> None:
        for name, least, most in [("n_estimators", 1, 10_000), ("max_depth", 1, 12), ("bins", 2, 4096)]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
                raise InvalidInput(f"{name} must be a whole number from {least} to {most}, got {value!r}.")
        if not 0 < self.max_features <= 1:
            raise InvalidInput(f"max_features is a share of the features, above 0 and at most 1: {self.max_features}.")

    def _grow(self, rows: Floats, statistics: Floats, norm: float, persons: Any) -> None:
        """Grow the trees; ``statistics`` holds what is added up for each row, of norm at most ``norm``."""
        rng = self._rng()
        kept, most, unit = limited(persons, self.rows_per_person, len(rows), rng)
        self.features_ = binned_features(getattr(self, "feature_names_in_", None), rows.shape[1], int(self.bins))
        codes, statistics = all_codes(self.features_, rows[kept]), statistics[kept]
        trees, depth = int(self.n_estimators), int(self.max_depth)
        multiplier = noise_for(self._budget(), lambda nu: _Shares(nu, trees, depth).event())
        shares = _Shares(multiplier, trees, depth)
        with self._spending(shares.event(), unit, len(kept)):
            self.trees_ = [self._tree(codes, statistics, norm * most, shares, rng) for _ in range(trees)]

    def _tree(
        self, codes: Codes, statistics: Floats, norm: float, shares: _Shares, rng: np.random.Generator
    ) -> GrownTree:
        tree, nodes = GrownTree(), np.zeros(len(codes), np.int64)
        tried = max(1, round(self.max_features * len(self.features_)))
        deviation = norm * math.sqrt(tried) * shares.level
        frontier = [0]
        for _ in range(shares.depth):
            chosen = np.sort(rng.choice(len(self.features_), tried, replace=False))
            parts = self._histograms(codes, statistics, nodes, frontier, chosen)
            flat = add_noise(
                np.concatenate([part.ravel() for part in parts]), norm * math.sqrt(tried), shares.level, rng
            )
            ends = np.cumsum([part.size for part in parts])[:-1]
            noisy = [one.reshape(part.shape) for one, part in zip(np.split(flat, ends), parts, strict=True)]
            born: list[int] = []
            for place, node in enumerate(frontier):
                best = self._best_split([part[place] for part in noisy], chosen, deviation)
                if best is not None:
                    born += tree.split(node, *best)
            nodes, frontier = tree.descend(nodes, codes), born
        size = len(tree.feature)
        sums = np.stack([np.bincount(nodes, column, size) for column in statistics.T], axis=1)
        tree.values = add_noise(sums.astype(np.float64), norm, shares.leaf, rng)
        tree.values = _smoothed(tree, norm * shares.leaf, self._clean)
        return tree

    def _histograms(
        self, codes: Codes, statistics: Floats, nodes: Codes, frontier: list[int], chosen: Any
    ) -> list[Floats]:
        place_of = np.full(int(nodes.max()) + 1, -1, np.int64)
        inside = [node for node in frontier if node < len(place_of)]
        place_of[inside] = np.arange(len(frontier))[[frontier.index(node) for node in inside]]
        here = place_of[nodes]
        active = here >= 0
        found = []
        for number in chosen:
            cells = self.features_[number].cells
            flat = here[active] * cells + codes[active, number]
            sums = [np.bincount(flat, column[active], len(frontier) * cells) for column in statistics.T]
            found.append(np.stack(sums, axis=1).astype(np.float64).reshape(len(frontier), cells, statistics.shape[1]))
        return found

    def _best_split(self, parts: list[Floats], chosen: Any, deviation: float) -> tuple[int, Any] | None:
        best, answer = 0.0, None
        for part, number in zip(parts, chosen, strict=True):
            order = np.arange(len(part)) if self.features_[number].ordered else np.argsort(self._order(part, deviation))
            left = np.cumsum(part[order], axis=0)[:-1]
            whole = part.sum(axis=0)
            sizes = np.stack([self._size(left), self._size(whole - left)])
            gains = self._impurity(whole[None])[0] - self._impurity(left) - self._impurity(whole - left)
            gains = np.where(sizes.min(axis=0) > 3 * deviation, gains, 0.0)
            if len(gains) and gains.max() > best:
                cut = int(gains.argmax())
                right = np.zeros(len(part), np.int64)
                right[order[cut + 1 :]] = 1
                best, answer = float(gains.max()), (int(number), right)
        return answer

    def _clean(self, values: Floats) -> Floats:
        raise NotImplementedError

    def _size(self, sums: Floats) -> Floats:
        raise NotImplementedError

    def _impurity(self, sums: Floats) -> Floats:
        raise NotImplementedError

    def _order(self, part: Floats, deviation: float) -> Floats:
        raise NotImplementedError

    def _answers(self, X: Any) -> Floats:
        rows = fitted_rows(self, X)
        codes = all_codes(self.features_, scaled(rows, self.bounds))
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
        self._grow(scaled(rows, self.bounds), np.eye(len(self.classes_))[codes], 1.0, persons)
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

    def _size(self, sums: Floats) -> Floats:
        sizes: Floats = sums.sum(axis=-1)
        return sizes

    def _impurity(self, sums: Floats) -> Floats:
        counts = np.maximum(sums, 0.0)
        total = np.maximum(counts.sum(axis=-1), 1e-12)
        impurity: Floats = total - (counts**2).sum(axis=-1) / total
        return impurity

    def _order(self, part: Floats, deviation: float) -> Floats:
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
        rows_per_person: int | None = None,
        ledger: Ledger | str | None = None,
        dataset_budget: str | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            budget, bounds=bounds, n_estimators=n_estimators, max_depth=max_depth, max_features=max_features, bins=bins,
            rows_per_person=rows_per_person, ledger=ledger, dataset_budget=dataset_budget, random_state=random_state,
        )  # fmt: skip
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any, persons: Any = None) -> RandomForestRegressor:
        """Fit within the budget.

        Args:
            X: Rows.
            y: Targets.
            persons: Whose row it is; the unit of privacy is then a person.
        """
        self._check()
        rows, y = checked_rows(self, X, y, with_target=True)
        unit_rows = scaled(rows, self.bounds)
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

    def _size(self, sums: Floats) -> Floats:
        sizes: Floats = sums[..., 0]
        return sizes

    def _impurity(self, sums: Floats) -> Floats:
        impurity: Floats = -(sums[..., 1] ** 2) / np.maximum(sums[..., 0], 1.0)
        return impurity

    def _order(self, part: Floats, deviation: float) -> Floats:
        order: Floats = part[:, 1] / (np.maximum(part[:, 0], 0.0) + deviation)
        return order


def _smoothed(tree: GrownTree, deviation: float, clean: Any) -> Floats:
    """Values of all nodes, each drawn towards its parent's by as much as the noise outweighs its rows."""
    sums = tree.values.copy()
    for node in range(len(tree.feature) - 1, 0, -1):
        sums[tree.parent[node]] += sums[node]
    values = clean(sums)
    sizes = np.abs(sums).sum(axis=1)
    for node in range(1, len(tree.feature)):
        weight = sizes[node] / (sizes[node] + 2 * deviation)
        values[node] = weight * values[node] + (1 - weight) * values[tree.parent[node]]
    return np.asarray(values)
