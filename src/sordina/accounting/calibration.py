"""How much noise a budget buys: the smallest multiplier that never overspends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from sordina._arguments import checked
from sordina.accounting.accountants import Accountant
from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.events import Event
from sordina.accounting.pld import PLD
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Budget

_LEAST, _MOST = 1e-6, 1e9
_UNSPENT = 2e-5
"""Relative part of epsilon that may stay unspent."""
_NARROW = 1e-12
"""Relative width of the bracket at which the search ends, whatever is unspent."""
_IDLE = 1e-4
"""The same where the upper end costs nothing at all: delta alone pays there, and no secant helps."""

Excess = Callable[[float], float]
"""``ln(spent / budget)`` at a noise multiplier: falls as the noise grows, and must not be positive."""


@dataclass(frozen=True)
class _Point:
    noise: float
    excess: float


@checked
def noise_multiplier(
    make_event: Callable[[float], Event],
    budget: Budget,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> float:
    """The least ``x`` with ``make_event(x)`` within ``budget``: accounted back it spends at least 99 % of epsilon.

    0 if the event costs nothing at any noise, or if the budget is infinite.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.

    >>> from sordina.accounting.events import Gaussian
    >>> round(noise_multiplier(Gaussian, Budget(1.0, 1e-5)), 2)
    3.73
    """
    judge = _accountant(accountant)

    def excess(by: Accountant, noise: float) -> float:
        spent = by.epsilon(make_event(noise), budget.delta, adjacency)
        return math.log(spent / budget.epsilon) if spent else -math.inf

    if math.isinf(budget.epsilon) or excess(judge, 0.0) <= 0:
        return 0.0
    start, slope = 1.0, -1.0
    if accountant == "pld":
        rough = PLD(tolerance=math.inf)
        start, slope = _solve(lambda noise: excess(rough, noise), start, slope, budget, 10 * _UNSPENT)
    return _solve(lambda noise: excess(judge, noise), start, slope, budget, _UNSPENT)[0]


def _solve(excess: Excess, start: float, slope: float, budget: Budget, unspent: float) -> tuple[float, float]:
    """A noise whose excess lies in [-unspent, 0], and the slope of excess against ln(noise) there.

    Secants through the last two points, in logarithms; bisections where these lead out of the bracket or take too long.
    """
    low, high = _Point(0.0, math.inf), _Point(math.inf, -math.inf)
    last, noise = None, start
    for turn in itertools.count():
        point = _Point(noise, excess(noise))
        low, high = (low, point) if point.excess <= 0 else (point, high)
        narrow = _NARROW if math.isfinite(high.excess) else _IDLE
        if high.excess >= -unspent or high.noise <= max(low.noise * (1 + narrow), _LEAST):
            break
        if low.noise > _MOST:
            raise InvalidInput(
                f"no noise multiplier up to {_MOST:g} meets epsilon {budget.epsilon:g} at delta {budget.delta:g}: "
                "some part of the spend does not shrink with the noise, or delta is 0."
            )
        if last is not None and math.isfinite(point.excess - last.excess) and point.noise != last.noise:
            slope = min((point.excess - last.excess) / math.log(point.noise / last.noise), -1e-3)
        last, noise = point, _next(point, low, high, slope, -unspent / 2, turn)
    return high.noise, slope


def _next(point: _Point, low: _Point, high: _Point, slope: float, target: float, turn: int) -> float:
    """Where to look next."""
    reach = math.log(8)
    stride = (target - point.excess) / slope if math.isfinite(point.excess) else math.copysign(reach, point.excess)
    noise = point.noise * math.exp(min(max(stride, -reach), reach))
    if low.noise == 0 or math.isinf(high.noise):
        return noise if turn < 8 else point.noise * math.exp(math.copysign(reach, stride))
    if low.noise < noise < high.noise and turn < 12:
        return noise
    return math.sqrt(low.noise) * math.sqrt(high.noise)
