"""Who takes part in a step: Poisson samples, samples of a fixed size, and persons with many rows.

The sampler decides the adjacency: a Poisson sample is accounted under add/remove, a fixed-size sample under
replace-one (errata 3). Nobody else says it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.accounting.events import Event, FixedSizeSampled, PoissonSampled
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency

__all__ = ["PADDING", "CyclicPoisson", "FixedSize", "Indices", "Poisson", "Sampler", "Users"]


# The seam of this room: a sampler draws batches and knows the event that drawing them causes.
#
# The sampler decides the adjacency: a Poisson sample is accounted under add/remove, a fixed-size sample under
# replace-one (errata 3). Nobody else says it again.

Indices = NDArray[np.int64]


class Sampler(Protocol):
    """Who takes part in a step."""

    @property
    def adjacency(self) -> Adjacency:
        """The neighbours under which the event holds."""
        ...

    @property
    def expected_batch_size(self) -> float:
        """The public number that sums are divided by."""
        ...

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """The units of one batch, out of ``size`` units present."""
        ...

    def event(self, event: Event) -> Event:
        """What a step costs that does ``event`` on a drawn batch."""
        ...


# Every unit takes part independently, with the same probability.


@renamed(batch="batch_size")
@checked
@dataclass(frozen=True)
class Poisson:
    """Poisson sampling: the size of a batch is random, and may be zero.

    ``population`` is a public number, such as a census figure or a round number near the size of the data; the
    guarantee rests on the rate ``batch_size / population`` alone, so it holds however many units are really present.

    Args:
        batch_size: The expected number of units in a batch.
        population: A public number near the number of units.

    >>> round(Poisson(batch_size=512, population=60000).rate, 6)
    0.008533
    """

    batch_size: float
    population: int

    def __post_init__(self) -> None:
        if not 0 < self.batch_size <= self.population:
            raise InvalidInput(
                f"the expected batch size must lie in (0, population], got {self.batch_size} of {self.population}."
            )

    @property
    def rate(self) -> float:
        """The probability with which each unit takes part."""
        return self.batch_size / self.population

    @property
    def adjacency(self) -> Adjacency:
        """Add/remove."""
        return Adjacency.ADD_REMOVE

    @property
    def expected_batch_size(self) -> float:
        """``batch_size``."""
        return self.batch_size

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """Toss a coin for each of ``size`` units; of many, draw how far it is from one that takes part to the next."""
        if size >= _MANY and self.rate < 0.05:
            return _sparse(size, self.rate, rng)
        return np.flatnonzero(rng.random(size) < self.rate)

    def event(self, event: Event) -> Event:
        """``event`` on a Poisson sample."""
        return PoissonSampled(self.rate, event)


_MANY = 200_000


def _sparse(size: int, rate: float, rng: np.random.Generator) -> Indices:
    """Heads of ``size`` independent coins: the gaps between them are geometric."""
    found, last = [], -1
    while last < size:
        gaps = rng.geometric(rate, int(1.1 * rate * (size - last)) + 16)
        places = last + np.cumsum(np.minimum(gaps, size + 1))
        found.append(places[places < size])
        last = int(places[-1])
    return np.concatenate(found)


# Every unit has one turn in so many steps, for noise that is correlated over them.


@checked
@dataclass(frozen=True)
class CyclicPoisson:
    """Poisson samples of one part of the data after the other: step t draws from part ``t mod parts``.

    Every unit is given its part by a coin of its own, so that who else is there tells nothing of it; two steps in which
    it takes part lie ``parts`` steps apart at least, as `sordina.mechanisms.correlated` needs.

    Args:
        batch_size: The expected number of units in a batch.
        population: A public number near the number of units.
        parts: How many parts; 1 is `Poisson`.

    >>> round(CyclicPoisson(batch_size=512, population=60000, parts=8).rate, 6)
    0.068267
    """

    batch_size: float
    population: int
    parts: int

    def __post_init__(self) -> None:
        if self.parts < 1 or not 0 < self.batch_size * self.parts <= self.population:
            raise InvalidInput(
                f"{self.parts} parts of {self.population} units do not hold batches of {self.batch_size:g} each."
            )

    @property
    def rate(self) -> float:
        """The probability with which a unit takes part when it is its part's turn."""
        return min(1.0, self.batch_size * self.parts / self.population)

    @property
    def adjacency(self) -> Adjacency:
        """Add/remove."""
        return Adjacency.ADD_REMOVE

    @property
    def expected_batch_size(self) -> float:
        """``batch_size``."""
        return self.batch_size

    def divide(self, size: int, rng: np.random.Generator) -> Indices:
        """The part of each of ``size`` units, once for a run: as secret as the batches."""
        return rng.integers(self.parts, size=size)

    def draw_part(self, divided: Indices, step: int, rng: np.random.Generator) -> Indices:
        """The units of step ``step``, counted from 0, out of those that `divide` gave its part."""
        here = np.flatnonzero(divided == step % self.parts)
        return here[rng.random(len(here)) < self.rate]

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """Refused: a batch belongs to a step of a run."""
        raise InvalidInput("cyclic sampling draws by the number of the step: divide the units, then draw_part.")

    def event(self, event: Event) -> Event:
        """``event`` in a step that is the unit's turn; in the others it is not there."""
        return PoissonSampled(self.rate, event)


