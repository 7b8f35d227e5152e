"""Privacy losses on a grid, and their composition by one tilted Fourier transform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordina.accounting._numerics import Array, falling_root, fast_length
from sordina.accounting._pld.pairs import ROUNDING, DominatingPair

# Privacy losses on a grid, rounded so that no answer is ever too small ("connect the dots").
#
# The mass ``P_i`` of a bin ``(t, t + h]`` is split between its two ends so that its masses under P *and* under Q stay
# what they are: ``b`` goes up and ``a`` down, with ``a + b = P_i`` and ``a e^-t + b e^-(t+h) = Q_i``. The hockey-stick
# curve of the result meets the true curve at the grid points and follows its chords between them; the true curve is
# convex, so the result dominates (Doroshenko et al. 2022). The cost is a variance of about h^2/6 instead of a bias.


@dataclass(frozen=True)
class Pmf:
    """Mass ``masses[i]`` at the loss ``(start + i) * step``, and ``infinite`` at no finite loss."""

    step: float
    start: int
    masses: Array
    infinite: float
    blur: float
    """Every loss may be this much larger than stated."""

    @property
    def losses(self) -> Array:
        """The grid."""
        return multiples(self.step, self.start, self.start + self.masses.size)


def multiples(step: float, start: int, stop: int) -> Array:
    """``start * step, (start + 1) * step, ...`` up to, not including, ``stop * step``."""
    return np.arange(start, stop, dtype=np.float64) * step


def discretise(pair: DominatingPair, step: float, tail: float, mirrored: bool = False) -> Pmf:
    """The loss of ``pair`` on multiples of ``step``, leaving at most ``tail`` of finite loss to infinity."""
    low, high = pair.span(tail)
    start = 0 if mirrored else math.floor(low / step)
    stop = max(math.floor(high / step + 1e-6) + 1, start + 1)
    edges = multiples(step, start, stop + 1)
    cut = pair.cut(edges)
    up = np.minimum((cut.gain + cut.error) / -math.expm1(-step), cut.mass)
    masses = np.zeros(edges.size)
    masses[1:] = up
    masses[:-1] += cut.mass - up
    masses *= 1 + ROUNDING
    infinite = cut.above * (1 + ROUNDING)
    if mirrored:
        return _mirror(step, edges, masses, infinite, cut.blur)
    masses[0] += cut.below
    return Pmf(step, start, masses, infinite, cut.blur)


def _mirror(step: float, edges: Array, masses: Array, infinite: float, blur: float) -> Pmf:
    """The symmetric loss whose positive part is given: mass at -t is ``e^-t`` times that at t, and the rest at 0."""
    below = (np.exp(-edges) * masses)[:0:-1]
    rest = max(1 - infinite - float(masses[1:].sum()) - float(below.sum()), 0.0)
    both = np.concatenate([below, [rest], masses[1:]])
    return Pmf(step, 1 - edges.size, both, infinite, blur)


def variance(pair: DominatingPair, mirrored: bool = False) -> float:
    """Roughly the variance of the loss, whatever its scale, to choose a step by."""
    low, high = pair.span(1e-30)
    most = max(-low, high)
    if most <= 0:
        return 0.0
    ladder = np.geomspace(1e-12 * most, most, 257)
    edges = ladder if mirrored else np.concatenate([-ladder[::-1], ladder])
    mass = pair.cut(edges).mass
    middle = (edges[1:] + edges[:-1]) / 2
    first, second = float(mass @ middle), float(mass @ middle**2)
    if mirrored:
        first, second = 0.0, second + float((mass * np.exp(-middle)) @ middle**2)
    return max(second - first**2, 1e-6 * second)


# The hockey-stick curve ``delta(epsilon) = sum_x p(x) (1 - e^(epsilon - x))_+`` of losses on a grid.

_REACH = 600.0


@dataclass(frozen=True)
class HockeyStickCurve:
    """Upper bounds on delta at grid points. Between them delta is linear in e^epsilon, so nothing is lost there."""

    losses: Array
    deltas: Array
    shift: float
    """Rounding of the losses themselves: added to every epsilon."""

    @classmethod
    def of(
        cls, losses: Array, masses: Array, centre: float, lost: float, slack: float, shift: float
    ) -> HockeyStickCurve:
        """From masses on a grid of equal steps, ``lost`` mass that counts in full, and a relative ``slack``.

        Epsilons more than 600 below ``centre`` are not resolved.

        With tails ``S(x) = sum_(y > x) p(y)``, summation by parts gives
        ``delta(x_j) = (1 - e^-h) sum_(m >= j) e^(x_j - x_m) S(x_m)``: all terms are positive, so none cancel.
        """
        step = float(losses[1] - losses[0])
        tails = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
        kept = losses >= centre - _REACH
        losses, tails = losses[kept], tails[kept]
        fading = np.exp(np.maximum(centre - losses, -_REACH))
        sums = np.cumsum((fading * tails)[::-1])[::-1] / fading
        deltas = -math.expm1(-step) * sums
        return cls(losses, np.minimum(deltas * slack + lost, 1.0), shift)

    def starts_late(self, delta: float) -> bool:
        """Whether the epsilon at ``delta`` lies before the first grid point."""
        return bool(self.deltas[0] <= delta and self.losses[0] > 0)

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with at most ``delta``."""
        if self.deltas[-1] > delta:
            return math.inf
        at = int(np.argmax(self.deltas <= delta))
        if at == 0:
            return max(0.0, float(self.losses[0]) + self.shift)
        left, right = float(self.deltas[at - 1]), float(self.deltas[at])
        share = (left - delta) / (left - right)
        step = float(self.losses[at] - self.losses[at - 1])
        inside = math.log1p(math.expm1(step) * share) if step < 30 else step
        return max(0.0, float(self.losses[at - 1]) + inside + self.shift)

    def delta(self, epsilon: float) -> float:
        """The delta at ``epsilon``."""
        at = int(np.searchsorted(self.losses, epsilon - self.shift))
        if at == 0:
            return 1.0 if epsilon - self.shift < self.losses[0] else float(self.deltas[0])
        if at == self.losses.size:
            return float(self.deltas[-1])
        left, right = float(self.losses[at - 1]), float(self.losses[at])
        if right - left > 30:
            return float(self.deltas[at - 1])
        share = math.expm1(epsilon - self.shift - left) / math.expm1(right - left)
        return float((1 - share) * self.deltas[at - 1] + share * self.deltas[at])


