"""The mean of vectors: in a ball with Gaussian noise, in a box by a few coordinates of each person."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sordina._arguments import checked
from sordina.accounting import events, noise_multiplier
from sordina.errors import InvalidInput
from sordina.mechanisms.mechanism import check_confidence, number, open_floats, settle, source, whole, word
from sordina.privacy import Adjacency, Budget, Guarantee, Trust, Unit, check_delta, check_positive
from sordina.random.noise import add_gaussian
from sordina.statistics.local.coins import Floats, LocalEstimate, PureAnswer, local_epsilon, some
from sordina.statistics.local.means import Hybrid, check_range

_BELOW = 1 - 2.0**-40
"""Vectors are shortened a little further than asked, which makes up for the rounding of their norms."""


@checked
@dataclass(frozen=True)
class GaussianVector:
    """Vectors clipped to a ball of ``radius``, each with Gaussian noise: (epsilon, delta)-DP for each.

    *Proof.* Any two clipped vectors are at most ``2 radius`` apart, and the noise is ``noise_multiplier`` times that,
    drawn with the exact law of the rounded Gaussian mechanism (`sordina.random.noise`).

    Args:
        dimensions: Of the vectors.
        radius: The largest norm; longer vectors are shortened.
        epsilon: Of every answer.
        delta: Of every answer, above 0.
        unit: Who answers.
    """

    dimensions: int
    radius: float
    epsilon: float
    delta: float
    unit: Unit = Unit.USER
    name = "gaussian"

    def __post_init__(self) -> None:
        settle(
            self,
            dimensions=whole("dimensions", self.dimensions),
            radius=check_positive("radius", number("radius", self.radius)),
            epsilon=local_epsilon(self.epsilon),
            delta=check_delta(number("delta", self.delta)),
            unit=word("unit", Unit, self.unit),
        )
        if not self.delta:
            raise InvalidInput("Gaussian noise needs a delta above 0; for pure epsilon-DP use BoxVector.")

    @cached_property
    def noise_multiplier(self) -> float:
        """The least that (epsilon, delta) allows."""
        return noise_multiplier(events.Gaussian, Budget(self.epsilon, self.delta), Adjacency.REPLACE_ONE)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on every coordinate."""
        return 2 * self.radius * self.noise_multiplier

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta)-DP in the local model."""
        return Guarantee(self.epsilon, self.delta, Adjacency.REPLACE_ONE, self.unit, Trust.LOCAL)

    def event(self) -> events.Event:
        """A Gaussian mechanism."""
        return events.Gaussian(self.noise_multiplier)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Floats:
        """One noised vector per row."""
        rows = _rows(values, self.dimensions)
        scale = np.abs(rows).max(axis=1, keepdims=True)
        scaled = np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)
        norms = scale * np.sqrt((scaled**2).sum(axis=1, keepdims=True))
        factors = np.minimum(1.0, np.divide(self.radius * _BELOW, norms, out=np.ones_like(norms), where=norms > 0))
        answers = np.ascontiguousarray(rows * factors)
        add_gaussian(answers, self.sigma, source(generator))
        return answers

    def estimate(self, answers: Any, *, confidence: float = 0.95, population: bool = False) -> LocalEstimate:
        """The mean of every coordinate, of these people or (``population``) of those they stand for.

        Args:
            answers: What `randomize` returned.
            confidence: Of every single interval.
            population: The people are a random sample.
        """
        rows = _rows(answers, self.dimensions)
        people = some(rows)
        if population:
            spread = rows.std(axis=0, ddof=1) if people > 1 else np.full(self.dimensions, math.inf)
        else:
            spread = np.full(self.dimensions, self.sigma)
        return LocalEstimate(rows.mean(axis=0), spread / math.sqrt(people), people, check_confidence(confidence))

    def error(self, people: int) -> float:
        """Of one coordinate of the mean."""
        return self.sigma / math.sqrt(whole("people", people))


@checked
@dataclass(frozen=True)
class BoxVector(PureAnswer):
    """Vectors in [low, high]^d: k random coordinates of each are asked, at ``epsilon / k`` (Wang et al. 2019).

    *Proof.* Which coordinates are asked does not depend on the vector; each of the k answers is ``epsilon / k``-DP by
    `Hybrid`, and they add up. k is ``epsilon / 2.5``, at least 1.

    An answer is two rows: the numbers of the coordinates, and their answers.

    Args:
        dimensions: Of the vectors.
        low: The least value of a coordinate.
        high: The largest.
        epsilon: Of every person's answer.
        unit: Who answers.
    """

    dimensions: int
    low: float
    high: float
    epsilon: float
    unit: Unit = Unit.USER
    name = "box"

    def __post_init__(self) -> None:
        low, high = check_range(self.low, self.high)
        settle(
            self,
            dimensions=whole("dimensions", self.dimensions),
            low=low,
            high=high,
            epsilon=local_epsilon(self.epsilon),
            unit=word("unit", Unit, self.unit),
        )

    @property
    def asked(self) -> int:
        """k."""
        return max(1, min(self.dimensions, math.floor(self.epsilon / 2.5)))

    @property
    def _one(self) -> Hybrid:
        return Hybrid(self.low, self.high, self.epsilon / self.asked)

    def randomize(self, values: Any, generator: np.random.Generator | None = None) -> Floats:
        """One answer of shape (2, k) per row."""
        rows, rng = _rows(values, self.dimensions), source(generator)
        if self.asked == 1:
            places = rng.integers(0, self.dimensions, size=(len(rows), 1))
        else:
            places = rng.integers(0, 1 << 63, size=rows.shape).argsort(axis=1)[:, : self.asked]
        answers = self._one.randomize(np.take_along_axis(rows, places, axis=1), rng)
        return np.stack([places.astype(float), answers.reshape(places.shape)], axis=1)

    def estimate(self, answers: Any, *, confidence: float = 0.95) -> LocalEstimate:
        """The mean of the answers about every coordinate; NaN and an infinite error where nobody was asked.

        Args:
            answers: What `randomize` returned.
            confidence: Of every single interval.
        """
        given = np.asarray(answers, float)
        if given.ndim != 3 or given.shape[1:] != (2, self.asked):
            raise InvalidInput(f"answers must have the shape (people, 2, {self.asked}), as `randomize` returns them.")
        people = some(given)
        numbers, told = given[:, 0].reshape(-1), given[:, 1].reshape(-1)
        if not np.isin(numbers, np.arange(self.dimensions)).all() or not np.isfinite(told).all():
            raise InvalidInput(f"coordinates are whole numbers from 0 to {self.dimensions - 1}, answers finite.")
        places = numbers.astype(np.int64)
        counts, sums, squares = (
            np.bincount(places, weights=weights, minlength=self.dimensions) for weights in (None, told, told**2)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(counts > 0, sums / counts, np.nan)
            spread = np.maximum(squares / counts - means**2, 0.0) * counts / (counts - 1)
            errors = np.where(counts > 1, np.sqrt(spread / counts), np.inf)
        return LocalEstimate(means, errors, people, check_confidence(confidence))

    def error(self, people: int) -> float:
        """Of one coordinate, for the worst values, if as many are asked about it as are on average."""
        one = self._one.error(1) ** 2
        return math.sqrt(one * self.dimensions / self.asked / whole("people", people))


def _rows(values: Any, dimensions: int) -> Floats:
    floats, _ = open_floats(values)
    rows = floats.reshape(1, -1) if floats.ndim == 1 else floats
    if rows.ndim != 2 or rows.shape[1] != dimensions:
        raise InvalidInput(f"vectors must be rows of {dimensions} numbers.")
    return rows
