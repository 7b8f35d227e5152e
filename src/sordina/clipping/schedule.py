"""How fast something adapts as the steps go by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordina.errors import InvalidInput
from sordina.types import check_positive


@dataclass(frozen=True)
class Decay:
    """``first / (1 + step / halving)``: half the first rate after ``halving`` steps; for ever the same if infinite.

    Its sum grows like ``first * halving * log(steps)``, so that any start can be left behind, while single steps become
    small enough to settle. It does not depend on the data, so it is free.

    >>> Decay(0.2, 50)(50)
    0.1
    """

    first: float
    halving: float = math.inf

    def __post_init__(self) -> None:
        check_positive("first rate of a schedule", self.first)
        if not self.halving > 0:
            raise InvalidInput(f"the number of steps until a rate has halved must be positive, got {self.halving}.")

    def __call__(self, step: int) -> float:
        """The rate at ``step``, counted from 0."""
        return self.first / (1 + step / self.halving)
