"""The sparse vector technique: many questions "is it above?", paid for by the yeses only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import BudgetRefused, InvalidInput
from sordina.mechanisms.exact import DyadicGrid, Integers, floored_laplace
from sordina.mechanisms.mechanism import check_confidence, number, open_floats, settle, source, tail, whole, word
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_epsilon, check_positive

_FINENESS = 20
_FAR = 2.0**60


@checked
@dataclass(frozen=True)
class SparseVector:
    """AboveThreshold: says of a stream of queries which lie above ``threshold``, and halts after ``limit`` that do.

    The threshold gets noise ``Lap(S / e1)`` once, each query ``Lap(2 limit S / e2)``; ``e1 + e2 = epsilon`` in the
    proportion ``1 : (2 limit)^(2/3)`` that minimises the variance of their difference (Lyu, Su and Li 2017, Algorithm 7
    and section 4.2). One (epsilon)-DP price for the whole stream, however long; queries may depend on earlier answers.

    Noise and queries live on an integer grid of 2^-20 of the smaller scale, and are sampled and compared exactly there.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.

    >>> mechanism = SparseVector(sensitivity=1, epsilon=50, threshold=100)
    >>> from sordina.random import seeded
    >>> mechanism.release([3, 40, 180, 5], seeded(0)).tolist()
    [False, False, True]
    """

    sensitivity: float
    epsilon: float
    threshold: float
    limit: int = 1
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def __post_init__(self) -> None:
        settle(
            self,
            sensitivity=check_positive("sensitivity", number("sensitivity", self.sensitivity)),
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            threshold=number("threshold", self.threshold),
            limit=whole("limit", self.limit),
            adjacency=word("adjacency", Adjacency, self.adjacency),
            unit=word("unit", Unit, self.unit),
            trust=word("trust", Trust, self.trust),
        )
        if not math.isfinite(self.threshold):
            raise InvalidInput(f"threshold must be finite, got {self.threshold}.")
        if not 0 < min(self._shares) < math.inf:
            raise InvalidInput(f"epsilon {self.epsilon} is too small to be shared among {self.limit} answers.")
        self._units(self.query_scale)
        if abs(self.threshold) > _FAR * self.grid.step:
            raise InvalidInput(f"threshold {self.threshold} is too far out for noise of this scale.")

    @property
    def _shares(self) -> tuple[float, float]:
        ratio: float = (2 * self.limit) ** (2 / 3)
        return self.epsilon / (1 + ratio), self.epsilon * ratio / (1 + ratio)

    @property
    def threshold_scale(self) -> float:
        """Scale of the noise on the threshold, ``S / e1``."""
        return self.sensitivity / self._shares[0]

    @property
    def query_scale(self) -> float:
        """Scale of the noise on each query, ``2 limit S / e2``."""
        return 2 * self.limit * self.sensitivity / self._shares[1]

    @property
    def grid(self) -> DyadicGrid:
        """Where noise and queries live."""
        return DyadicGrid.under(min(self.threshold_scale, self.query_scale), _FINENESS)

    def threshold_noise(self, size: int, rng: np.random.Generator) -> Integers:
        """Draws of the threshold's noise, in steps of the grid."""
        return floored_laplace(self._units(self.threshold_scale), size, rng)

    def query_noise(self, size: int, rng: np.random.Generator) -> Integers:
        """Draws of the queries' noise, in steps of the grid."""
        return floored_laplace(self._units(self.query_scale), size, rng)

    def _units(self, scale: float) -> int:
        """``scale`` in steps, raised for the one step by which rounding raises the sensitivity."""
        return self.grid.units(scale * (1 + self.grid.step / self.sensitivity))

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP for the whole stream of answers."""
        return Guarantee(self.epsilon, 0.0, self.adjacency, self.unit, self.trust)

    def event(self) -> events.Event:
        """Pure epsilon-DP, once per stream."""
        return events.PureDP(self.epsilon)

    def error_bound(self, confidence: float, size: int = 1) -> float:
        """With ``confidence``, all of ``size`` answers are right but for queries this close to the threshold.

        Half of the failure probability goes to the threshold's noise, half to the largest of the queries'.
        """
        half = (1 + check_confidence(confidence)) / 2
        threshold = -math.log(tail(half, 1)) * self._units(self.threshold_scale)
        queries = -math.log(tail(half, size)) * self._units(self.query_scale)
        return (threshold + queries + 4) * self.grid.step

    def watch(self, rng: np.random.Generator | None = None) -> Watch:
        """Start one stream, to be asked query by query."""
        return Watch(self, source(rng))

    def release(self, value: Any, rng: np.random.Generator | None = None) -> NDArray[np.bool_]:
        """The answers to the queries ``value``, in order, up to the halt: at most ``limit`` of them true."""
        return self.watch(rng).ask_all(value)


class Watch:
    """One stream of a `SparseVector`: the noisy threshold, and how many yeses are left. Both are its only state."""

    def __init__(self, mechanism: SparseVector, rng: np.random.Generator) -> None:
        self._mechanism = mechanism
        self._rng = rng
        threshold = int(mechanism.grid.round(np.array(mechanism.threshold)))
        self._bar = threshold + int(mechanism.threshold_noise(1, rng)[0])
        self._left = mechanism.limit

    @property
    def halted(self) -> bool:
        """Whether all its yeses are given."""
        return self._left == 0

    def ask(self, value: float) -> bool:
        """Whether one more query lies above the threshold."""
        return bool(self.ask_all([number("query", value)])[0])

    def ask_all(self, values: Any) -> NDArray[np.bool_]:
        """Answers in order; those after the halt are missing."""
        if self.halted:
            raise BudgetRefused(
                "this sparse vector has halted: its answers are given. Start another, at its full cost."
            )
        floats, _ = open_floats(values)
        if floats.ndim != 1:
            raise InvalidInput(f"queries must be one number each, got shape {floats.shape}.")
        mechanism = self._mechanism
        steps = np.clip(mechanism.grid.round(floats), -_FAR, _FAR).astype(np.int64)
        above: NDArray[np.bool_] = steps + mechanism.query_noise(floats.size, self._rng) >= self._bar
        halt = np.flatnonzero(above)[: self._left]
        if halt.size == self._left:
            above = above[: halt[-1] + 1]
        self._left -= halt.size
        return above
