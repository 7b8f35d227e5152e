"""How fast something adapts as the steps go by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordina.arguments import checked
from sordina.errors import InvalidInput
from sordina.types import check_positive


@checked
@dataclass(frozen=True)
class Decay:
    """``first / (1 + step / halving) ** power``: for ever the same rate if ``halving`` is infinite.

    With power 1 the rate is half the first after ``halving`` steps, and the sum of all grows without end: any start can
    be left behind. With power 2 the sum is about ``first * halving``: what was found early stays. It does not depend
    on the data, so it is free.

    >>> Decay(0.2, 50)(50), Decay(0.2, 50, power=2)(50)
    (0.1, 0.05)
    """

    first: float
    halving: float = math.inf
    power: float = 1.0

    def __post_init__(self) -> None:
        check_positive("first rate of a schedule", self.first)
        check_positive("power of a schedule", self.power)
        if not self.halving > 0:
            raise InvalidInput(f"the number of steps until a rate has halved must be positive, got {self.halving}.")

    def __call__(self, step: int) -> float:
        """The rate at ``step``, counted from 0."""
        return self.first / math.pow(1 + step / self.halving, self.power)
