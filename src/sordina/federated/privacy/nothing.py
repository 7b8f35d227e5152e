"""No privacy: the server sees every update. For comparison, and for data that is public."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordina.federated.messages import Outcome, Parcel, Release
from sordina.federated.privacy.leakage import Leakage
from sordina.federated.privacy.placement import BY_SAMPLES, UNIFORM, Facts, FederationFacts, Placed, Statement, Weights
from sordina.federated.selection import Sampled, Selection
from sordina.sampling import FixedSize

if TYPE_CHECKING:
    from sordina.federated.clients.work import ClientWork
    from sordina.federated.objective import Objective


@dataclass(frozen=True)
class NoPrivacy:
    """Updates in the clear, clients weighted by their sample counts where the algorithm allows it."""

    name: ClassVar[str] = "none"

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """See `FederatedPrivacy`."""
        vectors = facts.needs_vectors
        placement = ClearUpdates(UNIFORM if vectors else BY_SAMPLES, gather=vectors)
        return Placed(work, placement, Sampled(FixedSize(facts.clients_per_round, facts.clients)))


@dataclass(frozen=True)
class ClearUpdates:
    """``sum_k w_k v_k / sum_k w_k`` over the clients that answered; with ``gather`` the vectors themselves too."""

    weights: Weights = BY_SAMPLES
    gather: bool = False
    hides_failures: bool = False

    @property
    def vectors_released(self) -> bool:
        """Only if a strategy needs them: a sum is cheaper."""
        return self.gather

    def check(self, selection: Selection, rounds: int) -> None:
        """Any clients, any number of rounds."""

    def start(self, size: int) -> None:
        """Nothing to remember."""

    def cost(self, size: int) -> Fraction:
        """Clients keep no account: the leakage is unbounded."""
        return Fraction()

    def leakage(self, size: int) -> Leakage:
        """The update in the clear."""
        return Leakage(clear=Fraction(1))

    def seal(self, outcome: Outcome, state: None, rng: np.random.Generator) -> Parcel:
        """Weighted sums; nothing is hidden."""
        weights = self.weights.of(outcome)
        return Parcel((weights @ outcome.vectors, weights.sum()), outcome.vectors if self.gather else None)

    def open(self, parcel: Parcel, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """The weighted mean."""
        if not parcel.sums or float(parcel.sums[1]) == 0:
            return None, None
        return Release(parcel.sums[0] / parcel.sums[1], parcel.vectors), None

    def statement(self, facts: Facts) -> Statement:
        """None."""
        words = "No privacy: the server sees every client's update in the clear."
        return Statement("none", words, sound=True)
