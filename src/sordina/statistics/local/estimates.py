"""What answers say: estimates with their standard errors and intervals, and the projection that makes shares add up."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import check_confidence

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LocalEstimate:
    """Unbiased estimates from randomised answers.

    Args:
        values: One estimate per value, or per coordinate.
        standard_errors: Of each; of the noise alone, or of noise and sampling (see ``estimate`` of a protocol).
        people: How many answers there were.
        confidence: Of every single interval.
        biased: Whether the estimates were made consistent, which moves small shares up and large ones down.
    """

    values: Floats
    standard_errors: Floats
    people: int
    confidence: float
    biased: bool = False

    @property
    def low(self) -> Floats:
        """Lower ends of the intervals, by the normal limit."""
        return self.values - self._margin

    @property
    def high(self) -> Floats:
        """Upper ends."""
        return self.values + self._margin

    @property
    def _margin(self) -> Floats:
        margin: Floats = float(ndtri(0.5 + self.confidence / 2)) * self.standard_errors
        return margin

    def consistent(self) -> LocalEstimate:
        """The nearest shares that are not negative and sum to one: post-processing, so it costs nothing.

        The intervals keep the width of the unbiased estimates.
        """
        return replace(self, values=projected(self.values), biased=True)


def projected(shares: Floats) -> Floats:
    """The point of the probability simplex nearest to ``shares`` (Duchi et al. 2008, figure 1).

    >>> projected(np.array([0.9, 0.3, -0.2])).round(2).tolist()
    [0.8, 0.2, 0.0]
    """
    ordered = np.sort(shares)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    last = int(np.flatnonzero(ordered > excess)[-1])
    result: Floats = np.maximum(shares - excess[last], 0.0)
    return result


def frequency_estimate(
    means: Floats, variances: Floats, contrast: float, base: float, people: int, confidence: float
) -> LocalEstimate:
    """From the mean score of every value: ``(mean - base) / contrast``.

    Args:
        means: Of the scores; a value's score is ``base`` on average without the value, ``base + contrast`` with it.
        variances: Of one score, for every value.
        contrast: How much a person's own value adds to its score.
        base: The score of another value.
        people: How many answers.
        confidence: Of the intervals.
    """
    errors = np.sqrt(np.maximum(variances, 0.0) / people) / contrast
    return LocalEstimate((means - base) / contrast, errors, people, check_confidence(confidence))


def some(answers: NDArray[np.generic] | Floats) -> int:
    """How many answers there are; none is refused."""
    if len(answers) == 0:
        raise InvalidInput("no answers to estimate from.")
    return len(answers)
