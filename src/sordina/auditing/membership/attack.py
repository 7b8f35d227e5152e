"""The seam of membership inference: an attack gives every sample a score, the higher the more a member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sordina.auditing.membership.samples import Samples
from sordina.auditing.membership.target import Target
from sordina.auditing.scores import FloatArray


class Attack(Protocol):
    """One number per sample from one model."""

    @property
    def name(self) -> str:
        """How results call it."""
        ...

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """The higher, the more the sample looks like a member."""
        ...


@dataclass(frozen=True)
class Loss:
    """``-loss(f, x)``: members are fitted better (Yeom et al. 2018; perplexity for language models, 000 eq. 4.2)."""

    name: str = "loss"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """Minus the loss, on the scale of confidences, which orders the same and does not round at loss 0."""
        return target.confidences(samples)


@dataclass(frozen=True)
class Neighbours:
    """``mean_j loss(f, x~_j) - loss(f, x)`` (000 eq. 4.5; Mattern et al. 2023), with neighbours made in text.

    A member sits in a dip of the loss, so that its neighbours fit worse than it does; a merely easy sample does not.
    ``neighbour`` maps samples to perturbed ones, see `sordina.auditing.membership.text`.
    """

    neighbour: Callable[[Samples, np.random.Generator], Samples]
    rng: np.random.Generator
    count: int = 10
    name: str = "neighbours"

    def scores(self, target: Target, samples: Samples) -> FloatArray:
        """How much better the sample fits than its neighbours."""
        own = target.losses(samples)
        total: FloatArray = np.zeros_like(own)
        for _ in range(self.count):
            total += target.losses(self.neighbour(samples, self.rng))
        scores: FloatArray = total / self.count - own
        return scores
