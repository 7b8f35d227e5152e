"""Local privacy: the client clips its update and noises it itself, so that even the server learns little."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordina.accounting import Gaussian, Repeated, accountant, noise_multiplier
from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.population import ClientSelection
from sordina.federated.privacy.accounts import Leakage, exact
from sordina.federated.privacy.placement import Facts, FederationFacts, Placed, PrivacyStatement, clipped_rows
from sordina.privacy import Adjacency, Budget, Unit, check_delta, check_positive, format_up
from sordina.private_step import add_noise

if TYPE_CHECKING:
    from sordina.federated.algorithms.algorithm import ClientWork
    from sordina.federated.objective import Objective


@dataclass(frozen=True)
class LocalDP:
    """(epsilon, delta) for every client with all its rows, against everybody: each noises what it sends.

    Args:
        budget: What a client's participations may spend together.
        threshold: The norm to which a client clips its update.
    """

    budget: Budget
    threshold: float = 1.0
    name: ClassVar[str] = "local"

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """See `FederatedPrivacy`."""
        placement = Local.within(self.budget, self.threshold, facts.participations)
        return Placed.in_turn(work, placement, facts)


@dataclass(frozen=True)
class Local:
    """``v -> v min(1, C / |v|) + N(0, (z 2C)^2 I)``: any two updates are at most 2C apart.

    The guarantee is each client's own and does not lean on sampling: participations compose, and a client's account
    counts them against the number the noise was calibrated for.
    """

    clip: float
    noise_multiplier: float
    delta: float
    participations: int
    vectors_released: bool = True
    hides_failures: bool = True

    def __post_init__(self) -> None:
        check_positive("clipping threshold of local privacy", self.clip)
        check_positive("noise multiplier", self.noise_multiplier)
        check_delta(self.delta)
        if self.participations < 1:
            raise InvalidInput(f"a client takes part at least once, got {self.participations}.")

    @classmethod
    def within(cls, budget: Budget, clip: float, participations: int) -> Local:
        """The least noise with which ``participations`` rounds of one client stay within ``budget``."""
        nu = noise_multiplier(lambda x: Repeated(Gaussian(x), participations), budget, Adjacency.REPLACE_ONE)
        return cls(clip, nu, budget.delta, participations)

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Any clients, any number of rounds."""

    def start(self, size: int) -> None:
        """Nothing to remember."""

    def cost(self, size: int) -> Fraction:
        """One participation."""
        return Fraction(1)

    def leakage(self, size: int) -> Leakage:
        """``1 / z^2``."""
        return Leakage(gaussian=1 / exact(self.noise_multiplier) ** 2)

    def seal(self, outcome: ClientResult, state: None, rng: np.random.Generator) -> ClientUpdate:
        """Clip and noise every client's vector."""
        clipped = clipped_rows(outcome.vectors, self.clip)
        scale = 2 * self.clip * self.noise_multiplier
        return ClientUpdate(vectors=add_noise(clipped, scale, rng))

    def open(self, update: ClientUpdate, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """The noised vectors and their plain mean."""
        if update.vectors is None or not len(update.vectors):
            return None, None
        return Release(update.vectors.mean(dim=0), update.vectors), None

    def statement(self, facts: Facts) -> PrivacyStatement:
        """What the client that took part most often is guaranteed."""
        event = Repeated(Gaussian(self.noise_multiplier), facts.participations)
        epsilon = accountant("pld").epsilon(event, self.delta, Adjacency.REPLACE_ONE)
        words = (
            f"Local differential privacy: every client has ({format_up(epsilon)}, {format_up(self.delta)})-DP for all "
            "its data against everybody, the server included, after at most "
            f"{facts.participations} participations.{facts.remarks(self.delta)}"
        )
        details = {"clip": self.clip, "noise_multiplier": self.noise_multiplier, "limit": self.participations}
        adjacency = Adjacency.REPLACE_ONE
        return PrivacyStatement("local", words, True, epsilon, self.delta, Unit.USER, details, event, adjacency)


@dataclass(frozen=True)
class RecordNoise:
    """Noise at the client for every *record* of it: the work bounds what a record does, this hides it.

    Clients hold disjoint records, so the guarantee of one is the guarantee of all (parallel composition); it holds
    against the server too. Needs work that states its record bound, such as `ClippedGradient`.
    """

    noise_multiplier: float
    delta: float
    participations: int
    vectors_released: bool = True
    hides_failures: bool = True

    def __post_init__(self) -> None:
        check_positive("noise multiplier", self.noise_multiplier)
        check_delta(self.delta)

    @classmethod
    def within(cls, budget: Budget, participations: int) -> RecordNoise:
        """The least noise with which ``participations`` rounds stay within ``budget`` for every record."""
        nu = noise_multiplier(lambda x: Repeated(Gaussian(x), participations), budget, Adjacency.ADD_REMOVE)
        return cls(nu, budget.delta, participations)

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Any clients, any number of rounds."""

    def start(self, size: int) -> None:
        """Nothing to remember."""

    def cost(self, size: int) -> Fraction:
        """One participation."""
        return Fraction(1)

    def leakage(self, size: int) -> Leakage:
        """``1 / z^2``."""
        return Leakage(record=1 / exact(self.noise_multiplier) ** 2)

    def seal(self, outcome: ClientResult, state: None, rng: np.random.Generator) -> ClientUpdate:
        """Noise of ``z`` times the record bound on every client's vector."""
        if outcome.record_bound is None:
            raise InvalidInput("record-level noise needs work that bounds a record's effect: use ClippedGradient.")
        scale = outcome.record_bound * self.noise_multiplier
        return ClientUpdate(vectors=add_noise(outcome.vectors.clone(), scale, rng))

    def open(self, update: ClientUpdate, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """The noised vectors and their plain mean."""
        if update.vectors is None or not len(update.vectors):
            return None, None
        return Release(update.vectors.mean(dim=0), update.vectors), None

    def statement(self, facts: Facts) -> PrivacyStatement:
        """What every record is guaranteed."""
        event = Repeated(Gaussian(self.noise_multiplier), facts.participations)
        epsilon = accountant("pld").epsilon(event, self.delta, Adjacency.ADD_REMOVE)
        words = (
            f"Record-level differential privacy at the client: ({format_up(epsilon)}, {format_up(self.delta)})-DP for "
            f"every record ({Adjacency.ADD_REMOVE} neighbours) against everybody, the server included, after "
            f"{facts.participations} rounds.{facts.early}"
        )
        details = {"noise_multiplier": self.noise_multiplier, "limit": self.participations}
        adjacency = Adjacency.ADD_REMOVE
        return PrivacyStatement("record", words, True, epsilon, self.delta, Unit.RECORD, details, event, adjacency)
