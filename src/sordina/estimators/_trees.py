"""Trees: three ways to split their nodes under a budget, and what each costs; a grown tree, and its smoothed values.

Neighbours differ by one row (add/remove); m rows of a person multiply every sensitivity by m. Which features a node may
use is drawn without looking.

**Histograms.** One query per level counts, for every node, feature, cell and class at once, the rows that are there;
the split of least impurity is then read off the *noisy* counts, which is post-processing. On one level a row is in one
node, in one cell of each of the f features tried, under one class: L2 sensitivity ``sqrt(f)`` (regression: ``sqrt(5 f /
4)``). Levels and leaves of all trees, which all see all rows, compose to one Gaussian.

**At random** (Geurts et al. 2006, Fletcher and Islam 2017). Features and cuts are drawn: nothing is looked at, and the
whole budget goes to the leaves.

**Exponential mechanism** (Friedman and Schuster 2010). Every unit is put into one of the bags, one per tree, by a draw
of its own: a unit is seen by one tree, so all trees together cost what one costs. The score of a split is minus the sum
of squares around the means of its two sides, of class indicators or targets. One more row never lowers a sum of
squares, and raises it by at most its squared distance from the mean: below 2 for indicators, 1 for targets in [-1/2,
1/2]. So scores are monotonic of that sensitivity, nodes of a level are disjoint, and a level costs epsilon once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.accounting import Composed, Event, Gaussian, PureDP, Repeated
from sordina.errors import InvalidInput
from sordina.estimators._base import add_noise
from sordina.estimators._features import BinnedFeature, Codes, Floats
from sordina.mechanisms.exponential import Exponential
from sordina.privacy import Budget

_LEAF_SHARE = 0.3
"""Part of a tree's budget (of mu squared) that goes to its leaves, with histograms."""
_PURE_SHARE = 0.5
"""Part of epsilon that goes to choosing splits by the exponential mechanism."""
Split = tuple[int, NDArray[np.int64]]
"""The feature, and for each of its cells whether rows go right."""


class SplitCriterion:
    """What classification and regression measure a split by, from sums of the rows' statistics."""

    squares = 2.0
    """How much one row can add to a sum of squares."""

    def size(self, sums: Floats) -> Floats:
        """The number of rows of each node."""
        raise NotImplementedError

    def impurity(self, sums: Floats) -> Floats:
        """The sum of squares around the mean of each node, up to what all splits of it have in common."""
        raise NotImplementedError

    def order(self, part: Floats, deviation: float) -> Floats:
        """A number for each cell of a category; cells with like numbers go the same way."""
        raise NotImplementedError


@dataclass(frozen=True)
class TreeShares:
    """Noise of the parts of a forest: histograms at every level, then leaves; all of it one Gaussian of ``multiplier``.

    Args:
        multiplier: Noise of the whole, per unit of sensitivity.
        trees: How many.
        depth: Levels of splits.
        level_epsilon: Of the exponential mechanism at a level, where it is used.
        rows: How many a unit may have.
    """

    multiplier: float
    trees: int
    depth: int
    level_epsilon: float = 0.0
    rows: int = 1

    @staticmethod
    def pure(budget: Budget, depth: int) -> float:
        """What a level costs by the exponential mechanism."""
        return 0.0

    @property
    def level(self) -> float:
        """Noise multiplier of a level."""
        return self.multiplier * math.sqrt(self.trees * self.depth / (1 - _LEAF_SHARE))

    @property
    def leaf(self) -> float:
        """Noise multiplier of the leaves of a tree."""
        return self.multiplier * math.sqrt(self.trees / _LEAF_SHARE)

    def event(self) -> Event:
        """What the forest is to an accountant."""
        levels = Repeated(Gaussian(self.level), self.trees * self.depth)
        return Composed((levels, Repeated(Gaussian(self.leaf), self.trees)))

    def bags(self, units: NDArray[Any], rng: np.random.Generator) -> list[Any]:
        """Which rows each tree sees."""
        return [slice(None)] * self.trees

    def chooser(
        self, criterion: SplitCriterion, features: tuple[BinnedFeature, ...], share: float, norm: float,
        rng: np.random.Generator,
    ) -> SplitChooser:  # fmt: skip
        """What chooses the splits of one tree."""
        return HistogramSplits(criterion, features, share, norm, rng, self)


