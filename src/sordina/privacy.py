"""What a guarantee says: adjacency, unit, trust, budget, guarantee, and what it means as odds."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import Enum

from sordina._arguments import checked
from sordina.errors import InvalidInput

# The few words everybody shares: adjacency, unit, trust, guarantee, budget.
#
# A privacy claim is never a bare pair of numbers. It says against which neighbours (adjacency), for whom (unit) and
# trusting whom (trust) it holds; claims that differ in these do not add up.


class Adjacency(str, Enum):
    """Which data sets count as neighbours."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    def __str__(self) -> str:
        return self.value


class Unit(str, Enum):
    """Whose presence the guarantee hides."""

    RECORD = "record"
    USER = "user"
    GROUP = "group"

    def __str__(self) -> str:
        return self.value


class Trust(str, Enum):
    """Who sees the raw data: the *model* of privacy."""

    CENTRAL = "central"
    LOCAL = "local"
    SHUFFLED = "shuffled"
    METRIC = "metric"
    NETWORK = "network"

    def __str__(self) -> str:
        return self.value


def check_epsilon(epsilon: float, *, allow_infinite: bool = False) -> float:
    """Return ``epsilon`` if it is a positive number, else refuse it."""
    if math.isnan(epsilon) or epsilon <= 0 or (math.isinf(epsilon) and not allow_infinite):
        raise InvalidInput(f"epsilon must be a positive{'' if allow_infinite else ' finite'} number, got {epsilon}.")
    return float(epsilon)


def check_delta(delta: float) -> float:
    """Return ``delta`` if it lies in [0, 1), else refuse it."""
    if not 0 <= delta < 1:
        raise InvalidInput(f"delta must lie in [0, 1), got {delta}. A usual choice is below 1/(number of records).")
    return float(delta)


def check_positive(name: str, value: float) -> float:
    """Return ``value`` if it is positive and finite, else refuse it by ``name``."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"{name} must be positive and finite, got {value}.")
    return float(value)


def check_seed(seed: int) -> int:
    """Return ``seed`` if every generator takes it, a whole number from 0 to 2^64 - 1, else refuse it."""
    try:
        whole = operator.index(seed)
    except TypeError:
        whole = -1
    if isinstance(seed, bool) or not 0 <= whole < 1 << 64:
        shown = seed if isinstance(seed, (int, float)) else f"a {type(seed).__name__}"
        raise InvalidInput(f"a seed is a whole number from 0 to 2^64 - 1, got {shown}.")
    return whole


def format_up(value: float, digits: int = 4) -> str:
    """``value`` in at most ``digits`` significant digits, never below it: what a claim is shown with.

    >>> format_up(1.00049), format_up(3.0), format_up(2.9999), format_up(1e-5, 3), format_up(1.001e-5, 3)
    ('1.001', '3', '3', '1e-05', '1.01e-05')
    """
    return _format(value, digits, ROUND_CEILING)


def format_down(value: float, digits: int = 4) -> str:
    """The same, never above it: what a proven lower bound is shown with.

    >>> format_down(1.9999), format_down(math.inf)
    ('1.999', 'inf')
    """
    return _format(value, digits, ROUND_FLOOR)


def _format(value: float, digits: int, rounding: str) -> str:
    if not value or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))
    kept = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding)
    return f"{float(kept):.{digits}g}"


def delta_warning(delta: float, units: int | float | None, unit: str = "record") -> str | None:
    """What to say of a ``delta`` that is no smaller than one in ``units``; None if it is, or if nobody knows.

    Publishing one record out of n, drawn at random and in full, is (0, 1/n)-DP: such a delta excludes nothing.

    Args:
        delta: The delta of the claim.
        units: How many records, users or clients the claim protects.
        unit: What one of them is called.

    >>> delta_warning(1e-5, 60000) is None, delta_warning(1e-3, 1000)[:43]
    (True, 'WARNING: delta 0.001 is not below 1/1,000 (')
    """
    if not units or not delta or delta * units < 1:
        return None
    return (
        f"WARNING: delta {format_up(delta, 3)} is not below 1/{units:,.0f} (one in the number of {unit}s): publishing "
        f"one {unit} in full, drawn at random, would meet it. Choose a far smaller delta."
    )


def delta_limit(delta: float, unit: str = "record") -> str | None:
    """For how many a ``delta`` is small, where their number is not public; None if it is zero.

    Args:
        delta: The delta of the claim.
        unit: What one of those it protects is called.

    >>> delta_limit(1e-6, "user")[:59]
    'Delta 1e-06 suits far fewer than 1,000,000 users: with that'
    """
    if not delta:
        return None
    most = 1 / delta
    number = f"{most:,.0f}" if most < 1e12 else f"{most:.0e}"
    return (
        f"Delta {format_up(delta, 3)} suits far fewer than {number} {unit}s: with that many or more, publishing one of "
        "them in full, drawn at random, would meet it."
    )


@checked
@dataclass(frozen=True)
class Budget:
    """What may be spent: (epsilon, delta). ``epsilon = inf`` means no privacy at all, and is said so wherever it shows.

    >>> Budget(epsilon=3, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon, allow_infinite=True))
        object.__setattr__(self, "delta", check_delta(self.delta))


@checked
@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) with everything that gives the numbers their meaning.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def group(self, size: int) -> Guarantee:
        """The guarantee for a group of ``size`` units: ``(s eps, s e^((s-1) eps) delta)``, 000 chapter 1.

        >>> Guarantee(0.5, 0.0).group(3).epsilon
        1.5
        """
        if size < 1:
            raise InvalidInput(f"a group has at least one member, got {size}.")
        grown = (size - 1) * self.epsilon + math.log(size) + math.log(self.delta) if self.delta else -math.inf
        delta = math.exp(grown) if grown < 0 else 1.0
        unit = self.unit if size == 1 else Unit.GROUP
        return Guarantee(size * self.epsilon, delta, self.adjacency, unit, self.trust)

    def __str__(self) -> str:
        claim = f"({format_up(self.epsilon)}, {format_up(self.delta, 3)})-DP"
        return f"{claim} per {self.unit}, {self.adjacency} neighbours, {self.trust} model"


# What a guarantee means to a person: the odds of an attacker who sees the model.
#
# (epsilon, delta)-DP allows only tests of "was this record used?" that obey, FPR and TPR being the shares of false and
# right accusations,
#
#     TPR <= e^eps FPR + delta    and    1 - FPR <= e^eps (1 - TPR) + delta .
#
# Every number below follows from these two lines (Kairouz, Oh and Viswanath 2015) and is rounded up when it is shown:
# "at most" has to stay true.


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
