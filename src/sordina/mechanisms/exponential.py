"""The exponential mechanism (McSherry and Talwar 2007): choose a candidate by its score, privately."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import check_confidence, number, open_floats, settle, source, whole, word
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon, check_positive


@checked
@dataclass(frozen=True)
class Exponential:
    """Chooses candidate i with probability ``~ exp(epsilon u_i / (2 S))``, S the sensitivity of each score u_i.

    ``monotonic`` says that adding a record never lowers a score (or never raises one), as with counts; the 2 then falls
    away. It needs add/remove adjacency.

    Sampled as the largest of ``epsilon u_i / (2 S) + G_i`` with independent Gumbel noise, so no score is too large:
    this *is* report-noisy-max with Gumbel noise. What is guaranteed of the floats: only an index is released, so no low
    bits leak; the G_i are made of 106 random bits each, and the chances are those of the formula up to a relative error
    of about 2^-45, but for candidates of chance below 2^-100, which are never chosen.

    Args:
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.

    >>> mechanism = Exponential(sensitivity=1, epsilon=2)
    >>> [round(float(p), 4) for p in mechanism.probabilities([0.0, 1.0])]
    [0.2689, 0.7311]
    """

    sensitivity: float
    epsilon: float
    monotonic: bool = False
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def __post_init__(self) -> None:
        settle(
            self,
            sensitivity=check_positive("sensitivity", number("sensitivity", self.sensitivity)),
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            adjacency=word("adjacency", Adjacency, self.adjacency),
            unit=word("unit", Unit, self.unit),
            trust=word("trust", Trust, self.trust),
        )
        check_positive("sensitivity / epsilon", self.temperature)
        if not isinstance(self.monotonic, bool):
            raise InvalidInput(f"monotonic must be True or False, got {self.monotonic!r}.")
        if self.monotonic and self.adjacency is not Adjacency.ADD_REMOVE:
            raise InvalidInput("replacing a record may raise one score and lower another: monotonic needs add-remove.")

    @property
    def temperature(self) -> float:
        """What scores are divided by: ``2 S / epsilon``, or ``S / epsilon`` if monotonic."""
        return (1 if self.monotonic else 2) * self.sensitivity / self.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP."""
        return Guarantee(self.epsilon, 0.0, self.adjacency, self.unit, self.trust)

    def event(self) -> events.Event:
        """Pure epsilon-DP."""
        return events.PureDP(self.epsilon)

    def probabilities(self, scores: Any) -> NDArray[np.float64]:
        """The chance of each candidate."""
        odds = np.exp(self._weights(scores))
        chances: NDArray[np.float64] = odds / odds.sum()
        return chances

    def _weights(self, scores: Any) -> NDArray[np.float64]:
        """Log-odds against the best candidate, at most 0; those too small to write down are minus infinity."""
        floats, _ = open_floats(scores)
        if floats.ndim != 1 or floats.size == 0:
            raise InvalidInput(f"scores must be one number per candidate, got shape {floats.shape}.")
        with np.errstate(over="ignore"):
            weights: NDArray[np.float64] = (floats - floats.max()) / self.temperature
        return weights

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """The chosen of ``size`` candidates scores at most this much below the best, with probability ``confidence``.

        ``temperature ln(size / (1 - confidence))``, McSherry and Talwar 2007, Theorem 8.
        """
        return self.temperature * math.log(whole("size", size) / (1 - check_confidence(confidence)))

    def release(self, value: Any, rng: np.random.Generator | None = None) -> int:
        """The index of the chosen candidate, from the scores ``value``."""
        weights = self._weights(value)
        return int(np.argmax(weights + _gumbel(weights.size, source(rng))))

    def release_top(self, value: Any, count: int, rng: np.random.Generator | None = None) -> NDArray[np.int64]:
        """The indices of ``count`` candidates, the first chosen first, from one draw of noise.

        As choosing ``count`` times, each time without those chosen before (Durfee and Rogers 2019): so it costs `event`
        ``count`` times.

        Args:
            value: The scores.
            count: How many candidates to choose.
            rng: Source of noise; a secure one if None.
        """
        weights = self._weights(value)
        if whole("count", count) > weights.size:
            raise InvalidInput(f"cannot choose {count} of {weights.size} candidates.")
        noisy = weights + _gumbel(weights.size, source(rng))
        return np.argsort(-noisy, kind="stable")[:count].astype(np.int64)


def _gumbel(size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Standard Gumbel draws ``-ln(-ln(1 - v))``; v keeps full precision near 0, where large values come from."""
    high, low = rng.integers(0, 1 << 53, size=(2, size))
    v = np.minimum(high * 2.0**-53 + (low + 0.5) * 2.0**-106, 1 - 2.0**-53)
    draws: NDArray[np.float64] = -np.log(-np.log1p(-v))
    return draws