class RandomShares(TreeShares):
    """Everything goes to the leaves."""

    @property
    def leaf(self) -> float:
        """Noise multiplier of the leaves of a tree."""
        return self.multiplier * math.sqrt(self.trees)

    def event(self) -> Event:
        """What the forest is to an accountant."""
        return Repeated(Gaussian(self.leaf), self.trees)

    def chooser(
        self, criterion: SplitCriterion, features: tuple[BinnedFeature, ...], share: float, norm: float,
        rng: np.random.Generator,
    ) -> SplitChooser:  # fmt: skip
        """What chooses the splits of one tree."""
        return RandomSplits(criterion, features, share, norm, rng, self)


class BagShares(TreeShares):
    """A tree per bag: levels by the exponential mechanism, then its leaves."""

    @staticmethod
    def pure(budget: Budget, depth: int) -> float:
        """What a level costs by the exponential mechanism."""
        return _PURE_SHARE * budget.epsilon / depth

    @property
    def leaf(self) -> float:
        """Noise multiplier of the leaves of a tree."""
        return self.multiplier

    def event(self) -> Event:
        """What the forest is to an accountant."""
        return Composed((Repeated(PureDP(self.level_epsilon), self.depth), Gaussian(self.leaf)))

    def bags(self, units: NDArray[Any], rng: np.random.Generator) -> list[Any]:
        """Which rows each tree sees: all rows of a unit are in one bag."""
        _, owners = np.unique(units.astype(str), return_inverse=True)
        bag_of = rng.integers(0, self.trees, int(owners.max(initial=-1)) + 1)[owners]
        return [np.flatnonzero(bag_of == bag) for bag in range(self.trees)]

    def chooser(
        self, criterion: SplitCriterion, features: tuple[BinnedFeature, ...], share: float, norm: float,
        rng: np.random.Generator,
    ) -> SplitChooser:  # fmt: skip
        """What chooses the splits of one tree."""
        return ExponentialSplits(criterion, features, share, norm, rng, self)


SPLITS: dict[str, type[TreeShares]] = {"histogram": TreeShares, "random": RandomShares, "exponential": BagShares}


@dataclass
class SplitChooser:
    """Chooses the splits of the nodes of a level.

    Args:
        criterion: What splits are measured by.
        features: The features.
        share: Part of the features that is tried.
        norm: Bound on the norm of a unit's statistics.
        rng: Source of randomness.
        shares: What everything costs.
    """

    criterion: SplitCriterion
    features: tuple[BinnedFeature, ...]
    share: float
    norm: float
    rng: np.random.Generator
    shares: TreeShares

    def splits(self, codes: Codes, statistics: Floats, nodes: Codes, frontier: Sequence[int]) -> list[Split | None]:
        """A split for each node of ``frontier``, or None where it stays a leaf.

        Args:
            codes: The cell of each row in each feature.
            statistics: What each row adds.
            nodes: The node each row stands in.
            frontier: The nodes of this level.
        """
        raise NotImplementedError

    def _tried(self) -> NDArray[np.int64]:
        count = max(1, round(self.share * len(self.features)))
        return np.sort(self.rng.choice(len(self.features), count, replace=False))


class HistogramSplits(SplitChooser):
    """From noisy counts of every cell."""

    def splits(self, codes: Codes, statistics: Floats, nodes: Codes, frontier: Sequence[int]) -> list[Split | None]:
        """A split for each node, or None where the counts promise nothing."""
        chosen = self._tried()
        parts = histograms(self.features, codes, statistics, nodes, frontier, chosen)
        sensitivity = self.norm * math.sqrt(len(chosen))
        flat = np.concatenate([part.ravel() for part in parts])
        flat = add_noise(flat, sensitivity, self.shares.level, self.rng)
        ends = np.cumsum([part.size for part in parts])[:-1]
        noisy = [one.reshape(part.shape) for one, part in zip(np.split(flat, ends), parts, strict=True)]
        deviation = sensitivity * self.shares.level
        return [self._best([part[place] for part in noisy], chosen, deviation) for place in range(len(frontier))]

    def _best(self, parts: list[Floats], chosen: NDArray[np.int64], deviation: float) -> Split | None:
        best, answer, by = 0.0, None, self.criterion
        for part, number in zip(parts, chosen, strict=True):
            order = np.arange(len(part)) if self.features[number].ordered else np.argsort(by.order(part, deviation))
            left = np.cumsum(part[order], axis=0)[:-1]
            whole = part.sum(axis=0)
            sizes = np.stack([by.size(left), by.size(whole - left)])
            gains = by.impurity(whole[None])[0] - by.impurity(left) - by.impurity(whole - left)
            gains = np.where(sizes.min(axis=0) > 3 * deviation, gains, 0.0)
            if len(gains) and gains.max() > best:
                cut = int(gains.argmax())
                right = np.zeros(len(part), np.int64)
                right[order[cut + 1 :]] = 1
                best, answer = float(gains.max()), (int(number), right)
        return answer


