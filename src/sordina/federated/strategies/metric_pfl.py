"""Metric PFL at the server: Algorithm 1 of 000 and 001, lines 9 and 10, as printed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.clients.hypotheses import HYPOTHESES
from sordina.federated.messages import Arrays, Release
from sordina.federated.strategies.kmeans import kmeans


@dataclass(frozen=True)
class MetricPflServer:
    """k-means on the sanitised models, started at the current hypotheses; each hypothesis becomes its cluster's mean.

    The server learns neither which hypothesis a client chose nor how many samples it has: it guesses the first from
    the sanitised vectors, and weighs all clients alike. An empty cluster keeps its hypothesis.
    """

    needs_vectors: bool = True

    def init(self, models: Tensor) -> Tensor:
        """The hypotheses."""
        return models.clone()

    def configure(self, state: Tensor) -> Arrays:
        """All hypotheses (line 3)."""
        return {HYPOTHESES: state}

    def update(self, state: Tensor, release: Release) -> Tensor:
        """Cluster and average."""
        if release.vectors is None:
            raise InvalidInput("Metric PFL clusters the clients' vectors; this privacy releases only their mean.")
        return kmeans(release.vectors, state)[0]

    def models(self, state: Tensor) -> Tensor:
        """The hypotheses."""
        return state
