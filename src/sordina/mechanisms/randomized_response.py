"""Randomised response (Warner 1965), binary and K-ary: privacy before anybody else sees the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import check_confidence, is_tensor, number, open_integers, settle, source, whole, word
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon

_BITS = 63


@checked
@dataclass(frozen=True)
class RandomizedResponse:
    """Keeps a category of ``range(categories)`` with odds ``e^epsilon`` against each other one.

    A lie is told when a 63-bit uniform integer is below the chance of lying, rounded up to 63 bits: epsilon-DP holds
    exactly, also for large epsilon.

    Args:
        unit: Whose data the guarantee speaks of: a record or a person.

    >>> RandomizedResponse(epsilon=math.log(3)).probability(1, 1)
    0.75
    """

    epsilon: float
    categories: int = 2
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        settle(
            self,
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            categories=whole("categories", self.categories, least=2),
            unit=word("unit", Unit, self.unit),
        )
        if self.epsilon < self.categories * 2.0**-60:
            raise InvalidInput(
                f"epsilon {self.epsilon} is too small to be told from 0 with {self.categories} categories."
            )

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP in the local model: any category of one respondent against any other."""
        return Guarantee(self.epsilon, 0.0, Adjacency.REPLACE_ONE, self.unit, Trust.LOCAL)

    def event(self) -> events.Event:
        """Pure epsilon-DP, for each respondent's one answer."""
        return events.PureDP(self.epsilon)

    @property
    def _lie(self) -> float:
        """``(K-1) / (e^epsilon + K - 1)``."""
        others = (self.categories - 1) * math.exp(-self.epsilon)
        return others / (1 + others)

    @property
    def _last_lie(self) -> int:
        """The largest draw of 63 bits that is a lie: rounded up, but never past the point of no information."""
        uniform = ((self.categories - 1) << _BITS) // self.categories
        return min(uniform, max(1, math.ceil(self._lie * (1 + 2.0**-48) * 2.0**_BITS))) - 1

    def probability(self, output: int, value: int) -> float:
        """``e^epsilon / (e^epsilon + K - 1)`` for the truth, ``1 / (e^epsilon + K - 1)`` for each other category."""
        return 1 - self._lie if output == value else self._lie / (self.categories - 1)

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """Each category, truthfully or not. Booleans are welcome if there are two categories."""
        integers, close = self._open(value)
        rng = source(rng)
        lies = rng.integers(0, 1 << _BITS, size=integers.shape) <= self._last_lie
        shift = rng.integers(1, self.categories, size=integers.shape)
        return close(np.where(lies, (integers + shift) % self.categories, integers))

    def estimate(self, responses: Any) -> NDArray[np.float64]:
        """The unbiased histogram of true frequencies: ``(c_k / n - q) / (p - q)``. Single bins may be negative."""
        integers, _ = self._open(responses)
        if integers.size == 0:
            raise InvalidInput("no responses to estimate from.")
        shares = np.bincount(integers.ravel(), minlength=self.categories) / integers.size
        frequencies: NDArray[np.float64] = (shares - self.probability(0, 1)) / self._contrast
        return frequencies

    @property
    def _contrast(self) -> float:
        """``p - q = (e^epsilon - 1) / (e^epsilon + K - 1)``."""
        return -math.expm1(-self.epsilon) / (1 + (self.categories - 1) * math.exp(-self.epsilon))

    def mean_squared_error(self, respondents: int, frequency: float = 0.0) -> float:
        """Of a bin whose true share is ``frequency``, the data fixed.

        ``((1-h)(e^epsilon + K - 2) + h e^epsilon (K-1)) / (n (e^epsilon - 1)^2)``. The slide of 002 gives the value for
        h = 0, an empty bin, as that of every bin (errata 14). Written in ``e^-epsilon``, so it does not overflow.
        """
        if not 0 <= number("frequency", frequency) <= 1:
            raise InvalidInput(f"frequency must lie in [0, 1], got {frequency}.")
        inverse = math.exp(-self.epsilon)
        empty = (1 - frequency) * (1 + (self.categories - 2) * inverse)
        full = frequency * (self.categories - 1)
        return inverse * (empty + full) / (whole("respondents", respondents) * math.expm1(-self.epsilon) ** 2)

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """No bin of `estimate` from ``size`` respondents is off by more, with ``confidence``, the data fixed.

        Hoeffding for each bin and a union over bins: ``sqrt(ln(2 K / beta) / (2 n)) / (p - q)``.
        """
        beta = 1 - check_confidence(confidence)
        return math.sqrt(math.log(2 * self.categories / beta) / (2 * whole("size", size))) / self._contrast

    def _open(self, value: Any) -> tuple[NDArray[np.int64], Any]:
        boolean = _is_boolean(value)
        if boolean and self.categories != 2:
            raise InvalidInput(f"booleans are two categories, but this response has {self.categories}.")
        integers, close = open_integers(value + 0 if boolean else value)
        if integers.size and (integers.min() < 0 or integers.max() >= self.categories):
            raise InvalidInput(f"categories must lie in 0..{self.categories - 1}.")
        return integers, (lambda answer: close(answer) == 1) if boolean else close


def _is_boolean(value: Any) -> bool:
    if is_tensor(value):
        return str(value.dtype) == "torch.bool"
    return isinstance(value, bool) or (isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "b")
