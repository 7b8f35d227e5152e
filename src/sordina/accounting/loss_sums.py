"""Sums of privacy losses that are kept: what was composed once is not composed again.

`convolve.compose` answers one question and forgets; here the sum itself stays, as masses on a grid of a fixed step, so
that another loss can join it later. Three things are done to a loss X on the way, and none can make an answer smaller.
An answer is ``E f(X)`` with ``f(x) = (1 - e^(epsilon - x - y))_+`` for the losses y that join later, and such an f

* grows with x: so mass may be moved to larger losses (the left end of a window, wrapped-around sums, the right end to
  infinity) and masses may be rounded up, as long as no tail ``P[X > x]`` falls; tails above 1 are cut to 1, which every
  true tail is below;
* is convex in ``e^-x``: so mass at x may be split among the neighbours ``t <= x <= t + h`` on a coarser grid such that
  the mean of ``e^-x`` stays (`on_grid`): it goes up with the share ``(1 - e^(t - x)) / (1 - e^-h)``, and the variance
  grows by at most ``h^2 / 4``.

Steps are powers of two, so a sum on one grid is exactly one on any finer grid. The step follows the sum: it is at most
``18 S / n`` with S the sum's standard deviation and n `POINTS`, and doubles as the sum grows. How far an answer from
kept sums may exceed one from scratch: a loss that joins a sum of standard deviation S adds at most ``h^2 / 4`` to its
variance, that is a part ``(9 / n)^2`` of it, so k losses add at most a part ``k (9 / n)^2 / 2`` to the standard
deviation: 1.5e-3 for ten thousand, and usually a tenth of that. The grids of the losses themselves add at most 1e-4 to
the variance, truncation and rounding a relative 1e-9 and `_NEGLIGIBLE` to delta with every join.
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
_NEGLIGIBLE = 1e-10
"""Part of delta that one join may move to infinity, and part of the mass that it may move up to the sum's left end."""
POINTS = 1 << 14
"""Grid points over eighteen standard deviations of a sum, at least."""


def added(parts: Sequence[Pmf], log_delta: float) -> Pmf:
    """The sum of ``parts``.

    Args:
        parts: Independent losses, on grids of steps that are powers of two.
        log_delta: The logarithm of the delta at which the sum will be asked; only decides where it is most exact.
    """
    return parts[0] if len(parts) == 1 else _added(parts, step_for(parts), log_delta)


def _added(parts: Sequence[Pmf], step: float, log_delta: float) -> Pmf:
    try:
        return _summed([(on_grid(part, step), 1) for part in parts], log_delta)
    except TooFine:
        return _added(parts, 2 * step, log_delta)


def step_for(parts: Sequence[Pmf], further: float = 0.0) -> float:
    """The step of the grid to sum ``parts`` on: as the sum needs it, but no finer than any of them is.

    Args:
        parts: Independent losses.
        further: The variance of other losses that join.
    """
    wanted = 18 * math.sqrt(further + math.fsum(_variance(part) for part in parts)) / POINTS
    finest = min((part.step for part in parts), default=0.0)
    return max(2.0 ** math.floor(math.log2(wanted)) if wanted > 0 else 0.0, finest)


def _variance(pmf: Pmf) -> float:
    losses = pmf.losses
    mean = float(pmf.masses @ losses)
    return max(float(pmf.masses @ (losses - mean) ** 2), 0.0)


def loss_sum(direction: Direction, log_delta: float) -> Pmf:
    """The loss of all terms of ``direction``, on the grid that suits them.

    Args:
        direction: Pairs and how often each occurs.
        log_delta: As in `added`.
    """
    return _composed(direction, 2.0 ** math.floor(math.log2(first_step(direction))), log_delta)


def _composed(direction: Direction, step: float, log_delta: float) -> Pmf:
    count = sum(term.count for term in direction)
    tail = _NEGLIGIBLE * math.exp(log_delta) / count
    parts = [(discretise(term.pair, step, tail, term.mirrored), term.count) for term in direction]
    try:
        return parts[0][0] if count == 1 else _summed(parts, log_delta)
    except TooFine:
        return _composed(direction, 2 * step, log_delta)


def on_grid(pmf: Pmf, step: float) -> Pmf:
    """``pmf`` on the grid of ``step``: the same on a finer one, split among neighbours on a coarser one.

    Args:
        pmf: Masses on a grid whose step is a power of two times ``step``.
        step: Of the grid wanted.
    """
    if step == pmf.step:
        return pmf
    if step > pmf.step:
        return _coarser(pmf, round(step / pmf.step))
    factor = round(pmf.step / step)
    masses = np.zeros((pmf.masses.size - 1) * factor + 1)
    masses[::factor] = pmf.masses
    return Pmf(step, pmf.start * factor, masses, pmf.infinite, pmf.blur)


def _coarser(pmf: Pmf, factor: int) -> Pmf:
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
    few = int(np.searchsorted(-tails, -min(1.0, float(tails[0])) + _NEGLIGIBLE))  # before it lies next to nothing
    left = min(max(over - 1, few - 1, 0), max(right - 1, 0))
    masses[left] = min(float(tails[0]), 1.0) - (float(tails[left + 1]) if left + 1 < masses.size else 0.0)
    blur = sum(times * pmf.blur for pmf, times in parts)
    return Pmf(step, low + left, masses[left : max(right, left + 1)], lost, blur)
