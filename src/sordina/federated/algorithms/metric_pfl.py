"""Metric PFL: the server of Algorithm 1 of 000 and 001 as printed, and a steadier one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.ifca import HYPOTHESES
from sordina.federated.messages import Arrays, Release
from sordina.privacy import check_positive

# Lloyd's k-means from given centres: few points, few centres, nothing random.


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


# Metric PFL at the server: Algorithm 1 of 000 and 001, lines 9 and 10, as printed.


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


# Metric PFL with a steadier server: the same clients, the same releases, better post-processing of them.
#
# Algorithm 1 replaces each hypothesis by the mean of a handful of vectors whose noise is nu times longer than their
# message; early on the noise dwarfs the distance between hypotheses, and clusters collapse. Everything below reads
# sanitised vectors and public numbers only, so it leaks nothing more. A round is one damped step of expectation
# maximisation for a mixture of Euclidean Laplace laws (Lemma 2 of 000), hypothesis j with share p_j and scale b_j:
#
# - hypotheses start spread out (`spread`);
# - vector v belongs to hypothesis j with probability proportional to ``p_j b_j^-n exp(-|v - theta_j| / b_j)``; hard
#   k-means with Lloyd iterations lets noise drag the centres along;
# - the displacement of a hypothesis is (mean length) x (mean direction) of its vectors, one step of maximum likelihood:
#   its squared error is ``n^2 b^2 / m = nu^2 |xi|^2 / m``, where the plain mean's is ``n (n + 1) b^2 / m`` (eq. 2.25 of
#   000), half as much again for n = 2;
# - a hypothesis moves by ``m / (m + nu^2)`` of the estimate, which minimises the expected squared error of the move;
# - one that nobody came near for ``drought`` vectors is re-seeded beside the most popular one, both a noise length away
#   from where that stood, so that clients who differ can part;
# - what is deployed is a running mean over rounds.

_LEAST_SHARE = 0.02
"""No hypothesis is given up by its share alone: it must be able to come back."""
_TINY = 1e-300


def spread(count: int, size: int, radius: float, rng: np.random.Generator) -> Tensor:
    """``count`` points on a sphere of ``radius``, in a random orientation, as far apart as they can be (a simplex).

    >>> points = spread(2, 2, 3.0, np.random.default_rng(0))
    >>> bool(torch.allclose(points[0], -points[1])), round(float(points[0].norm()), 4)
    (True, 3.0)
    """
    check_positive("radius of the initial hypotheses", radius)
    points = rng.standard_normal((count, size))
    if count <= size:
        points = np.linalg.qr(points.T)[0].T
    if count > 1:
        points = points - points.mean(axis=0)
    return torch.from_numpy(radius * points / np.linalg.norm(points, axis=1, keepdims=True)).float()


@dataclass(frozen=True)
class SteadyPflState:
    """The hypotheses, their running mean, and what the server remembers: one entry per hypothesis."""

    hypotheses: Tensor
    mean: Tensor
    shares: Tensor
    """Running shares ``p_j`` of the vectors."""
    lengths: Tensor
    """Running mean distances of vectors to their hypothesis, ``n b_j``."""
    idle: Tensor
    """Vectors seen since one last came near."""
    round: int = 0


@dataclass(frozen=True)
class SteadyPflServer:
    """Soft assignment, shrunken steps, re-seeding and averaging over rounds.

    ``nu`` is the clients' public noise multiplier. ``rate`` is the server's step: a client's local steps go only part
    of the way to its optimum, and the server may go further along the estimated direction. ``memory`` is the weight of
    the past in running means.
    """

    noise_multiplier: float
    learning_rate: float = 1.0
    drought: int = 20
    memory: float = 0.8
    seed: int = 0
    needs_vectors: bool = True

    def __post_init__(self) -> None:
        check_positive("server learning rate", self.learning_rate)
        if self.noise_multiplier < 0 or self.drought < 1 or not 0 <= self.memory < 1:
            raise InvalidInput(
                f"noise_multiplier must be >= 0, drought at least 1, memory in [0, 1), got {self.noise_multiplier}, "
                f"{self.drought}, {self.memory}."
            )

    def init(self, models: Tensor) -> SteadyPflState:
        """The hypotheses as given, equally popular."""
        zeros = torch.zeros(len(models), dtype=torch.float64)
        return SteadyPflState(models.clone(), models.clone(), zeros + 1 / len(models), zeros, zeros)

    def configure(self, state: SteadyPflState) -> Arrays:
        """All hypotheses."""
        return {HYPOTHESES: state.hypotheses}

    def models(self, state: SteadyPflState) -> Tensor:
        """The running means."""
        return state.mean

    def update(self, state: SteadyPflState, release: Release) -> SteadyPflState:
        """Sort the vectors, move the hypotheses a shrunken step, and part what must be parted."""
        if release.vectors is None:
            raise InvalidInput("Metric PFL clusters the clients' vectors; this privacy releases only their mean.")
        vectors, old = release.vectors.double(), state.hypotheses.double()
        distances = torch.cdist(vectors, old)
        lengths = state.lengths if state.round else distances.min(dim=1).values.mean().expand(len(old))
        weights = responsibilities(distances, state.shares, lengths, vectors.shape[1])
        counts = weights.sum(dim=0)
        means = (weights * distances).sum(dim=0) / counts.clamp(min=_TINY)
        gain = (
            self.learning_rate * counts / (counts + self.noise_multiplier**2)
            if self.noise_multiplier
            else self.learning_rate * torch.ones_like(counts)
        )
        new = old + gain[:, None] * means[:, None] * directions(vectors, old, weights, distances)
        past = min(self.memory, state.round / (state.round + 1))
        fade = self.memory**counts
        return self._reseed(
            SteadyPflState(
                hypotheses=new.to(release.vectors),
                mean=(past * state.mean + (1 - past) * new).to(release.vectors),
                shares=self.memory * state.shares + (1 - self.memory) * counts / len(vectors),
                lengths=fade * lengths + (1 - fade) * means,
                idle=torch.where(counts > 0.5, 0.0, state.idle + len(vectors)),
                round=state.round + 1,
            )
        )

    def _reseed(self, state: SteadyPflState) -> SteadyPflState:
        """Put the idlest hypothesis beside the most popular one, if it has been idle too long."""
        dead, alive = int(state.idle.argmax()), int(state.shares.argmax())
        if state.idle[dead] < self.drought or dead == alive:
            return state
        generator = torch.Generator().manual_seed(self.seed + state.round)
        direction = torch.randn(state.hypotheses.shape[1], generator=generator).to(state.hypotheses)
        step = float(state.lengths[alive]) * direction / direction.norm()
        pair = [dead, alive]
        hypotheses, mean, shares, lengths = (
            value.clone() for value in (state.hypotheses, state.mean, state.shares, state.lengths)
        )
        hypotheses[dead], hypotheses[alive] = hypotheses[alive] + step, hypotheses[alive] - step
        mean[pair], shares[pair], lengths[dead] = hypotheses[pair], shares[alive] / 2, lengths[alive]
        return replace(
            state, hypotheses=hypotheses, mean=mean, shares=shares, lengths=lengths, idle=torch.zeros_like(state.idle)
        )


def responsibilities(distances: Tensor, shares: Tensor, lengths: Tensor, size: int) -> Tensor:
    """``P(vector i comes from hypothesis j)``, shape (vectors, hypotheses)."""
    scales = lengths.clamp(min=_TINY) / size
    return torch.softmax(shares.clamp(min=_LEAST_SHARE).log() - size * scales.log() - distances / scales, dim=1)


def directions(vectors: Tensor, centres: Tensor, weights: Tensor, distances: Tensor) -> Tensor:
    """The weighted mean of unit vectors from each centre towards the vectors, shape (hypotheses, n)."""
    pull = weights / distances.clamp(min=_TINY)
    counts = weights.sum(dim=0).clamp(min=_TINY)[:, None]
    return (pull.T @ vectors - pull.sum(dim=0)[:, None] * centres) / counts
