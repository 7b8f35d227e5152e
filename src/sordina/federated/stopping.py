"""When to stop: no improvement of the validation loss for some rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sordina.errors import InvalidInput


@dataclass(frozen=True)
class Patience:
    """Stop after ``rounds`` validations without a new best; losses are first averaged over ``window`` validations.

    The papers use ``window = 1``, with which one lucky round among noisy ones ends a run early.

    >>> Patience(2).over([3.0, 1.0, 2.0]), Patience(2).over([3.0, 1.0, 2.0, 1.5])
    (False, True)
    """

    rounds: int
    window: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.window < 1:
            raise InvalidInput(f"patience and its window are at least 1, got {self.rounds} and {self.window}.")

    def over(self, losses: Sequence[float]) -> bool:
        """Whether it is time to stop."""
        smooth = self.smoothed(losses)
        if not smooth:
            return False
        return len(smooth) - 1 - smooth.index(min(smooth)) >= self.rounds

    def smoothed(self, losses: Sequence[float]) -> list[float]:
        """Running means over the window; a loss that is not finite counts as very bad."""
        finite = [loss if math.isfinite(loss) else 1e300 for loss in losses]
        ends = range(self.window, len(finite) + 1)
        return [sum(finite[end - self.window : end]) / self.window for end in ends]
