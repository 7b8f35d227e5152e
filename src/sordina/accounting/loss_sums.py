"""Sums of privacy losses that are kept: what was composed once is not composed again.

`convolve.compose` answers one question and forgets; here the sum itself stays, as masses on a grid of a fixed step, so
that another loss can join it later. Three things are done to a loss X on the way, and none can make an answer smaller.
An answer is ``E f(X)`` with ``f(x) = (1 - e^(epsilon - x - y))_+`` for the losses y that join later, and such an f

* grows with x: so mass may be moved to larger losses (the left end of a window, wrapped-around sums, the right end to
  infinity) and masses may be rounded up, as long as no tail ``P[X > x]`` falls; tails above 1 are cut to 1, which every
  true tail is below;
* is convex in ``e^-x``: so mass at x may be split among the neighbours ``t <= x <= t + h`` on a coarser grid such that
  the mean of ``e^-x`` stays (`coarser`): it goes up with the share ``(1 - e^(t - x)) / (1 - e^-h)``, and the variance
  grows by at most ``h^2 / 4``.

How far an answer from kept sums may exceed one from scratch: each of n losses adds at most ``h^2 / 4`` to the variance
V of the sum, hence at most ``sqrt(V + n h^2 / 4) - sqrt(V) <= sqrt(n) h / 2`` to its standard deviation; truncation and
rounding add a relative 1e-9 and `_NEGLIGIBLE` to delta with every join.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sordina.accounting.convolve import TooFine, summed
from sordina.accounting.dominating import Direction
from sordina.accounting.grid import Pmf, discretise
from sordina.accounting.pld import first_step
from sordina.accounting.window import window

_TAIL = math.log(1e-20)
"""Logarithm of the part of the tilted mass on either side of a window: sums are kept for long, so nearly all stays."""
_NEGLIGIBLE = 1e-14
"""Part of delta that may be moved to infinity by one join."""
_POINTS = 1 << 21
"""Grid points of one loss at most."""
_DEEPEST = 24
"""How often a step is halved at most, for losses that are small against the grid."""


def added(parts: Sequence[Pmf], log_delta: float) -> Pmf:
    """The sum of ``parts``, all on one grid.

    Args:
        parts: Independent losses.
        log_delta: The logarithm of the delta at which the sum will be asked; only decides where it is most exact.
    """
    return parts[0] if len(parts) == 1 else _summed([(part, 1) for part in parts], log_delta)


def loss_sum(direction: Direction, step: float, log_delta: float) -> Pmf:
    """The loss of all terms of ``direction`` on multiples of ``step``, composed on a finer grid where they are small.

    Args:
        direction: Pairs and how often each occurs.
        step: The grid's step.
        log_delta: As in `added`.

    Raises:
        TooFine: The losses reach too far for a grid of this step.
    """
    widest = max(high - low for low, high in (term.pair.span(1e-30) for term in direction))
    if widest > _POINTS * step:
        raise TooFine
    halvings = min(max(math.ceil(math.log2(step / first_step(direction))), 0), _DEEPEST)
    count = sum(term.count for term in direction)
    tail = _NEGLIGIBLE * math.exp(log_delta) / count
    while True:
        fine = step / 2**halvings
        parts = [(discretise(term.pair, fine, tail, term.mirrored), term.count) for term in direction]
        try:
            whole = parts[0][0] if count == 1 else _summed(parts, log_delta)
            return coarser(whole, 2**halvings)
        except TooFine:
            if halvings == 0:
                raise
            halvings -= 1


def coarser(pmf: Pmf, factor: int) -> Pmf:
    """``pmf`` on a grid of ``factor`` times its step.

    Args:
        pmf: Masses on the fine grid.
        factor: A power of two.
    """
    if factor == 1:
        return pmf
    first = pmf.start // factor
    lead = pmf.start - first * factor
    rows = -(-(lead + pmf.masses.size) // factor)
    padded = np.zeros(rows * factor)
    padded[lead : lead + pmf.masses.size] = pmf.masses
    table = padded.reshape(rows, factor)
    step = pmf.step * factor
    share = np.minimum(-np.expm1(-pmf.step * np.arange(factor)) / -math.expm1(-step) * (1 + 1e-12), 1.0)
    up = table @ share
    masses = np.zeros(rows + 1)
    masses[:-1] = np.maximum(table.sum(axis=1) - up, 0.0)
    masses[1:] += up
    return Pmf(step, first, masses * (1 + 1e-12), pmf.infinite, pmf.blur)


def _summed(parts: Sequence[tuple[Pmf, int]], log_delta: float) -> Pmf:
    """The sum, tilted half the way to its answer, so that the bulk and the answer's tail are equally exact."""
    step = parts[0][0].step
    low, masses, beyond = summed(parts, window(parts, log_delta / 4, None, _TAIL))
    count = sum(times for _, times in parts)
    lost = beyond - math.expm1(sum(times * math.log1p(-min(pmf.infinite, 1 - 1e-15)) for pmf, times in parts))
    masses = masses * (1 + 1e-9 + 1e-12 * count)
    tails = np.cumsum(masses[::-1])[::-1]
    right = int(np.searchsorted(-tails, -_NEGLIGIBLE * math.exp(log_delta)))  # the first point with next to nothing
    lost += float(tails[right]) if right < masses.size else 0.0
    over = int(np.searchsorted(-tails, -1.0))  # the first point whose tail is at most 1
    left = max(over - 1, 0)
    if over:
        masses[left] = 1.0 - (float(tails[over]) if over < masses.size else 0.0)
    blur = sum(times * pmf.blur for pmf, times in parts)
    return Pmf(step, low + left, masses[left : max(right, left + 1)], lost, blur)