# Where to look for the answer: a tilt that centres the sum of losses there, and the range of sums to resolve.
#
# All of this only decides how tight an answer is, never whether it is sound, so it works on grouped grid points.

Parts = Sequence[tuple[Pmf, int]]
"""Losses on one grid, and how often each occurs."""

_TAIL = math.log(1e-7)
"""Logarithm of the part of the tilted mass that may lie on either side of the window, and wrap around into it."""
_COARSE = 600
"""Groups of grid points on either side of 0."""
_MOVES = np.geomspace(0.05, 200.0, 40)
"""Changes of the tilt to try for Chernoff's bound, in units of 1/(standard deviation)."""


@dataclass(frozen=True)
class Cumulants:
    """``K(theta) = sum_j k_j ln sum_x p_j(x) e^(theta x)`` and its derivatives, for all parts together."""

    parts: tuple[tuple[Array, Array, int], ...]
    """Losses, logarithms of masses, count."""

    @classmethod
    def of(cls, parts: Parts, rough: bool = False) -> Cumulants:
        """Exact, or ``rough`` but fast."""
        return cls(tuple((*_points(pmf, rough), count) for pmf, count in parts))

    def each(self, theta: float) -> list[float]:
        """``ln sum_x p_j(x) e^(theta x)`` of every part."""
        return [_log_sum(logs + theta * losses) for losses, logs, _ in self.parts]

    def total(self, theta: float) -> float:
        """``K(theta)``."""
        return math.fsum(count * value for value, (_, _, count) in zip(self.each(theta), self.parts, strict=True))

    def moments(self, theta: float) -> tuple[float, float, float]:
        """``K(theta)``, and the mean ``K'`` and variance ``K''`` of the tilted sum."""
        value = mean = variance = 0.0
        for losses, logs, count in self.parts:
            tilted = logs + theta * losses
            most = float(tilted.max())
            weights = np.exp(tilted - most)
            total = float(weights.sum())
            centre = float(weights @ losses) / total
            value += count * (most + math.log(total))
            mean += count * centre
            variance += count * float(weights @ (losses - centre) ** 2) / total
        return value, mean, variance


