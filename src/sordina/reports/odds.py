"""What a guarantee means to a person: the odds of an attacker who sees the model.

(epsilon, delta)-DP allows only tests of "was this record used?" that obey, FPR and TPR being the shares of false and
right accusations,

    TPR <= e^eps FPR + delta    and    1 - FPR <= e^eps (1 - TPR) + delta .

Every number below follows from these two lines (Kairouz, Oh and Viswanath 2015) and is rounded up when it is shown:
"at most" has to stay true.
"""

from __future__ import annotations

import math
from decimal import Decimal

from sordina.types import check_delta, check_epsilon, format_up


def odds_factor(epsilon: float) -> float:
    """How many times the odds may grow: ``e^eps`` (exact for delta = 0; else save for a probability of delta).

    >>> round(odds_factor(math.log(20)), 6)
    20.0
    """
    check_epsilon(epsilon, allow_infinite=True)
    return math.exp(epsilon) if epsilon < 700 else math.inf


def best_guess(epsilon: float, delta: float = 0.0) -> float:
    """The share of right guesses of the best attacker, to whom both answers were equally likely beforehand.

    ``(e^eps + delta) / (1 + e^eps)``: half of ``1 + TPR - FPR`` at its largest.

    >>> round(best_guess(math.log(19)), 6)
    0.95
    """
    check_epsilon(epsilon, allow_infinite=True)
    check_delta(delta)
    shrink = math.exp(-epsilon)
    return min(1.0, (1 + delta * shrink) / (1 + shrink))


def most_found(epsilon: float, delta: float, fpr: float) -> float:
    """The largest TPR at ``fpr``: the share of members found by who wrongly accuses ``fpr`` of the others.

    >>> round(most_found(math.log(10), 0.0, 0.01), 6)
    0.1
    """
    check_epsilon(epsilon, allow_infinite=True)
    check_delta(delta)
    if math.isinf(epsilon):
        return 1.0
    by_size = math.inf if epsilon > 700 else math.exp(epsilon) * fpr + delta
    by_power = 1 - math.exp(-epsilon) * (1 - delta - fpr)
    return max(0.0, min(1.0, by_size, by_power))


def rounded_up(value: float, digits: int = 3) -> str:
    """``value`` in ``digits`` significant digits, never below it.

    >>> rounded_up(20.0855), rounded_up(0.1), rounded_up(123456.0)
    ('20.1', '0.100', '124,000')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    shown = float(format_up(value, digits))
    places = digits - 1 - Decimal(repr(shown)).adjusted()
    return f"{shown:,.{max(0, places)}f}" if places < 6 else f"{shown:.{digits - 1}e}"


def percent_up(share: float) -> str:
    """A share in per cent with one digit after the point, never below it, and 100 only if it is all.

    >>> percent_up(0.9526), percent_up(0.5), percent_up(0.99999)
    ('95.3 %', '50 %', 'more than 99.9 %')
    """
    if 0.999 < share < 1:
        return "more than 99.9 %"
    tenths = math.ceil(round(share * 1000, 9))
    return f"{tenths / 10:g} %"
