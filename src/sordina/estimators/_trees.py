"""A grown tree: its nodes, where rows end in it, and its values smoothed towards their parents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sordina.errors import InvalidInput
from sordina.estimators._bins import Codes, Floats


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
