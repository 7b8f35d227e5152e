"""The tightest accountant: composes the distributions of privacy losses themselves (Koskela et al. 2020).

Every answer is an upper bound whatever the grid: see `grid` for rounding, `convolve` for truncation and floating
point. The grid only decides how tight it is, and is refined until it is tight: connecting the dots adds a variance
of h^2/6 per mechanism, so halving the step h quarters the excess, and the difference of two answers tells it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sordina._arguments import checked
from sordina.accounting._pld.composition import HockeyStickCurve, TooFine, compose, discretise, variance
from sordina.accounting._pld.pairs import Direction, dominating, largest_loss, leak
from sordina.accounting.accountants import Accountant, accountant
from sordina.accounting.canonical import Bag, check_queried, exposed, normal_form
from sordina.accounting.events import Event, Gaussian, RandomStopping, ZeroConcentrated
from sordina.accounting.gaussian import gaussian_delta, gaussian_epsilon
from sordina.privacy import Adjacency, check_delta

_EXCESS = 1e-4
"""Relative excess of variance that the first grid may cause."""
_REFINEMENTS = 4
"""How often the step is halved at most."""
_NEGLIGIBLE = 1e-8
"""Part of delta that may be spent on losses beyond the grid."""
_LEAST = 1e-290
"""The least mass worth resolving."""
_TINY = 1e-320
"""The least mass whose quantile is computed: what lies beyond it counts as an infinite loss, as always."""
_POINTS = 1 << 21
"""Grid points of one mechanism, and of their sum, that a first grid does not pass: it is coarser instead."""

Judge = Callable[[Direction, float], float]
"""From a direction and a step of the grid to an upper bound."""


@dataclass(frozen=True)
class PLD:
    """Privacy loss distributions, refined to a relative ``tolerance`` in epsilon; inf means the first grid will do.

    >>> from sordina.accounting.events import Gaussian, PoissonSampled, Repeated
    >>> round(PLD().epsilon(Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1000), 1e-5), 3)
    1.828
    """

    tolerance: float = 2e-5
    name: str = "pld"

    @checked
    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least epsilon >= 0 at ``delta``, rounded up."""
        check_delta(delta)
        bag = normal_form(event)
        if not bag:
            return 0.0
        if exposed(bag):
            return math.inf
        if (noise := _only_gaussian(bag)) is not None:
            return gaussian_epsilon(noise, delta)
        if _only_renyi(bag):
            return _renyi_judge(bag).epsilon(event, delta, adjacency)
        directions = dominating(bag, adjacency)
        leaks = max(leak(direction) for direction in directions)
        most = max(largest_loss(direction) for direction in directions)
        ceiling = most if leaks <= delta else math.inf
        if delta == 0 or most == 0:  # without losses but the leak there is nothing to compose
            return ceiling

        def judge(direction: Direction, step: float) -> float:
            log_delta = math.log(delta)
            curve = _curve(direction, step, _NEGLIGIBLE * delta, log_delta=log_delta)
            while curve.starts_late(delta) and log_delta < -1e-3:
                log_delta /= 2
                curve = _curve(direction, step, _NEGLIGIBLE * delta, log_delta=log_delta)
            return curve.epsilon(delta)

        return min(ceiling, self._largest(directions, judge))

    @checked
    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least delta at ``epsilon``, rounded up."""
        check_queried(epsilon)
        bag = normal_form(event)
        if not bag:
            return 0.0
        if exposed(bag):
            return 1.0
        if (noise := _only_gaussian(bag)) is not None:
            return gaussian_delta(noise, epsilon)
        if _only_renyi(bag):
            return _renyi_judge(bag).delta(event, epsilon, adjacency)

        directions = dominating(bag, adjacency)
        if epsilon >= max(largest_loss(direction) for direction in directions):
            return max(leak(direction) for direction in directions)
        tails = dict.fromkeys(directions, 1e-20)

        def judge(direction: Direction, step: float) -> float:
            answer = _curve(direction, step, tails[direction], epsilon=epsilon).delta(epsilon)
            while tails[direction] > max(_NEGLIGIBLE * answer, _LEAST):
                tails[direction] = max(tails[direction] ** 2, _LEAST)
                answer = _curve(direction, step, tails[direction], epsilon=epsilon).delta(epsilon)
            return answer

        return self._largest(directions, judge)

    def _largest(self, directions: tuple[Direction, ...], judge: Judge) -> float:
        """The largest answer, refining only a direction whose coarse answer is not already below a refined one."""
        steps = {direction: first_step(direction) for direction in directions}
        answers = {direction: judge(direction, step) for direction, step in steps.items()}
        largest = 0.0
        for direction in sorted(directions, key=lambda one: -answers[one]):
            if answers[direction] > largest:
                largest = max(largest, self._refined(direction, steps[direction], answers[direction], judge))
        return largest

    def _refined(self, direction: Direction, step: float, answer: float, judge: Judge) -> float:
        for _ in range(_REFINEMENTS if math.isfinite(self.tolerance) else 0):
            step /= 2
            finer = judge(direction, step)
            if not answer - finer > 3 * self.tolerance * finer:
                return min(answer, finer)
            answer = finer
        return answer


def deltas_at(event: Event, epsilons: Sequence[float], adjacency: Adjacency) -> list[float]:
    """Upper bounds on delta at many epsilons from one composition, tightest in their middle."""
    bag = normal_form(event)
    if exposed(bag) or _only_renyi(bag):
        judge = PLD(tolerance=math.inf)
        return [judge.delta(event, epsilon, adjacency) for epsilon in epsilons]
    if (noise := _only_gaussian(bag)) is not None:
        return [gaussian_delta(noise, epsilon) for epsilon in epsilons]
    middle = sorted(epsilons)[len(epsilons) // 2]
    curves = [
        _curve(direction, first_step(direction), 1e-20, epsilon=middle) for direction in dominating(bag, adjacency)
    ]
    return [max(curve.delta(epsilon) for curve in curves) for epsilon in epsilons]


def _only_gaussian(bag: Bag) -> float | None:
    only = next(iter(bag))
    return only.noise_multiplier if len(bag) == 1 and isinstance(only, Gaussian) else None


def _only_renyi(bag: Bag) -> bool:
    return all(isinstance(event, ZeroConcentrated | RandomStopping) for event in bag)


def _renyi_judge(bag: Bag) -> Accountant:
    return accountant("rdp" if any(isinstance(event, RandomStopping) for event in bag) else "zcdp")


def first_step(direction: Direction) -> float:
    """A step that adds at most a relative `_EXCESS` to the variance of the total loss."""
    count = sum(term.count for term in direction)
    total = math.fsum(term.count * variance(term.pair, term.mirrored) for term in direction)
    widest = max(high - low for low, high in (term.pair.span(1e-30) for term in direction))
    return max(math.sqrt(6 * _EXCESS * total / count), max(widest, 20 * math.sqrt(total)) / _POINTS)


def _curve(
    direction: Direction, step: float, tail: float, log_delta: float | None = None, epsilon: float | None = None
) -> HockeyStickCurve:
    """The composed curve on a grid of ``step`` or coarser, at most ``tail`` of delta spent on losses beyond it."""
    count = sum(term.count for term in direction)
    parts = [(discretise(term.pair, step, max(tail / count, _TINY), term.mirrored), term.count) for term in direction]
    try:
        return compose(parts, log_delta, epsilon)
    except TooFine:
        return _curve(direction, 2 * step, tail, log_delta, epsilon)