def _points(pmf: Pmf, rough: bool) -> tuple[Array, Array]:
    losses, masses = pmf.losses, pmf.masses
    if rough and masses.size > 2 * _COARSE:
        starts = _ladder(pmf.start, masses.size)
        moments = np.add.reduceat(masses * losses, starts)
        masses = np.add.reduceat(masses, starts)
        losses = moments / np.maximum(masses, 1e-300)
    kept = masses > 0
    return losses[kept], np.log(masses[kept])


def _ladder(start: int, size: int) -> npt.NDArray[np.intp]:
    """First indices of groups of grid points that grow with their distance from loss 0."""
    rungs = np.unique(np.geomspace(1, max(abs(start), abs(start + size)) + 1, _COARSE).astype(np.intp))
    indices = np.concatenate([-rungs[::-1], [0], rungs]) - start
    return np.unique(np.clip(indices, 0, size - 1))


def _log_sum(logs: Array) -> float:
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))


@dataclass(frozen=True)
class Window:
    """The tilt, and the range of sums to resolve."""

    theta: float
    low: float
    centre: float
    """About where the answer is."""
    high: float
    beyond: float
    """The tilt of Chernoff's bound for what lies above ``high``."""


def window(parts: Parts, log_delta: float | None, epsilon: float | None, tail: float = _TAIL) -> Window:
    """The window around the answer to "which epsilon at this delta", or "which delta at this epsilon".

    Args:
        parts: The losses to add up.
        log_delta: The logarithm of that delta, or None.
        epsilon: That epsilon, or None.
        tail: Logarithm of the part of the tilted mass that may lie on either side.
    """
    rough = Cumulants.of(parts, rough=True)
    step = parts[0][0].step
    reach = sum(count * float(losses[-1] - losses[0]) for losses, _, count in rough.parts)
    gentlest, steepest = 1e-3 / max(reach, step), 50 / step

    def missed(tilt: float) -> float:
        """How far the saddle point at ``tilt`` is from what is asked, falling with the tilt."""
        value, mean, variance = rough.moments(tilt)
        if epsilon is not None:
            return epsilon - mean
        assert log_delta is not None
        # delta at the tilted mean is about e^(K - theta K') / (theta (1 + theta) sqrt(2 pi K'')).
        spread = math.log1p(tilt * math.sqrt(2 * math.pi * variance)) + math.log1p(tilt)
        return value - tilt * mean - spread - log_delta

    saddle = falling_root(missed, gentlest, steepest, 1e-2)
    _, centre, variance = rough.moments(saddle)
    # A little less tilt keeps the answer in sight and heavy right tails out of it.
    theta = saddle - min(0.2 * saddle, 1.5 / math.sqrt(variance)) if variance > 0 else saddle
    value, _, variance = rough.moments(theta)
    if variance == 0:
        return Window(theta, -math.inf, centre, math.inf, theta)
    moves = _MOVES / math.sqrt(variance)
    rights = [(rough.total(theta + move) - value - tail) / move for move in moves]
    lefts = [(value - rough.total(theta - move) + tail) / move for move in moves]
    best = int(np.argmin(rights))
    return Window(theta, max(lefts), centre, rights[best], theta + float(moves[best]))


# Composition: the loss of many mechanisms is the sum of their losses, here by one tilted Fourier transform.
#
# Masses are multiplied by ``e^(theta x)`` before the transform and divided by it afterwards (Esscher's tilt), with
# theta such that the tilted sum is centred where the answer lies. What the Fourier transform loses in absolute
# precision is then lost relative to the answer, so that a delta of 1e-12 is as exact as one of 0.1. What is not exact
# is bounded and added to delta:
#
# * sums beyond the window on the right: Chernoff's bound ``e^(K(theta') - theta' x)``;
# * sums beyond the window on the left wrap around into it, and count as the larger losses they land on;
# * rounding: an FFT of n numbers whose absolute values sum to 1 is off by at most ``6 u log2(n)`` in every
# coordinate, by
#   induction over its butterflies; the power k multiplies that by ``k |z|^(k-1)``.

