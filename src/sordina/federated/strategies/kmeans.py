"""Lloyd's k-means from given centres: few points, few centres, nothing random."""

from __future__ import annotations

import torch
from torch import Tensor


def assign(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point."""
    return torch.cdist(points.double(), centres.double()).argmin(dim=1)


def means(points: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """The mean of each cluster; an empty one keeps its centre."""
    new = centres.clone()
    for j in set(labels.tolist()):
        new[j] = points[labels == j].mean(dim=0)
    return new


def kmeans(points: Tensor, centres: Tensor, iterations: int = 100) -> tuple[Tensor, Tensor]:
    """Centres and labels after Lloyd's iterations, started at ``centres``.

    >>> kmeans(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.0], [5.0], [100.0]]))[0].flatten().tolist()
    [0.5, 9.0, 100.0]
    """
    labels = assign(points, centres)
    for _ in range(iterations):
        centres = means(points, labels, centres)
        fresh = assign(points, centres)
        if torch.equal(fresh, labels):
            break
        labels = fresh
    return centres, labels
