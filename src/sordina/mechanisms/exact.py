"""Exact samplers over the integers: only uniform integers are drawn and compared, nothing is rounded.

Every draw is exact if the generator's bits are fair: no logarithm, no exponential, no floating point.

====================  =====================================================================================
`bernoulli_exp`       true with probability ``exp(-a/b)``; Canonne, Kamath and Steinke 2020, Algorithm 1
`geometric`           ``P(k) ~ exp(-k/t)``, k >= 0; ibid., Algorithm 2 without its sign
`discrete_laplace`    ``P(k) ~ exp(-|k| t/s)``; ibid., Algorithm 2
`discrete_gaussian`   ``P(k) ~ exp(-k^2 t^2 / (2 s^2))``; Karney 2016, Algorithm D
`floored_laplace`     ``floor(L)``, L a real Laplace variable of scale t
`floored_gaussian`    ``floor(N)``, N a real normal variable of standard deviation t; Karney 2016, Algorithm N
====================  =====================================================================================

The last two are the ideal real-valued variables, rounded down: by post-processing they protect exactly as the textbook
mechanism does. An exponential variable rounded down is geometric, so `floored_laplace` needs no more than that.
Scales may be up to 2^50; no product then leaves 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
