"""What a client may do to its update before it sends it. An update is one gradient per parameter tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sordina.mechanisms.metric_laplace import MetricLaplace
from sordina.types import check_positive


class Defence(Protocol):
    """Changes an update before the server sees it."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """The update that is sent."""
        ...


@dataclass(frozen=True)
class Nothing:
    """The update itself."""

    name: str = "none"

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Unchanged."""
        return [part.clone() for part in update]


@dataclass(frozen=True)
class LayerLaplace:
    """Euclidean Laplace noise on each layer by itself, ``eps = n / (nu r)``, r the layer's norm (000 section 2.5.1).

    The noise is as long as nu times the layer's update, in expectation. A radius read off the secret update is the
    thesis's heuristic, not a guarantee (errata 4); against a given attack it is what figure 2.5 measures.
    """

    nu: float

    def __post_init__(self) -> None:
        check_positive("noise multiplier nu", self.nu)

    @property
    def name(self) -> str:
        """With nu."""
        return f"laplace nu={self.nu:g}"

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Each layer with its own noise; a layer without update stays so."""
        return [self._noised(part, rng) for part in update]

    def _noised(self, part: Tensor, rng: np.random.Generator) -> Tensor:
        radius = float(part.norm())
        if radius == 0:
            return part.clone()
        noised: Tensor = MetricLaplace(part.numel() / (self.nu * radius)).release(part, rng)
        return noised


@dataclass(frozen=True)
class GaussianNoise:
    """``N(0, sigma^2)`` on every component."""

    sigma: float

    def __post_init__(self) -> None:
        check_positive("standard deviation sigma", self.sigma)

    @property
    def name(self) -> str:
        """With sigma."""
        return f"gaussian sigma={self.sigma:g}"

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Noise everywhere."""
        return [
            part + self.sigma * torch.from_numpy(rng.standard_normal(tuple(part.shape))).to(part) for part in update
        ]


@dataclass(frozen=True)
class Clipped:
    """The whole update scaled to norm at most C, then Gaussian noise of ``noise_multiplier * C``, if any."""

    threshold: float = 1.0
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        check_positive("clipping threshold", self.threshold)

    @property
    def name(self) -> str:
        """With its numbers."""
        return f"clipped C={self.threshold:g}" + (f" nu={self.noise_multiplier:g}" if self.noise_multiplier else "")

    def protect(self, update: Sequence[Tensor], rng: np.random.Generator) -> list[Tensor]:
        """Scaling alone hides nothing from an attack on directions."""
        norm = float(torch.stack([part.norm() for part in update]).norm())
        scaled = [part * min(1.0, self.threshold / norm) if norm else part.clone() for part in update]
        if not self.noise_multiplier:
            return scaled
        return GaussianNoise(self.noise_multiplier * self.threshold).protect(scaled, rng)