class RandomSplits(SplitChooser):
    """Without looking: a feature and a cut of it, or half of a category's values."""

    def splits(self, codes: Codes, statistics: Floats, nodes: Codes, frontier: Sequence[int]) -> list[Split | None]:
        """A drawn split for each node."""
        return [self._drawn() for _ in frontier]

    def _drawn(self) -> Split:
        number = int(self.rng.integers(len(self.features)))
        feature = self.features[number]
        if feature.ordered:
            return number, (np.arange(feature.cells) >= self.rng.integers(1, feature.cells)).astype(np.int64)
        right = np.zeros(feature.cells, np.int64)
        right[self.rng.permutation(feature.cells)[: feature.cells // 2]] = 1
        return number, right


class ExponentialSplits(SplitChooser):
    """By the exponential mechanism among all cuts of the numbers and all single values of the categories."""

    def splits(self, codes: Codes, statistics: Floats, nodes: Codes, frontier: Sequence[int]) -> list[Split | None]:
        """A split for each node, the likelier the purer."""
        chosen = self._tried()
        parts = histograms(self.features, codes, statistics, nodes, frontier, chosen)
        sensitivity = self.criterion.squares * self.shares.rows
        mechanism = Exponential(sensitivity, self.shares.level_epsilon, monotonic=True)
        return [self._released([part[place] for part in parts], chosen, mechanism) for place in range(len(frontier))]

    def _released(self, parts: list[Floats], chosen: NDArray[np.int64], mechanism: Exponential) -> Split:
        scores, candidates = [], []
        for part, number in zip(parts, chosen, strict=True):
            ordered = self.features[number].ordered
            left = np.cumsum(part, axis=0)[:-1] if ordered else part
            whole = part.sum(axis=0)
            scores.append(-self.criterion.impurity(left) - self.criterion.impurity(whole - left))
            candidates += [(int(number), place, ordered, len(part)) for place in range(len(left))]
        number, place, ordered, cells = candidates[mechanism.release(np.concatenate(scores), self.rng)]
        right = np.arange(cells) > place if ordered else np.arange(cells) == place
        return number, right.astype(np.int64)


def histograms(
    features: tuple[BinnedFeature, ...], codes: Codes, statistics: Floats, nodes: Codes, frontier: Sequence[int],
    chosen: NDArray[np.int64],
) -> list[Floats]:  # fmt: skip
    """For each chosen feature the sums of the statistics by node of ``frontier`` and cell.

    Args:
        features: The features.
        codes: The cell of each row in each feature.
        statistics: What each row adds.
        nodes: The node each row stands in.
        frontier: The nodes of this level.
        chosen: The numbers of the features.
    """
    place_of = np.full(max([int(nodes.max(initial=0)), *frontier]) + 1, -1, np.int64)
    place_of[list(frontier)] = np.arange(len(frontier))
    here = place_of[nodes]
    active = here >= 0
    found = []
    for number in chosen:
        cells = features[number].cells
        flat = here[active] * cells + codes[active, number]
        sums = [np.bincount(flat, column[active], len(frontier) * cells) for column in statistics.T]
        found.append(np.stack(sums, axis=1).astype(np.float64).reshape(len(frontier), cells, statistics.shape[1]))
    return found


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


def smoothed(tree: GrownTree, deviation: float, clean: Any) -> Floats:
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
