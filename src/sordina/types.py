"""The few words everybody shares: adjacency, unit, trust, guarantee, budget.

A privacy claim is never a bare pair of numbers. It says against which neighbours (adjacency), for whom (unit) and
trusting whom (trust) it holds; claims that differ in these do not add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from sordina.errors import InvalidInput


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


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) with everything that gives the numbers their meaning."""

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
        delta = min(1.0, size * math.exp((size - 1) * self.epsilon) * self.delta) if self.delta else 0.0
        unit = self.unit if size == 1 else Unit.GROUP
        return Guarantee(size * self.epsilon, delta, self.adjacency, unit, self.trust)

    def __str__(self) -> str:
        claim = f"({self.epsilon:.4g}, {self.delta:.3g})-DP"
        return f"{claim} per {self.unit}, {self.adjacency} neighbours, {self.trust} model"
