"""What a long past costs, kept in a form that one more event joins quickly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np

from sordina.accounting import rdp
from sordina.accounting._numerics import Array
from sordina.accounting._pld.composition import Pmf, TooFine, compose, discretise, summed, variance, window
from sordina.accounting._pld.losses import GaussianLoss
from sordina.accounting._pld.pairs import CountedPair, Direction, Plain, dominating, largest_loss, leak
from sordina.accounting.canonical import Bag, exposed, normal_form
from sordina.accounting.composition import ZCDP, approximate, mu
from sordina.accounting.events import Event, Gaussian, RandomStopping, ZeroConcentrated
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.accounting.pld import first_step
from sordina.accounting.rdp import corner_loss
from sordina.privacy import Adjacency

# Sums of privacy losses that are kept: what was composed once is not composed again.
#
# `convolve.compose` answers one question and forgets; here the sum itself stays, as masses on a grid of a fixed step,
# so that another loss can join it later. Three things are done to a loss X on the way, and none can make an answer
# smaller. An answer is ``E f(X)`` with ``f(x) = (1 - e^(epsilon - x - y))_+`` for the losses y that join later, and
# such an f
#
# * grows with x: so mass may be moved to larger losses (the left end of a window, wrapped-around sums, the right end to
#   infinity) and masses may be rounded up, as long as no tail ``P[X > x]`` falls; tails above 1 are cut to 1, which
# every
#   true tail is below;
# * is convex in ``e^-x``: so mass at x may be split among the neighbours ``t <= x <= t + h`` on a coarser grid such
# that
#   the mean of ``e^-x`` stays (`on_grid`): it goes up with the share ``(1 - e^(t - x)) / (1 - e^-h)``, and the variance
#   grows by at most ``h^2 / 4``.
#
# Steps are powers of two, so a sum on one grid is exactly one on any finer grid. The step follows the sum: it is at
# most ``18 S / n`` with S the sum's standard deviation and n `POINTS`, and doubles as the sum grows. How far an answer
# from kept sums may exceed one from scratch: a loss that joins a sum of standard deviation S adds at most ``h^2 / 4``
# to its variance, that is a part ``(9 / n)^2`` of it, so k losses add at most a part ``k (9 / n)^2 / 2`` to the
# standard deviation: 1.5e-3 for ten thousand, and usually a tenth of that. The grids of the losses themselves add at
# most 1e-4 to the variance, truncation and rounding a relative 1e-9 and `_NEGLIGIBLE` to delta with every join.

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


# What a long past costs, kept in a form that one more event joins quickly, whatever the number of events before it.
#
# =====================  ==========================================================================================
# accountant             what is kept
# =====================  ==========================================================================================
# pld                    `KeptLosses`: the distribution of the summed losses on a grid (see `loss_sums`), and sums for
#                        what merges exactly: Gaussians, zero-concentrated and randomly stopped events
# rdp                    `KeptDivergences`: the Renyi divergences of everything, which add up
# gdp                    `KeptShift`: mu^2, which adds up, beside `KeptLosses`, which bounds it from below
# zcdp, basic            nothing: they judge from scratch, in about 0.1 ms an event
# advanced               nothing: every event's share of delta changes with their number; about 2 ms an event
# =====================  ==========================================================================================
#
# Every sum is rounded up when something joins it, so a kept past never costs less than the same past judged from
# scratch.

_ORDERS = rdp.ORDERS
_UP = 1 + 2.0**-51
"""What a sum is multiplied by when something joins it."""


@dataclass(frozen=True)
class Question:
    """What will be asked of a kept past: its epsilon at ``delta``."""

    accountant: str
    delta: float
    adjacency: Adjacency

    @property
    def log_delta(self) -> float:
        """The logarithm of delta; of next to nothing for 0, where no distribution is looked at."""
        return math.log(max(self.delta, 1e-290))


class KeptPast(Protocol):
    """A part of the past: joins others, and tells what all cost together."""

    def joined(self, others: Sequence[KeptPast], question: Question) -> KeptPast:
        """This and ``others`` as one."""
        ...

    def epsilon(self, others: Sequence[KeptPast], question: Question) -> float:
        """What this and ``others`` cost together."""
        ...


def keeps(accountant: str) -> bool:
    """Whether ``accountant`` has a form in which a past is kept."""
    return accountant in _MAKERS


@lru_cache(maxsize=64)
def kept(event: Event, question: Question) -> KeptPast:
    """``event`` as a part of a past.

    Args:
        event: What happened.
        question: What will be asked.

    Raises:
        Unsupported: The accountant does not know the event.
    """
    return _MAKERS[question.accountant](event, question)


Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class KeptLosses:
    """A past as pld sees it; every tuple has an element per direction (see `dominating`)."""

    losses: tuple[Pmf, ...]
    """Summed losses of all that has to be convolved; empty if nothing has."""
    ceilings: Numbers
    """Sums of the largest finite losses."""
    unleaked: Numbers
    """Logarithms of the probability that no loss is infinite."""
    inverse_squares: float = 0.0
    """``sum nu^-2`` of the Gaussians."""
    rho: float = 0.0
    """``sum rho`` of the zero-concentrated events."""
    stopped: Numbers = ()
    """Renyi divergences of the randomly stopped events; empty if there are none."""
    exposed: bool = False

    @classmethod
    def of(cls, event: Event, question: Question) -> KeptLosses:
        """One event."""
        bag = normal_form(event)
        both = 1 if question.adjacency is Adjacency.REPLACE_ONE else 2
        none = (0.0,) * both
        if exposed(bag):
            return cls((), none, none, exposed=True)
        gaussians = [part.noise_multiplier for part in bag if isinstance(part, Gaussian)]
        rho = math.fsum(part.rho for part in bag if isinstance(part, ZeroConcentrated))
        stops: Bag = {part: count for part, count in bag.items() if isinstance(part, RandomStopping)}
        rest: Bag = {part: count for part, count in bag.items() if not isinstance(part, _MERGED)}
        stopped = tuple(rdp.curve(stops, question.adjacency, _ORDERS).tolist()) if stops else ()
        sums: tuple[Pmf, ...] = ()
        ceilings = unleaked = none
        if rest:
            directions = dominating(rest, question.adjacency)
            directions = directions * (both // len(directions))
            ceilings = tuple(largest_loss(one) * _UP for one in directions)
            unleaked = tuple(math.log1p(-min(leak(one), 1 - 1e-15)) for one in directions)
            if question.delta > 0:
                made = {one: loss_sum(one, question.log_delta) for one in dict.fromkeys(directions)}
                sums = tuple(made[one] for one in directions)
        inverse = math.fsum(noise**-2 for noise in gaussians) * _UP
        return cls(sums, ceilings, unleaked, inverse, rho, stopped)

    def joined(self, others: Sequence[KeptPast], question: Question) -> KeptLosses:
        """Convolved, and added up."""
        parts = self._all(others)
        both = {tuple(map(id, sums)): sums for sums in _convolved(parts)}
        made = {one: added(sums, question.log_delta) for one, sums in both.items() if sums}
        return KeptLosses(
            tuple(made[tuple(map(id, sums))] for sums in _convolved(parts) if sums),
            tuple(math.fsum(one) * _UP for one in zip(*(part.ceilings for part in parts), strict=True)),
            tuple(math.fsum(one) * _UP for one in zip(*(part.unleaked for part in parts), strict=True)),
            math.fsum(part.inverse_squares for part in parts) * _UP,
            math.fsum(part.rho for part in parts) * _UP,
            _added_kept([part.stopped for part in parts]),
            any(part.exposed for part in parts),
        )

    def epsilon(self, others: Sequence[KeptPast], question: Question) -> float:
        """As `PLD.epsilon`, on the grid of the kept sums."""
        parts = self._all(others)
        if any(part.exposed for part in parts):
            return math.inf
        delta = question.delta
        inverse = math.fsum(part.inverse_squares for part in parts)
        rho = math.fsum(part.rho for part in parts)
        stopped = _added_kept([part.stopped for part in parts])
        rest = any(any(part.ceilings) for part in parts)
        if not rest and not rho and not stopped:
            return gaussian_epsilon(inverse**-0.5, delta) if inverse else 0.0
        if not rest and not inverse:
            return _renyi(rho, stopped, delta)
        terms = _merged(inverse, rho, stopped)
        ceilings = [math.fsum(one) for one in zip(*(part.ceilings for part in parts), strict=True)]
        leaks = [-math.expm1(math.fsum(one)) for one in zip(*(part.unleaked for part in parts), strict=True)]
        ceiling = math.inf
        if 1 - (1 - max(leaks)) * (1 - leak(terms)) <= delta:
            ceiling = max(ceilings) + largest_loss(terms)
        if delta == 0:
            return ceiling
        distinct = {tuple(map(id, sums)): sums for sums in _convolved(parts)}
        return min(ceiling, max(_asked(sums, terms, question) for sums in distinct.values()))

    def _all(self, others: Sequence[KeptPast]) -> list[KeptLosses]:
        return [self, *(other for other in others if isinstance(other, KeptLosses))]


_MERGED = (Gaussian, ZeroConcentrated, RandomStopping)


def _added_kept(curves: Sequence[Numbers]) -> Numbers:
    """Renyi divergences add up; an empty one is that of nothing."""
    there = [curve for curve in curves if curve]
    if len(there) < 2:
        return there[0] if there else ()
    return tuple((np.sum(there, axis=0) * _UP).tolist())


def _convolved(parts: Sequence[KeptLosses]) -> tuple[tuple[Pmf, ...], ...]:
    """For each direction what is to be convolved."""
    return tuple(zip(*(part.losses for part in parts if part.losses), strict=True)) or ((),)


def _merged(inverse: float, rho: float, stopped: Numbers) -> Direction:
    """Terms for the Gaussians and for what has only a Renyi guarantee."""
    terms: Direction = ()
    if inverse:
        terms += (CountedPair(Plain(GaussianLoss(inverse**-0.5)), 1),)
    if rho or stopped:
        curve = rho * _ORDERS + (np.array(stopped) if stopped else 0.0)
        terms += (CountedPair(Plain(corner_loss(_ORDERS, curve)), 1, mirrored=True),)
    return terms


def _renyi(rho: float, stopped: Numbers, delta: float) -> float:
    if not stopped:
        return ZCDP().epsilon(ZeroConcentrated(rho), delta)
    return rdp.epsilon_from(_ORDERS, rho * _ORDERS + np.array(stopped), delta)


def _asked(sums: tuple[Pmf, ...], terms: Direction, question: Question) -> float:
    """The epsilon of one direction."""
    further = math.fsum(term.count * variance(term.pair, term.mirrored) for term in terms)
    step, log_delta = step_for(sums, further), question.log_delta
    while True:
        parts = [(on_grid(pmf, step), 1) for pmf in sums]
        parts += [(discretise(one.pair, step, 1e-9 * question.delta, one.mirrored), one.count) for one in terms]
        try:
            curve = compose(parts, log_delta)
        except TooFine:
            step *= 2
            continue
        if not curve.starts_late(question.delta) or log_delta > -1e-3:
            return curve.epsilon(question.delta)
        log_delta /= 2


@dataclass(frozen=True)
class KeptDivergences:
    """A past as rdp sees it."""

    divergences: Numbers
    unleaked: float
    pure: float
    """The epsilon at the delta that leaks: inf unless all is pure."""
    empty: bool
    exposed: bool = False

    @classmethod
    def of(cls, event: Event, question: Question) -> KeptDivergences:
        """One event."""
        bag = normal_form(event)
        if exposed(bag):
            return cls((0.0,) * _ORDERS.size, 0.0, math.inf, False, True)
        leaked, rest = rdp.split_leak(bag)
        curve = rdp.curve(rest, question.adjacency, _ORDERS)
        return cls(tuple(curve.tolist()), math.log1p(-min(leaked, 1 - 1e-15)), rdp.pure_epsilon(rest), not rest)

    def joined(self, others: Sequence[KeptPast], question: Question) -> KeptDivergences:
        """Added up."""
        parts = [self, *(other for other in others if isinstance(other, KeptDivergences))]
        total: Array = np.sum([part.divergences for part in parts], axis=0) * _UP
        return KeptDivergences(
            tuple(total.tolist()),
            math.fsum(part.unleaked for part in parts) * _UP,
            math.fsum(part.pure for part in parts) * _UP,
            all(part.empty for part in parts),
            any(part.exposed for part in parts),
        )

    def epsilon(self, others: Sequence[KeptPast], question: Question) -> float:
        """As `RDP.epsilon`."""
        whole = self.joined(others, question)
        leaked, delta = -math.expm1(whole.unleaked), question.delta
        if whole.exposed:
            return math.inf
        if whole.empty:
            return 0.0 if leaked <= delta else math.inf
        if delta <= leaked:
            return whole.pure if delta == leaked else math.inf
        return rdp.epsilon_from(_ORDERS, np.array(whole.divergences), (delta - leaked) / (1 - leaked))


@dataclass(frozen=True)
class KeptShift:
    """A past as gdp sees it."""

    squares: float
    """``sum mu^2``."""
    unleaked: float
    approximate: bool
    empty: bool
    losses: KeptLosses

    @classmethod
    def of(cls, event: Event, question: Question) -> KeptShift:
        """One event."""
        bag, losses = normal_form(event), KeptLosses.of(event, question)
        if losses.exposed:
            return cls(math.inf, 0.0, False, False, losses)
        leaked, rest = rdp.split_leak(bag)
        square = mu(rest, question.adjacency) ** 2 * _UP
        return cls(square, math.log1p(-min(leaked, 1 - 1e-15)), approximate(rest), not rest, losses)

    def joined(self, others: Sequence[KeptPast], question: Question) -> KeptShift:
        """Added up."""
        parts = [self, *(other for other in others if isinstance(other, KeptShift))]
        return KeptShift(
            math.fsum(part.squares for part in parts) * _UP,
            math.fsum(part.unleaked for part in parts) * _UP,
            any(part.approximate for part in parts),
            all(part.empty for part in parts),
            self.losses.joined([part.losses for part in parts[1:]], question),
        )

    def epsilon(self, others: Sequence[KeptPast], question: Question) -> float:
        """As `GDP.epsilon`."""
        parts = [self, *(other for other in others if isinstance(other, KeptShift))]
        below = [part.losses for part in parts[1:]]
        if any(part.losses.exposed for part in parts):
            return math.inf
        leaked, delta = -math.expm1(math.fsum(part.unleaked for part in parts)), question.delta
        if all(part.empty for part in parts):
            return 0.0 if leaked <= delta else math.inf
        if delta <= leaked:
            return self.losses.epsilon(below, question)
        shift = math.sqrt(math.fsum(part.squares for part in parts) * _UP)
        limit = gaussian_epsilon(1 / shift, (delta - leaked) / (1 - leaked))
        exact = not any(part.approximate for part in parts)
        return limit if exact else max(limit, self.losses.epsilon(below, question))


_MAKERS: dict[str, Callable[[Event, Question], KeptPast]] = {
    "pld": KeptLosses.of,
    "rdp": KeptDivergences.of,
    "gdp": KeptShift.of,
}
