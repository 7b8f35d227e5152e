"""Dominating pairs of distributions, and which pair dominates which event under which adjacency."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sordina.accounting._numerics import Array, ndtr, ndtri
from sordina.accounting._pld.losses import LEFT, BinomialLoss, GaussianLoss, LaplaceLoss, PrivacyLoss, ResponseLoss
from sordina.accounting.canonical import Bag, refuse_fixed_size, refuse_opaque_poisson, refuse_shuffled
from sordina.accounting.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomStopping,
    Shuffled,
    ZeroConcentrated,
)
from sordina.accounting.shuffled import shuffle_loss
from sordina.errors import Unsupported
from sordina.privacy import Adjacency

# Dominating pairs: for every event, two distributions at least as far apart as any two neighbours can be.
#
# A pair (P, Q) *dominates* a mechanism when no neighbours have a larger hockey-stick divergence at any order; then the
# composition of the pairs dominates the adaptive composition of the mechanisms (Zhu, Dong and Wang 2022, Theorem 10).
#
# =====================  ========================  ==================================================================
# event                  adjacency                 pair
# =====================  ========================  ==================================================================
# Gaussian, Laplace      both                      `Plain`: noise around 1 and around 0
# PureDP, ApproximateDP  both                      `Plain`: randomised response and a leak
# PoissonSampled         add-remove, unit in P     `Removed`: ``(1-q) Q + q P`` and ``Q`` (Zhu et al., Theorem 11)
# PoissonSampled         add-remove, unit in Q     `Added`: ``P`` and ``(1-q) P + q Q`` (the same theorem)
# PoissonSampled         replace-one, Gaussian     `TwoSided`
# PoissonSampled         replace-one, Laplace      `Removed`, mirrored: looser, as below with |w1 - w0| <= 1
# FixedSizeSampled       replace-one               `Removed` for losses >= 0, mirrored below 0
# =====================  ========================  ==================================================================
#
# *Fixed size.* Couple a batch that holds the unit, ``R + {x}``, with one that does not, ``R + {y}``. Replacing x by x'
# compares ``(1-q) w0 + q w1`` with ``(1-q) w0 + q w1'``, where w0, w1 and w1' are the outputs on batches that differ by
# one replacement. Advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem 2) says, with ``e = 1 + q (e0 -
# 1)`` and ``b = e / e0``, that ``D_e = q D_e0(w1 | (1-b) w0 + b w1') <= q delta(e0)`` for ``e >= 1``, which is what
# `Removed` gives. Swapping x and x' gives the mirror image below 1, as ``D_e(A | B) = 1 - e + e D_(1/e)(B | A)``.

ROUNDING = 1e-12
"""Bound on the relative error of a computed tail (measured: 2.2e-13 at 36 standard deviations)."""
_UNIT = float(np.finfo(float).eps) / 2
_LARGEST = 700.0


@dataclass(frozen=True)
class Cut:
    """A pair cut at loss thresholds ``t_0 < ... < t_n`` into bins ``(t_i, t_i+1]``."""

    mass: Array
    """``P_i``, the mass of each bin under P."""
    gain: Array
    """``P_i - e^(t_i) Q_i``, which is >= 0."""
    error: Array
    """Bound on the floating-point error of ``gain``."""
    below: float
    """``P[L <= t_0]``."""
    above: float
    """``P[L > t_n]``."""
    blur: float
    """Bound on how far, after rounding, the loss at a cut may be from its threshold."""


class DominatingPair(Protocol):
    """A dominating pair."""

    def span(self, tail: float) -> tuple[float, float]:
        """Losses that leave out at most ``tail`` of P above, and a negligible part below."""
        ...

    def cut(self, thresholds: Array) -> Cut:
        """The pair cut at increasing ``thresholds``."""
        ...

    @property
    def leak(self) -> float:
        """The mass of P at infinite loss."""
        ...


def _bins(tail: Array) -> Array:
    return np.maximum(tail[:-1] - tail[1:], 0.0)


def _gain(mass: Array, other: Array, thresholds: Array) -> Array:
    return np.maximum(mass - np.exp(np.minimum(thresholds[:-1], _LARGEST)) * other, 0.0)


@dataclass(frozen=True)
class Plain:
    """A mechanism without sampling."""

    loss: PrivacyLoss

    @property
    def leak(self) -> float:
        """That of the loss."""
        return self.loss.leak

    def span(self, tail: float) -> tuple[float, float]:
        """That of the loss."""
        return self.loss.span(tail)

    def cut(self, thresholds: Array) -> Cut:
        """Differences of the tails."""
        upper, lower = self.loss.tails(thresholds)
        mass = _bins(upper)
        return Cut(
            mass=mass,
            gain=_gain(mass, _bins(lower), thresholds),
            error=4 * ROUNDING * upper[:-1],
            below=float(1 - upper[0]),
            above=float(upper[-1]),
            blur=8 * _UNIT * (float(np.abs(thresholds).max()) + self.loss.scale),
        )


@dataclass(frozen=True)
class Removed:
    """Poisson sampling at ``rate``, the unit present in P: ``(1-q) Q + q P`` against ``Q``.

    The loss is ``t = ln(1 - q + q e^t0)``, so ``P'_i - e^t Q'_i = q P_i - (e^t - 1 + q) Q_i``: ``(1-q) Q_i`` cancels.
    """

    loss: PrivacyLoss
    rate: float

    @property
    def leak(self) -> float:
        """Only the unit leaks, and only when it is sampled."""
        return self.rate * self.loss.leak

    def span(self, tail: float) -> tuple[float, float]:
        """The span of the loss, sampled; without the unit the loss is the mirror image of that with it."""
        low, high = -self.loss.span(LEFT)[1], self.loss.span(tail)[1]
        return _sampled(low, self.rate), _sampled(high, self.rate)

    def cut(self, thresholds: Array) -> Cut:
        """Cut where the loss before sampling is ``t0 = ln(1 + (e^t - 1)/q)``, -inf below ``ln(1 - q)``."""
        q = self.rate
        inner = _unsampled(thresholds, q)
        upper, lower = self.loss.tails(inner)
        mass, other = _bins(upper), _bins(lower)
        mixed = (1 - q) * lower + q * upper
        growth = np.expm1(np.minimum(thresholds[:-1], _LARGEST)) + q
        return Cut(
            mass=(1 - q) * other + q * mass,
            gain=np.maximum(q * mass - growth * other, 0.0),
            error=2 * ROUNDING * (q * upper[:-1] + np.abs(growth) * lower[:-1]),
            below=float(1 - mixed[0]),
            above=float(mixed[-1]),
            blur=_blur(thresholds, inner, q, self.loss.scale),
        )


@dataclass(frozen=True)
class Added:
    """Poisson sampling at ``rate``, the unit present in Q: ``P`` against ``(1-q) P + q Q``.

    The loss is ``t = -ln(1 - q + q e^-t0)``, at most ``-ln(1-q)``, and
    ``P'_i - e^t Q'_i = q (P_i - e^t0 Q_i) / (q + (1-q) e^t0)``.
    """

    loss: PrivacyLoss
    rate: float
    leak: float = field(default=0.0, init=False)

    def span(self, tail: float) -> tuple[float, float]:
        """The span of the loss, sampled; an infinite loss becomes ``-ln(1-q)``."""
        low, high = self.loss.span(tail)
        highest = -_sampled(-high, self.rate) if not self.loss.leak else -float(np.log1p(-self.rate))
        return -_sampled(-low, self.rate), highest

    def cut(self, thresholds: Array) -> Cut:
        """Cut where the loss before sampling is ``t0 = -ln(1 + (e^-t - 1)/q)``, inf from ``-ln(1 - q)`` on."""
        q = self.rate
        inner = -_unsampled(-thresholds, q)
        upper, lower = self.loss.tails(inner)
        mass = _bins(upper)
        damping = q / (q + (1 - q) * np.exp(np.minimum(inner[:-1], _LARGEST)))
        return Cut(
            mass=mass,
            gain=damping * _gain(mass, _bins(lower), inner),
            error=4 * ROUNDING * damping * upper[:-1],
            below=float(1 - upper[0]),
            above=float(upper[-1]),
            blur=_blur(thresholds, -inner, q, self.loss.scale),
        )


@dataclass(frozen=True)
class TwoSided:
    """Poisson sampling at ``rate`` under replace-one, for vectors in a ball around 0, the value of an absent unit.

    ``P = (1-q) N(0, s^2) + q N(1/2, s^2)`` against ``Q = (1-q) N(0, s^2) + q N(-1/2, s^2)``, in units of the ball's
    diameter. That antipodal points are the worst of all pairs g, g' in the ball: by advanced joint convexity
    ``D_e = q D_e0(N(g) | (1-b) N(0) + b N(g'))``, a convex function of ``sum_i b_i exp(<u_i, z> - |u_i|^2/2)`` with z
    normal, ``u_1 = -g`` and ``u_2 = g' - g``. Its mean increases with every entry of the covariance ``<u_i, u_j>``
    (Slepian and Kahane: mixed derivatives are >= 0), so it is largest for collinear vectors of the largest norms, 1/2
    and 1. Orders below 1 follow by symmetry.
    """

    noise: float
    rate: float
    leak: float = field(default=0.0, init=False)

    def span(self, tail: float) -> tuple[float, float]:
        """The losses at quantiles of both components."""
        return -self._loss(-ndtri(LEFT)), self._loss(-ndtri(tail))

    def _loss(self, deviations: float) -> float:
        far = (0.5 + deviations * self.noise) / (2 * self.noise**2)
        near = 0.125 / self.noise**2
        return _sampled(far - near, self.rate) - _sampled(-far - near, self.rate)

    def cut(self, thresholds: Array) -> Cut:
        """``x = 2 s^2 y`` with ``y = t/2 + arcsinh(A sinh(t/2))`` and ``A = e^(1/(8 s^2)) (1-q)/q``."""
        q, s, half = self.rate, self.noise, thresholds / 2
        log_a = 0.125 / s**2 + float(np.log1p(-q) - np.log(q))
        y = half + np.sign(half) * _arcsinh_product(log_a, np.abs(half))
        z = 2 * s * y
        here, plus, minus = ndtr(-z), ndtr(0.5 / s - z), ndtr(-0.5 / s - z)
        growth = np.expm1(np.minimum(thresholds[:-1], _LARGEST))
        gain = q * (_bins(plus) - (1 + growth) * _bins(minus)) - (1 - q) * growth * _bins(here)
        terms = q * (plus[:-1] + (1 + growth) * minus[:-1]) + (1 - q) * np.abs(growth) * here[:-1]
        upper = (1 - q) * here + q * plus
        most = float(np.abs(half).max())
        slope = min(2.0, 2 * float(np.hypot(np.exp(-log_a), np.sinh(min(most, 1.0)))))
        return Cut(
            mass=_bins(upper),
            gain=np.maximum(gain, 0.0),
            error=2 * ROUNDING * terms,
            below=float(1 - upper[0]),
            above=float(upper[-1]),
            blur=64 * _UNIT * (2 * most + slope * (float(np.abs(y).max()) + 0.25 / s**2)),
        )


def _sampled(loss: float, rate: float) -> float:
    """``ln(1 - q + q e^loss)``."""
    if loss > 30:
        return float(np.logaddexp(np.log1p(-rate), np.log(rate) + loss))
    return float(np.log1p(rate * np.expm1(loss)))


def _unsampled(losses: Array, rate: float) -> Array:
    """``ln(1 + (e^loss - 1)/q)``, the inverse of `_sampled`, and -inf where there is none."""
    lifted = np.maximum(np.expm1(np.minimum(losses, _LARGEST)) / rate, -1.0)
    with np.errstate(divide="ignore"):
        inner = np.log1p(lifted)
    return np.where(losses > _LARGEST - 1, losses - np.log(rate), inner)


def _blur(thresholds: Array, inner: Array, rate: float, scale: float) -> float:
    """Rounding of ``t0`` and of the tails' arguments, seen through ``dt/dt0 <= min(1, q e^t0 / (1-q))``."""
    depth = float(inner[np.isfinite(inner)].max(initial=0.0))
    slope = min(1.0, rate / (1 - rate) * float(np.exp(min(depth, _LARGEST))))
    return 8 * _UNIT * (float(np.abs(thresholds).max()) + rate + slope * (depth + scale))


def _arcsinh_product(log_a: float, half: Array) -> Array:
    """``arcsinh(A sinh(half))`` for half >= 0, without overflow."""
    with np.errstate(divide="ignore"):
        log_sinh = np.where(half > 30, half - np.log(2.0), np.log(np.sinh(np.minimum(half, 30.0))))
    logged = log_a + log_sinh
    return np.where(logged > 30, logged + np.log(2.0), np.arcsinh(np.exp(np.minimum(logged, 30.0))))


# Which pair dominates which event, under which adjacency: the table at the top of `pairs`, as code.


@dataclass(frozen=True)
class CountedPair:
    """``count`` times a pair; ``mirrored`` if only its losses >= 0 count and those below are their mirror image."""

    pair: DominatingPair
    count: int
    mirrored: bool = False


Direction = tuple[CountedPair, ...]


def dominating(bag: Bag, adjacency: Adjacency) -> tuple[Direction, ...]:
    """What to judge: two directions under add-remove (unit in P, unit in Q) if sampling tells them apart, else one."""
    vague: Bag = {event: count for event, count in bag.items() if isinstance(event, ZeroConcentrated | RandomStopping)}
    clear = {event: count for event, count in bag.items() if event not in vague}
    corners = (_cornered(vague, adjacency),) if vague else ()
    if adjacency is Adjacency.REPLACE_ONE:
        return (tuple(_replaced(event, count) for event, count in clear.items()) + corners,)
    removed = tuple(_present(event, count, Removed) for event, count in clear.items()) + corners
    added = tuple(_present(event, count, Added) for event, count in clear.items()) + corners
    return (removed,) if removed == added else (removed, added)


def _cornered(bag: Bag, adjacency: Adjacency) -> CountedPair:
    """All that has only a Renyi guarantee, together."""
    from sordina.accounting.rdp import ORDERS, corner_loss, curve

    return CountedPair(Plain(corner_loss(ORDERS, curve(bag, adjacency, ORDERS))), 1, mirrored=True)


def loss_of(event: Event) -> PrivacyLoss:
    """The loss of an event that is not sampled."""
    if isinstance(event, Gaussian):
        return GaussianLoss(event.noise_multiplier)
    if isinstance(event, Laplace):
        return LaplaceLoss(event.noise_multiplier)
    if isinstance(event, PureDP):
        return ResponseLoss(event.epsilon)
    if isinstance(event, ApproximateDP):
        return ResponseLoss(event.epsilon, event.delta)
    raise Unsupported(f"the pld accountant does not know {type(event).__name__}.")


def _present(event: Event, count: int, sampled: Callable[[PrivacyLoss, float], DominatingPair]) -> CountedPair:
    if isinstance(event, PoissonSampled):
        return CountedPair(sampled(loss_of(event.event), event.rate), count)
    if isinstance(event, GroupSampled) and isinstance(event.event, Gaussian):
        noise = event.event.noise_multiplier
        return CountedPair(Plain(BinomialLoss(noise, event.rate, event.size, swapped=sampled is Added)), count)
    refuse_fixed_size(event)
    refuse_shuffled(event)
    return CountedPair(Plain(loss_of(event)), count)


def _replaced(event: Event, count: int) -> CountedPair:
    if isinstance(event, Shuffled):
        return CountedPair(Plain(shuffle_loss(event)), count, mirrored=True)
    if isinstance(event, FixedSizeSampled):
        return CountedPair(Removed(loss_of(event.event), event.batch_size / event.population), count, mirrored=True)
    if isinstance(event, PoissonSampled):
        if isinstance(event.event, Gaussian):
            return CountedPair(TwoSided(event.event.noise_multiplier, event.rate), count)
        refuse_opaque_poisson(event)
        return CountedPair(Removed(loss_of(event.event), event.rate), count, mirrored=True)
    return CountedPair(Plain(loss_of(event)), count)


def largest_loss(direction: Direction) -> float:
    """The sum of the largest finite losses: with this epsilon, delta is what leaks."""
    return math.fsum(term.count * term.pair.span(0.0)[1] for term in direction)


def leak(direction: Direction) -> float:
    """The probability that some loss is infinite."""
    kept = math.fsum(term.count * math.log1p(-min(term.pair.leak, 1 - 1e-15)) for term in direction)
    return max(0.0, -math.expm1(kept))
