"""Privacy per record across clients: what every single patient is promised, by each hospital, against everybody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordina.accounting import Event, Gaussian, Repeated, accountant, noise_multiplier
from sordina.clipping import Fixed
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.algorithms.algorithm import LocalSteps, sizes
from sordina.federated.algorithms.fedavg import ClippedGradient, LocalGradient, LocalTraining, record_gradients
from sordina.federated.messages import Arrays, ClientResult, ClientUpdate, Release
from sordina.federated.objective import Objective
from sordina.federated.population import ClientSelection, Cohort, RowOrder
from sordina.federated.privacy.accounts import Leakage
from sordina.federated.privacy.local import RecordNoise
from sordina.federated.privacy.placement import Facts, FederationFacts, Placed, PrivacyStatement
from sordina.gradients.explicit import MatrixTape
from sordina.plan import check_whole
from sordina.privacy import Adjacency, Budget, Unit, check_positive, format_up
from sordina.private_step import release
from sordina.sampling import Poisson

if TYPE_CHECKING:
    from sordina.federated.algorithms.algorithm import ClientWork


# Local private training: a client runs DP-SGD on its own records, so that its whole update is private per record.


@dataclass(frozen=True)
class PrivateLocalTraining:
    """``v_k = theta_k - theta`` after ``steps`` steps of DP-SGD on the client's records.

    A step draws every record by a coin of its own (``sampler.rate``, a public number), clips its gradient to
    ``threshold``, adds Gaussian noise of ``noise_multiplier * threshold`` to the sum, and divides by the public
    expected batch: one record more or less changes the sum by at most the threshold, so a step is one Poisson-sampled
    Gaussian mechanism, whatever the client's size. What comes after the noise is post-processing, the update included.

    Args:
        objective: Model and loss.
        local: The learning rate; its batches are those of the sampler.
        sampler: Draws a step's records.
        steps: Private steps in a participation.
        threshold: To which a record's gradient is clipped.
        noise_multiplier: The noise, relative to the threshold.
        mu: The pull towards the global model (FedProx).
        rows_at_once: The most gradients that are in memory together.
    """

    objective: Objective
    local: LocalSteps
    sampler: Poisson
    steps: int
    threshold: float
    noise_multiplier: float
    mu: float = 0.0
    rows_at_once: int = 1024
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("private steps", self.steps)
        check_positive("clipping threshold per record", self.threshold)
        check_positive("noise multiplier", self.noise_multiplier)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Refused: the noise needs a generator of the client's own, see `run_private`."""
        raise AssertionError("private local training draws noise: call perform(work, ..., rng).")

    def run_private(
        self, sent: Arrays, cohort: Cohort | None, state: Arrays, rng: np.random.Generator
    ) -> tuple[ClientResult, Arrays]:
        """Train every client from the global model; without a cohort, one client that has no record.

        Args:
            sent: The global model.
            cohort: The clients and their records.
            state: What clients keep: nothing.
            rng: Draws records and noise: secure, unless the run must be repeatable.
        """
        model = sent["model"]
        if cohort is None:
            return ClientResult(self._trained(model, None, None, rng)[None], torch.zeros(1)), state
        x, y, owner = cohort.rows()
        vectors = []
        for client in range(len(cohort)):
            mine = owner == client
            vectors.append(self._trained(model, x[mine], y[mine], rng))
        return ClientResult(torch.stack(vectors), sizes(cohort)), state

    def _trained(self, model: Tensor, x: Tensor | None, y: Tensor | None, rng: np.random.Generator) -> Tensor:
        moved = torch.zeros_like(model)
        bounds = Fixed(self.threshold).bounds(None, Adjacency.ADD_REMOVE)
        for _ in range(self.steps):
            total = torch.zeros_like(model)
            if x is not None and y is not None:
                for part in torch.split(torch.from_numpy(self.sampler.draw(len(x), rng)), self.rows_at_once):
                    total += self._clipped(model + moved, x[part], y[part])
            released = release([total], bounds, [self.noise_multiplier], self.sampler.expected_batch_size, rng)
            moved = moved - self.local.learning_rate * (released.mean() + self.mu * moved)
        return moved

    def _clipped(self, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the records' clipped gradients; one that is not finite adds 0."""
        if not len(x):
            return torch.zeros_like(model)
        gradients = record_gradients(self.objective, model, x, y)
        finite = gradients.norm(dim=1, keepdim=True).isfinite()
        tape = MatrixTape(torch.where(finite, gradients, 0.0))
        return tape.contract(Fixed(self.threshold).ask(tape.scalars(), None))[0].to(model.dtype)


# Privacy per record across clients: what every single patient is promised, by each hospital, against everybody.


@dataclass(frozen=True)
class RecordDP:
    """(epsilon, delta) for every record of every client, against everybody outside that client, the server included.

    Under FedAvg and FedProx each client runs DP-SGD on its own records; under FedSGD it noises one gradient, clipped
    record by record.

    Args:
        budget: What a client's participations may cost one of its records, together.
        threshold: The norm to which a record's gradient is clipped.
        records: A public number near the records of a client. With it the sampling rate ``batch size / records`` and
            all divisors are public; a client may have more or fewer, which changes its accuracy and not the guarantee.
    """

    budget: Budget
    threshold: float = 1.0
    records: int | None = None
    name: ClassVar[str] = "record"

    def __post_init__(self) -> None:
        check_positive("clipping threshold per record", self.threshold)
        if self.records is not None and self.records < 1:
            raise InvalidInput(f"the public number of records per client must be at least 1, got {self.records}.")

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """See `FederatedPrivacy`."""
        if self.records is None:
            raise InvalidInput(
                "record-level privacy needs a public number of records per client, to draw and divide by: say "
                "RecordDP(budget, records=...), --records on the command line. A round number near the truth will do."
            )
        in_turn = facts.in_turn
        limit = Fraction(facts.participations)
        if isinstance(work, LocalGradient):
            clipped = ClippedGradient(objective, self.threshold, divisor=float(self.records))
            return Placed(clipped, RecordNoise.within(self.budget, facts.participations), in_turn, limit)
        if not isinstance(work, LocalTraining):
            raise Unsupported(
                f"record-level privacy goes with FedSGD, FedAvg and FedProx; {type(work).__name__} reads records in "
                "ways that have no private form here."
            )
        local = work.steps
        sampler = Poisson(min(local.batch_size, self.records), self.records)
        steps = local.steps or math.ceil(local.epochs / sampler.rate)
        placement = PrivateUpdates.within(self.budget, sampler, steps, facts.participations)
        trained = PrivateLocalTraining(
            objective, local, sampler, steps, self.threshold, placement.noise_multiplier, work.mu
        )
        return Placed(trained, placement, in_turn, limit)


@dataclass(frozen=True)
class PrivateUpdates:
    """Updates that the client's own work made private: nothing is added to them, every participation is counted.

    Clients hold disjoint records, so the guarantee of one is the guarantee of all (parallel composition). The noise is
    calibrated to ``participations`` of one client, and its account allows no more.
    """

    sampler: Poisson
    steps: int
    noise_multiplier: float
    delta: float
    participations: int
    vectors_released: bool = True
    hides_failures: bool = True

    @classmethod
    def within(cls, budget: Budget, sampler: Poisson, steps: int, participations: int) -> PrivateUpdates:
        """The least noise with which ``participations`` of ``steps`` private steps stay within ``budget``.

        Args:
            budget: For every record.
            sampler: Draws the records of a step.
            steps: In a participation.
            participations: Of one client.
        """
        nu = noise_multiplier(
            lambda x: Repeated(sampler.event(Gaussian(x)), steps * participations), budget, Adjacency.ADD_REMOVE
        )
        return cls(sampler, steps, nu, budget.delta, participations)

    def event(self, participations: int) -> Event:
        """What ``participations`` cost a record."""
        return Repeated(self.sampler.event(Gaussian(self.noise_multiplier)), self.steps * participations)

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Any clients, any number of rounds."""

    def start(self, size: int) -> None:
        """Nothing to remember."""

    def cost(self, size: int) -> Fraction:
        """One participation."""
        return Fraction(1)

    def leakage(self, size: int) -> Leakage:
        """The steps of a participation."""
        return Leakage(sampled=((self.sampler.rate, self.noise_multiplier, self.steps),))

    def seal(self, outcome: ClientResult, state: None, rng: np.random.Generator) -> ClientUpdate:
        """As they are: the work has noised them."""
        return ClientUpdate(vectors=outcome.vectors)

    def open(self, update: ClientUpdate, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """The vectors and their plain mean."""
        if update.vectors is None or not len(update.vectors):
            return None, None
        return Release(update.vectors.mean(dim=0), update.vectors), None

    def statement(self, facts: Facts) -> PrivacyStatement:
        """What every record is guaranteed."""
        event, adjacency = self.event(facts.participations), Adjacency.ADD_REMOVE
        epsilon = accountant("pld").epsilon(event, self.delta, adjacency)
        words = (
            f"Record-level differential privacy at the client: ({format_up(epsilon)}, {format_up(self.delta)})-DP for "
            f"every record ({adjacency} neighbours) against everybody, the server included: each client trains with "
            f"DP-SGD on its own records, {self.steps} steps in each of {facts.participations} rounds.{facts.early}"
        )
        details: dict[str, Any] = {
            "noise_multiplier": self.noise_multiplier, "limit": self.participations, "steps_per_round": self.steps,
            "sampling_rate": self.sampler.rate,
        }  # fmt: skip
        return PrivacyStatement("record", words, True, epsilon, self.delta, Unit.RECORD, details, event, adjacency)