# A batch of a fixed size, uniform without replacement.


@renamed(batch="batch_size")
@checked
@dataclass(frozen=True)
class FixedSize:
    """``batch_size`` of ``population`` units. Under replace-one adjacency the number of units is public and checked."""

    batch_size: int
    population: int

    def __post_init__(self) -> None:
        if not 0 < self.batch_size <= self.population:
            raise InvalidInput(
                f"the batch size must lie in [1, population], got {self.batch_size} of {self.population}."
            )

    @property
    def adjacency(self) -> Adjacency:
        """Replace-one."""
        return Adjacency.REPLACE_ONE

    @property
    def expected_batch_size(self) -> float:
        """``batch_size``, always."""
        return float(self.batch_size)

    def draw(self, size: int, rng: np.random.Generator) -> Indices:
        """Draw a batch; refuses data whose size is not the stated population."""
        if size != self.population:
            raise InvalidInput(
                f"the data holds {size} units but the population was stated as {self.population}: fixed-size sampling "
                "rests on the exact number. State population=len(data)."
            )
        return np.sort(rng.choice(size, self.batch_size, replace=False, shuffle=False)).astype(np.int64, copy=False)

    def event(self, event: Event) -> Event:
        """``event`` on a sample without replacement."""
        return FixedSizeSampled(self.batch_size, self.population, event)


# User-level privacy: a unit is a person with many rows, of whom a bounded number take part.

PADDING = -1


@checked
@dataclass(frozen=True)
class Users:
    """Who owns which row.

    A sampler draws users; `rows` then gives each drawn user's rows, at most ``rows_per_user`` of them (a fresh uniform
    choice where there are more), padded with -1. The engine clips all rows of one user as one vector, so one person
    changes a sum by no more than one row would.

    Args:
        owners: The owner of every row.

    >>> Users(np.array([7, 7, 9]), rows_per_user=2).rows(np.array([1, 0]), np.random.default_rng(0))
    array([[ 2, -1], [ 0,  1]])
    """

    owners: ArrayLike
    rows_per_user: int
    _rows: tuple[NDArray[np.int64], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        owners = np.asarray(self.owners)
        if owners.ndim != 1 or not len(owners):
            raise InvalidInput(f"owners must name one user per row, got an array of shape {owners.shape}.")
        if self.rows_per_user < 1:
            raise InvalidInput(f"rows_per_user must be at least 1, got {self.rows_per_user}.")
        _, inverse = np.unique(owners, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.flatnonzero(np.diff(inverse[order])) + 1
        object.__setattr__(self, "_rows", tuple(np.split(order.astype(np.int64), starts)))

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, users: Indices, rng: np.random.Generator) -> Indices:
        """The rows of the drawn ``users``, shape (len(users), rows_per_user)."""
        table = np.full((len(users), self.rows_per_user), PADDING, dtype=np.int64)
        for place, user in enumerate(users):
            rows = self._rows[user]
            if len(rows) > self.rows_per_user:
                rows = rng.choice(rows, self.rows_per_user, replace=False)
            table[place, : len(rows)] = rows
        return table
