"""Exact samplers over the integers, and the dyadic grid on which real numbers are released."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.errors import InvalidInput

# Exact samplers over the integers: only uniform integers are drawn and compared, nothing is rounded.
#
# Every draw is exact if the generator's bits are fair: no logarithm, no exponential, no floating point.
#
# ====================  =====================================================================================
# `bernoulli_exp`       true with probability ``exp(-a/b)``; Canonne, Kamath and Steinke 2020, Algorithm 1
# `geometric`           ``P(k) ~ exp(-k/t)``, k >= 0; ibid., Algorithm 2 without its sign
# `discrete_laplace`    ``P(k) ~ exp(-|k| t/s)``; ibid., Algorithm 2
# `discrete_gaussian`   ``P(k) ~ exp(-k^2 t^2 / (2 s^2))``; Karney 2016, Algorithm D
# `floored_laplace`     ``floor(L)``, L a real Laplace variable of scale t
# `floored_gaussian`    ``floor(N)``, N a real normal variable of standard deviation t; Karney 2016, Algorithm N
# ====================  =====================================================================================
#
# The last two are the ideal real-valued variables, rounded down: by post-processing they protect exactly as the
# textbook mechanism does. An exponential variable rounded down is geometric, so `floored_laplace` needs no more than
# that. Scales may be up to 2^50; no product then leaves 64 bits.

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def bernoulli_exp(numerator: Integers, denominator: int, rng: np.random.Generator) -> Flags:
    """For each ``0 <= a <= denominator``: true with probability ``exp(-a / denominator)``."""

    def shrinks(active: Integers, turn: int) -> Flags:
        return rng.integers(0, denominator * turn, size=active.size) < numerator[active]

    return _odd_run(numerator.size, shrinks)


def _odd_run(size: int, hit: Callable[[Integers, int], Flags]) -> Flags:
    """Whether the first miss falls on an odd turn; if turn i hits with chance ``c/i``, so with probability exp(-c)."""
    result = np.zeros(size, dtype=np.bool_)
    active, turn = np.arange(size), 1
    while active.size:
        hits = hit(active, turn)
        result[active[~hits]] = turn % 2 == 1
        active, turn = active[hits], turn + 1
    return result


def _unit_geometric(size: int, rng: np.random.Generator) -> Integers:
    """``P(k) ~ exp(-k)``: how often a coin of chance 1/e comes up before it fails.

    For c = 1 the first turn of `_odd_run` is sure to hit and is left out, which swaps odd and even.
    """

    def hit(active: Integers, turn: int) -> Flags:
        hits: Flags = rng.integers(0, turn + 1, size=active.size) == 0
        return hits

    count = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while active.size:
        active = active[~_odd_run(active.size, hit)]
        count[active] += 1
    return count


def _gather(size: int, rate: float, propose: Callable[[int], Integers]) -> Integers:
    """``size`` accepted proposals, in order, where ``propose(m)`` returns those of m that were accepted."""
    kept, missing = [np.empty(0, dtype=np.int64)], size
    while missing > 0:
        accepted = propose(int(missing / rate) + 8)[:missing]
        kept.append(accepted)
        missing -= accepted.size
    return np.concatenate(kept)


def _fair(size: int, rng: np.random.Generator) -> Flags:
    return rng.integers(0, 2, size=size, dtype=np.bool_)


def _signed(magnitude: Integers, negative: Flags) -> Integers:
    return np.where(negative, -magnitude, magnitude)


def geometric(scale: int, size: int, rng: np.random.Generator) -> Integers:
    """``P(k) = (1 - e^{-1/scale}) e^{-k/scale}`` for k = 0, 1, 2, ..."""

    def propose(count: int) -> Integers:
        low = rng.integers(0, scale, size=count)
        low = low[bernoulli_exp(low, scale, rng)]
        return low + scale * _unit_geometric(low.size, rng)

    return _gather(size, 0.63, propose)


def discrete_laplace(numerator: int, denominator: int, size: int, rng: np.random.Generator) -> Integers:
    """``P(k) ~ exp(-|k| denominator / numerator)``."""

    def propose(count: int) -> Integers:
        magnitude = geometric(numerator, count, rng) // denominator
        negative = _fair(count, rng)
        keep = ~(negative & (magnitude == 0))
        kept: Integers = _signed(magnitude, negative)[keep]
        return kept

    return _gather(size, 0.5, propose)


def floored_laplace(scale: int, size: int, rng: np.random.Generator) -> Integers:
    """``floor(L)`` for L with density ``e^{-|x|/scale} / (2 scale)``."""
    magnitude = geometric(scale, size, rng)
    return np.where(_fair(size, rng), magnitude, -1 - magnitude)


def floored_gaussian(scale: int, size: int, rng: np.random.Generator) -> Integers:
    """``floor(N)`` for N normal with mean 0 and standard deviation ``scale``.

    ``|N| = scale (k + x)`` with x in [0, 1). Of ``scale x`` the whole part is kept; 63 further bits are drawn to
    compare with. Two numbers that agree in all these bits are told apart by a coin, as the missing bits would do; that
    it may fall differently for a second comparison with the same x changes the law by less than 2^-110.
    """

    def propose(count: int) -> Integers:
        k = _karney_strip(count, rng)
        whole = rng.integers(0, scale, size=k.size)
        bits = rng.integers(0, 1 << 63, size=k.size)

        def below(active: Integers) -> Flags:
            other = rng.integers(0, scale, size=active.size)
            result = other < whole[active]
            tied = np.flatnonzero(other == whole[active])
            further, own = rng.integers(0, 1 << 63, size=tied.size), bits[active[tied]]
            result[tied] = (further < own) | ((further == own) & _fair(tied.size, rng))
            return result

        magnitude = (k * scale + whole)[_karney_accepts(k, below, rng)]
        return np.where(_fair(magnitude.size, rng), magnitude, -1 - magnitude)

    return _gather(size, 0.4, propose)


def discrete_gaussian(numerator: int, denominator: int, size: int, rng: np.random.Generator) -> Integers:
    """``P(k) ~ exp(-k^2 / (2 sigma^2))`` with ``sigma = numerator / denominator``."""
    width = -(-numerator // denominator)

    def propose(count: int) -> Integers:
        k = _karney_strip(count, rng)
        magnitude = -(-k * numerator // denominator) + rng.integers(0, width, size=k.size)
        excess = magnitude * denominator - k * numerator
        negative = _fair(k.size, rng)
        keep = (excess < numerator) & ~(negative & (magnitude == 0))
        k, magnitude, excess, negative = k[keep], magnitude[keep], excess[keep], negative[keep]

        def below(active: Integers) -> Flags:
            result: Flags = rng.integers(0, numerator, size=active.size) < excess[active]
            return result

        return _signed(magnitude, negative)[_karney_accepts(k, below, rng)]

    return _gather(size, 0.3, propose)


def _karney_strip(count: int, rng: np.random.Generator) -> Integers:
    """Steps 1 and 2: k with chance ``~ e^{-k/2}``, kept with probability ``e^{-k(k-1)/2}``."""
    k = geometric(2, count, rng)
    return k[_unit_geometric(count, rng) >= k * (k - 1) // 2]


def _karney_accepts(k: Integers, below: Callable[[Integers], Flags], rng: np.random.Generator) -> Flags:
    """Step 4: true with probability ``exp(-x (2k + x) / 2)``, where ``below(i)`` is true with probability ``x_i``.

    As k + 1 coins of chance ``exp(-c)``, ``c = x (2k + x) / (2k + 2) <= 1``.
    """
    result = np.ones(k.size, dtype=np.bool_)
    coin = 0
    while (tossing := np.flatnonzero(result & (k >= coin))).size:

        def hit(active: Integers, turn: int, tossing: Integers = tossing) -> Flags:
            index = tossing[active]
            part = rng.integers(0, 2 * k[index] + 2)
            second: Flags = (part < 2 * k[index]) | ((part == 2 * k[index]) & below(index))
            hits: Flags = second & below(index) & (rng.integers(0, turn, size=index.size) == 0)
            return hits

        result[tossing] = _odd_run(tossing.size, hit)
        coin += 1
    return result


# Real numbers on a grid of powers of two, so that a proof about reals stays true of the floats that are released.
#
# Adding floating-point noise to a floating-point secret leaks: the lowest bits of the sum tell which secret it was
# (Mironov 2012). Laplace and Gaussian noise are therefore added in whole multiples of a public step g, about 2^-40 of
# the noise scale:
#
# 1. the secret x is rounded to the nearest multiple m g. Neighbours that differ by S then differ by at most ``S +
# g`` per
#    coordinate that changed, so by ``S + n g`` in L1 and ``S + sqrt(n) g`` in L2; the noise is scaled to that;
# 2. ``floor(m + Z)`` is drawn exactly, Z real-valued with a scale rounded up to whole multiples of g (see `exact`);
# 3. ``(floor(m + Z) + 1/2) g`` is computed from that integer.
#
# Step 3 and the floor are post-processing of the ideal mechanism applied to step 1, so its guarantee and its accounting
# event hold exactly. This assumes that the stated sensitivity bounds what is passed in, as a float; a sum that was
# itself accumulated in floating point may have moved a little further than the same sum over the reals.

_FINENESS = 40
_RANGE = (2.0**-900, 2.0**900)
_ROUND_UP = 1 + 2.0**-48
_MOST_UNITS = 1 << 44


@checked
@dataclass(frozen=True)
class DyadicGrid:
    """The multiples of ``step``, a power of two."""

    step: float

    @staticmethod
    def under(scale: float, fineness: int = _FINENESS) -> DyadicGrid:
        """The grid whose step is ``2^-fineness`` of ``scale``, rounded down to a power of two.

        >>> DyadicGrid.under(8.0).step == 2.0**-37
        True
        """
        if not _RANGE[0] <= scale <= _RANGE[1]:
            raise InvalidInput(f"a noise scale of {scale:.3g} is out of range: change the unit of the query.")
        return DyadicGrid(math.ldexp(1.0, math.frexp(scale)[1] - 1 - fineness))

    def units(self, scale: float) -> int:
        """``scale`` in steps, rounded up."""
        units = scale / self.step * _ROUND_UP
        if not units <= _MOST_UNITS:
            raise InvalidInput(f"a noise scale of {scale:.3g} is out of range for this many components.")
        return math.ceil(units)

    def round(self, value: NDArray[np.float64], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """``value`` in steps, to the nearest whole number. Beyond 2^1000 steps it saturates: no two move apart."""
        limit = math.ldexp(min(self.step, 1.0), 1000)
        counts = np.asarray(np.clip(value, -limit, limit, out=out))
        counts /= self.step
        return np.rint(counts, out=counts)

    def add(self, counts: NDArray[np.float64], noise: NDArray[np.int64]) -> NDArray[np.float64]:
        """The middle of the cell that ``counts + noise`` names.

        Noise stays below 2^53 steps (512 scales or more: never more than an exp(-512) chance that it does not), so the
        float sum is the true one, correctly rounded: a function of it.
        """
        return (counts + noise.reshape(counts.shape) + 0.5) * self.step