_UNIT = 2.0**-53
_LONGEST = 1 << 22
"""Points of the longest transform."""


class TooFine(Exception):
    """The grid is too fine for the range of sums to resolve; take a coarser one."""


def compose(parts: Parts, log_delta: float | None = None, epsilon: float | None = None) -> HockeyStickCurve:
    """The hockey-stick curve of all ``parts`` around one of delta and epsilon; all parts share one step."""
    step = parts[0][0].step
    last = sum(count * (pmf.start + pmf.masses.size - 1) for pmf, count in parts)
    lost = -math.expm1(sum(count * math.log1p(-min(pmf.infinite, 1 - 1e-15)) for pmf, count in parts))
    shift = sum(count * pmf.blur for pmf, count in parts)
    if epsilon is not None and epsilon - shift >= step * last:
        return HockeyStickCurve(np.array([step * last]), np.array([lost]), shift)
    look = window(parts, log_delta, epsilon)
    low, masses, beyond = summed(parts, look)
    losses = multiples(step, low, low + masses.size)
    slack = 1 + 1e-9 + 1e-12 * sum(count for _, count in parts)
    return HockeyStickCurve.of(losses, masses, look.centre, lost + beyond, slack, shift)


def summed(parts: Parts, look: Window) -> tuple[int, Array, float]:
    """The masses of the sum of all ``parts`` in a window, rounded up.

    Args:
        parts: Losses on one grid, and how often each occurs.
        look: The window, and the tilt.

    Returns:
        The number of the first grid point, the masses from there on, and a bound on the mass beyond.
    """
    step = parts[0][0].step
    last = sum(count * (pmf.start + pmf.masses.size - 1) for pmf, count in parts)
    first = sum(count * pmf.start for pmf, count in parts)
    low = math.floor(max(look.low / step, first))
    high = math.ceil(min(look.high / step, last))
    size = fast_length(max(high - low + 1, 16))
    if size > _LONGEST:
        raise TooFine
    high = low + size - 1
    exact = Cumulants.of(parts)
    beyond = 0.0
    if high < last:
        beyond = math.exp(min(exact.total(look.beyond) - look.beyond * step * (high + 1) + 1e-9, 0.0))
    norms = exact.each(look.theta)
    tilted = np.roll(_tilted_power(parts, look.theta, norms, size), -((low - first) % size))
    total = math.fsum(count * norm for (_, count), norm in zip(parts, norms, strict=True))
    losses = multiples(step, low, high + 1)
    return low, np.minimum(tilted * np.exp(np.minimum(total - look.theta * losses, 700.0)), 1.0), beyond


def _tilted_power(parts: Parts, theta: float, norms: list[float], size: int) -> Array:
    """The tilted masses of the sum, modulo ``size`` grid points, rounded up."""
    precision = (6 * math.log2(size) + 16) * _UNIT
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    sensitivity = np.ones(size // 2 + 1)
    vanished = 0
    for (pmf, count), norm in zip(parts, norms, strict=True):
        transform = np.fft.rfft(_folded(pmf, theta, norm, size))
        magnitude = np.abs(transform)
        vanished += int((magnitude < precision).sum())
        sensitivity += count / np.maximum(magnitude, precision)
        product *= _power(transform, count)
    result: Array = np.fft.irfft(product, size)
    error = precision * 2 / size * (float(np.abs(product) @ sensitivity) + 4 * vanished)
    return np.maximum(result, 0.0) + error


def _power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """``base ** exponent`` by squaring: each multiplication is off by at most a few units in the last place."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def _folded(pmf: Pmf, theta: float, norm: float, size: int) -> Array:
    """Tilted masses of one part, wrapped around ``size`` grid points."""
    with np.errstate(divide="ignore"):
        tilted = np.exp(np.log(pmf.masses) + (theta * pmf.losses - norm))
    folded = np.zeros(-(-tilted.size // size) * size)
    folded[: tilted.size] = tilted
    wrapped: Array = folded.reshape(-1, size).sum(axis=0)
    return wrapped
