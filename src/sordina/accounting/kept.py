"""What a long past costs, kept in a form that one more event joins quickly, whatever the number of events before it.

=====================  ==========================================================================================
accountant             what is kept
=====================  ==========================================================================================
pld                    `KeptLosses`: the distribution of the summed losses on a grid (see `loss_sums`), and sums for
                       what merges exactly: Gaussians, zero-concentrated and randomly stopped events
rdp                    `KeptDivergences`: the Renyi divergences of everything, which add up
gdp                    `KeptShift`: mu^2, which adds up, beside `KeptLosses`, which bounds it from below
zcdp, basic            nothing: they judge from scratch, in about 0.1 ms an event
advanced               nothing: every event's share of delta changes with their number; about 2 ms an event
=====================  ==========================================================================================

Every sum is rounded up when something joins it, so a kept past never costs less than the same past judged from scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np

from sordina.accounting import rdp
from sordina.accounting.convolve import TooFine, compose
from sordina.accounting.dominating import Direction, Term, dominating, largest_loss, leak
from sordina.accounting.events import Event, Gaussian, RandomStopping, ZeroConcentrated
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.accounting.gdp import approximate, mu
from sordina.accounting.grid import Pmf, discretise, variance
from sordina.accounting.loss_sums import added, loss_sum, on_grid, step_for
from sordina.accounting.losses import GaussianLoss
from sordina.accounting.normal import Bag, exposed, normal_form
from sordina.accounting.pairs import Plain
from sordina.accounting.profile import corner_loss
from sordina.accounting.special import Array
from sordina.accounting.zcdp import ZCDP
from sordina.types import Adjacency

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
            _added([part.stopped for part in parts]),
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
        stopped = _added([part.stopped for part in parts])
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


def _added(curves: Sequence[Numbers]) -> Numbers:
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
        terms += (Term(Plain(GaussianLoss(inverse**-0.5)), 1),)
    if rho or stopped:
        curve = rho * _ORDERS + (np.array(stopped) if stopped else 0.0)
        terms += (Term(Plain(corner_loss(_ORDERS, curve)), 1, mirrored=True),)
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
