"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.federated.order import Order, shuffles
from sordina.sampling import Sampler


class Selection(Protocol):
    """Draws the clients of a round."""

    def draw(self, number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The clients of round ``number``, out of ``size``."""
        ...


@dataclass(frozen=True)
class Sampled:
    """A fresh sample every round; central accounting needs the sampler's randomness."""

    sampler: Sampler

    def draw(self, number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Whatever the sampler draws."""
        return self.sampler.draw(size, rng)


@dataclass(frozen=True)
class InTurn:
    """Everybody once before anybody twice, in an order shuffled anew for each pass.

    Leakage that composes by addition is then spread evenly, where fresh samples would hit some clients twice as often
    as others. A pass leaves out the ``size % batch`` clients that do not fill a round.

    >>> seen = [InTurn(3, seed=1).draw(t, 7, np.random.default_rng(0)) for t in range(4)]
    >>> len(set(np.concatenate(seen[:2]))), len(set(np.concatenate(seen[2:])))
    (6, 6)
    """

    batch: int
    seed: int = 0

    def draw(self, number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The next ``batch`` clients of the present pass."""
        if not 0 < self.batch <= size:
            raise InvalidInput(f"the clients per round must lie in [1, {size}], got {self.batch}.")
        turn, place = divmod(number, size // self.batch)
        order: NDArray[np.int64] = shuffles(np.array([size]), np.array([0]), Order(self.seed, turn), 1)[0, 0]
        return order[place * self.batch : (place + 1) * self.batch]
