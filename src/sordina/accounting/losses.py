"""How the privacy loss ``L = ln dP/dQ`` of a mechanism is distributed, by the tails ``P[L > t]`` and ``Q[L > t]``.

The two tails as functions of the threshold t are all that sampling and composition need to know of a mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sordina.accounting.special import Array, ndtr, ndtri

LEFT = 1e-13
"""Losses in a left tail of this mass are rounded up to its end."""


class Loss(Protocol):
    """The loss of one mechanism between neighbours, before any sampling.

    A loss that is to be sampled is symmetric: under Q it is distributed as its negative under P.
    """

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """``P[L > t]`` and ``Q[L > t]``; everything at ``t = -inf``, nothing at ``t = inf``."""
        ...

    def span(self, tail: float) -> tuple[float, float]:
        """Losses that leave out at most ``tail`` of P above, and `LEFT` below; infinite losses stay out."""
        ...

    @property
    def leak(self) -> float:
        """The mass of P at infinite loss."""
        ...

    @property
    def scale(self) -> float:
        """The largest number, in units of the loss, that is rounded on the way from a threshold to a tail."""
        ...


@dataclass(frozen=True)
class GaussianLoss:
    """``N(1, s^2)`` against ``N(0, s^2)``: L is normal with mean +-1/(2 s^2) and variance 1/s^2."""

    noise: float
    leak: float = field(default=0.0, init=False)

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """``Phi(1/(2s) - t s)`` and ``Phi(-1/(2s) - t s)``."""
        scaled = thresholds * self.noise
        return ndtr(0.5 / self.noise - scaled), ndtr(-0.5 / self.noise - scaled)

    def span(self, tail: float) -> tuple[float, float]:
        """Quantiles of L under P."""
        middle = 0.5 / self.noise
        return (middle + ndtri(LEFT)) / self.noise, (middle - ndtri(tail)) / self.noise

    @property
    def scale(self) -> float:
        """``1/(2 s^2)``."""
        return 0.5 / self.noise / self.noise


@dataclass(frozen=True)
class LaplaceLoss:
    """``Lap(0, b)`` against ``Lap(1, b)``: L falls from 1/b to -1/b between 0 and 1, and is constant outside."""

    noise: float
    leak: float = field(default=0.0, init=False)

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """``L > t`` means ``x < (1 - t b)/2``."""
        most = 1 / self.noise
        depth = (most - np.clip(thresholds, -most, most)) / 2
        under, over = thresholds < -most, thresholds >= most
        upper = np.where(under, 1.0, np.where(over, 0.0, 1 - np.exp(-depth) / 2))
        lower = np.where(under, 1.0, np.where(over, 0.0, np.exp(depth - most) / 2))
        return upper, lower

    def span(self, tail: float) -> tuple[float, float]:
        """The loss is bounded by ``1/b``."""
        return -1 / self.noise, 1 / self.noise

    @property
    def scale(self) -> float:
        """``1/b``."""
        return 1 / self.noise


@dataclass(frozen=True)
class ResponseLoss:
    """The worst (epsilon, delta)-DP mechanism: leak all with probability delta, else randomised response.

    ``L`` is inf, epsilon, -epsilon or -inf (Kairouz, Oh and Viswanath 2015, Theorem 3.1).
    """

    epsilon: float
    delta: float = 0.0

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """Steps at the four values of the loss."""
        truth = (1 - self.delta) / (1 + math.exp(-self.epsilon))
        lie = truth * math.exp(-self.epsilon)
        low, high = thresholds < -self.epsilon, thresholds < self.epsilon
        upper = np.where(low, 1.0, np.where(high, truth + self.delta, np.where(thresholds < math.inf, self.delta, 0.0)))
        lower = np.where(low, 1 - self.delta, np.where(high, lie, 0.0))
        return upper, np.where(thresholds == -math.inf, 1.0, lower)

    def span(self, tail: float) -> tuple[float, float]:
        """The finite losses are bounded by epsilon."""
        return -self.epsilon, self.epsilon

    @property
    def leak(self) -> float:
        """Delta."""
        return self.delta

    @property
    def scale(self) -> float:
        """Epsilon itself."""
        return self.epsilon
