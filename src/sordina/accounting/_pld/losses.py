"""How privacy losses are distributed: of one mechanism, and of a group under Poisson sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sordina.accounting._numerics import Array, ndtr, ndtri

# How the privacy loss ``L = ln dP/dQ`` of a mechanism is distributed, by the tails ``P[L > t]`` and ``Q[L > t]``.
#
# The two tails as functions of the threshold t are all that sampling and composition need to know of a mechanism.

LEFT = 1e-13
"""Losses in a left tail of this mass are rounded up to its end."""


class PrivacyLoss(Protocol):
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


# The loss of a group under Poisson sampling: a binomial number of its units takes part.
#
# With all m units in the data, ``P = sum_j Bin(j; m, q) N(g_j, s^2)`` where ``|g_j| <= j``; without, ``Q = N(0, s^2)``.
# ``D_e(P | Q)`` is the mean of a convex function of ``sum_j w_j exp(<g_j, z> - |g_j|^2/2)``, which grows with every
# ``<g_i, g_j>`` (see `pairs.TwoSided`), so collinear ``g_j = j`` are the worst, in both directions.


@dataclass(frozen=True)
class BinomialLoss:
    """``sum_j Bin(j; size, rate) N(j, noise^2)`` against ``N(0, noise^2)``; with ``swapped``, the other way round."""

    noise: float
    rate: float
    size: int
    swapped: bool = False
    leak: float = field(default=0.0, init=False)

    @property
    def _log_weights(self) -> Array:
        count = np.arange(self.size + 1.0)
        binomial = np.array([math.log(math.comb(self.size, taken)) for taken in range(self.size + 1)])
        return binomial + count * math.log(self.rate) + (self.size - count) * math.log1p(-self.rate)

    def _loss(self, x: Array) -> tuple[Array, Array]:
        """``L(x) = ln sum_j w_j e^((j x - j^2/2)/s^2)`` and its derivative; L rises and is convex."""
        count = np.arange(self.size + 1.0)
        logs = self._log_weights - count**2 / (2 * self.noise**2) + np.multiply.outer(x, count) / self.noise**2
        most = logs.max(axis=-1)
        weights = np.exp(logs - most[..., None])
        total = weights.sum(axis=-1)
        return most + np.log(total), (weights @ count) / total / self.noise**2

    def _where(self, losses: Array) -> Array:
        """The x at which L is each of ``losses``: -inf where L is always larger. Newton's method, from the right."""
        least = self.size * math.log1p(-self.rate)
        x = np.full(losses.shape, -math.inf)
        reachable = (losses > least) & np.isfinite(losses)
        target = losses[reachable]
        table = np.linspace(-40 * self.noise - self.size, self._far(target), 4096)
        known, _ = self._loss(table)
        right = np.minimum(np.searchsorted(known, target), table.size - 1)
        guess = table[right]
        for _ in range(60):
            value, slope = self._loss(guess)
            move = (value - target) / slope
            guess = guess - np.where(np.isfinite(move), move, 0.0)
            if float(np.abs(move).max(initial=0.0)) < 1e-14 * (self.size + self.noise):
                break
        x[reachable] = guess
        return np.where(losses == math.inf, math.inf, x)

    def _far(self, losses: Array) -> float:
        """An x with a loss above all ``losses``: already the last of the mixture alone has one."""
        most = float(losses.max(initial=0.0))
        return (most - float(self._log_weights[-1])) * self.noise**2 / self.size + self.size / 2 + self.noise

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """``L > t`` means ``x > x(t)``; swapped, ``-L > t`` means ``x < x(-t)``."""
        sign = -1.0 if self.swapped else 1.0
        z = self._where(sign * thresholds) / self.noise
        shifts = np.arange(self.size + 1.0) / self.noise
        weights = np.exp(self._log_weights)
        mixed = ndtr(-sign * np.subtract.outer(z, shifts)) @ weights
        single = ndtr(-sign * z)
        return (single, mixed) if self.swapped else (mixed, single)

    def span(self, tail: float) -> tuple[float, float]:
        """Losses at quantiles of P, of all parts of the mixture."""
        if self.swapped:
            least = self.size * math.log1p(-self.rate)
            return -self._at(-self.noise * ndtri(LEFT)), -self._at(self.noise * ndtri(tail)) if tail else -least
        if tail == 0:
            return self._at(self.noise * ndtri(LEFT)), math.inf
        weights, shifts = np.exp(self._log_weights), np.arange(self.size + 1.0)
        low, high = 0.0, self.size - self.noise * ndtri(tail)
        for _ in range(40):
            middle = (low + high) / 2
            beyond = float(weights @ ndtr((shifts - middle) / self.noise))
            low, high = (low, middle) if beyond <= tail else (middle, high)
        return self._at(self.noise * ndtri(LEFT)), self._at(high)

    def _at(self, x: float) -> float:
        return float(self._loss(np.array([x]))[0][0])

    @property
    def scale(self) -> float:
        """``s (s + 40 noise) / noise^2``: the largest exponent in L."""
        return self.size * (self.size + 40 * self.noise) / self.noise**2
