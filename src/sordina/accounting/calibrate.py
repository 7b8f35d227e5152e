"""How much noise a budget buys: the smallest multiplier that never overspends."""

from __future__ import annotations

import math
from collections.abc import Callable

from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.events import Event
from sordina.errors import InvalidInput
from sordina.types import Adjacency, Budget

_LEAST, _MOST = 1e-6, 1e9


def noise_multiplier(
    make_event: Callable[[float], Event],
    budget: Budget,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> float:
    """The least ``x`` with ``make_event(x)`` within ``budget``; accounted back it spends 99 % to 100 % of epsilon.

    >>> from sordina.accounting.events import Gaussian
    >>> round(noise_multiplier(Gaussian, Budget(1.0, 1e-5)), 3)
    3.731
    """
    judge = _accountant(accountant)
    if math.isinf(budget.epsilon):
        return 0.0

    def spends(noise: float) -> float:
        return judge.epsilon(make_event(noise), budget.delta, adjacency)

    low, high = 0.5, 1.0
    while spends(high) > budget.epsilon:
        low, high = high, 2 * high
        if high > _MOST:
            raise InvalidInput(
                f"no noise multiplier up to {_MOST:g} meets {budget}: the event has a part no noise hides."
            )
    while spends(low) <= budget.epsilon:
        low, high = low / 2, low
        if high < _LEAST:
            return high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spends(middle) <= budget.epsilon else (middle, high)
    return high
