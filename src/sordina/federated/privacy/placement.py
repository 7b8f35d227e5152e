"""The seam of privacy: one object with a half that runs at the client and a half that runs at the server.

A person states a `FederatedPrivacy` (`CentralDP`, `LocalDP`, `RecordDP`, `MetricDP`, `NoPrivacy`); its `place` makes
the `Placement` of a run, calibrated to the run's public facts. Another kind of privacy is another class with `name` and
`place`: nothing else knows which kinds there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from sordina.accounting import Event
from sordina.errors import InvalidInput
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.population import ClientSelection, ClientsInTurn, SampledClients
from sordina.federated.privacy.accounts import Leakage
from sordina.gradients.norms import squared_lengths
from sordina.privacy import Adjacency, Unit, delta_warning
from sordina.sampling import FixedSize

if TYPE_CHECKING:
    from sordina.federated.algorithms.algorithm import ClientWork
    from sordina.federated.objective import Objective


class Placement(Protocol):
    """What is done to an update and where. ``state`` is public: it may be sent to clients and written to disk."""

    @property
    def vectors_released(self) -> bool:
        """Whether the server gets one vector per client, or only their (noised) mean."""
        ...

    @property
    def hides_failures(self) -> bool:
        """Whether a client that cannot compute a finite update sends a zero one like any other, and is charged."""
        ...

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Refuse a run whose clients or rounds are not the ones the guarantee was made for."""
        ...

    def start(self, size: int) -> Any:
        """The public state before the first round, for vectors of ``size`` numbers."""
        ...

    def cost(self, size: int) -> Fraction:
        """What one participation adds to a client's own account (0 where clients keep none)."""
        ...

    def leakage(self, size: int) -> Leakage:
        """What one participation reveals, in measures that add up over all runs."""
        ...

    def seal(self, outcome: ClientResult, state: Any, rng: np.random.Generator) -> ClientUpdate:
        """At the client: turn finite outcomes into what may leave."""
        ...

    def open(self, update: ClientUpdate, state: Any, rng: np.random.Generator) -> tuple[Release | None, Any]:
        """At the server: turn what arrived into what may be used, and the next state; None when nothing arrived."""
        ...

    def statement(self, facts: Facts) -> PrivacyStatement:
        """The guarantee of a run, in words and numbers."""
        ...


@dataclass(frozen=True)
class FederationFacts:
    """What is public about a run before it begins.

    Args:
        rounds: The most rounds.
        clients: How many clients there are.
        clients_per_round: How many of them take part in a round; on average, where each is drawn by a coin of its own.
        seed: Of a repeatable run, which must not be released.
        needs_vectors: Whether the server reads the clients' vectors one by one, so that a sum is not enough.
        takes_turns: Whether the algorithm wants everybody once before anybody twice.
        noise_multiplier: Of the clients' messages under metric privacy, for servers that make use of it.
    """

    rounds: int
    clients: int
    clients_per_round: int
    seed: int | None = None
    needs_vectors: bool = False
    takes_turns: bool = False
    noise_multiplier: float = 0.0

    @property
    def share(self) -> float:
        """The share of clients in a round."""
        return self.clients_per_round / self.clients

    @property
    def participations(self) -> int:
        """The most a client takes part when everybody takes turns."""
        return math.ceil(self.rounds / (self.clients // self.clients_per_round))

    @property
    def in_turn(self) -> ClientsInTurn:
        """Everybody once before anybody twice."""
        return ClientsInTurn(self.clients_per_round, self.seed or 0)


@dataclass(frozen=True)
class Placed:
    """A run's privacy, ready: what clients compute, what is done to it where, who takes part, and how often."""

    work: ClientWork
    placement: Placement
    selection: ClientSelection
    limit: Fraction | None = None
    """The limit every client sets for its own account, in the placement's costs."""

    @classmethod
    def in_turn(cls, work: ClientWork, placement: Placement, facts: FederationFacts) -> Placed:
        """Clients in turn, each as often as the noise was made for, at a cost of 1.

        Args:
            work: What clients compute.
            placement: Made for ``facts.participations`` rounds of a client.
            facts: What is public about the run.
        """
        return cls(work, placement, facts.in_turn, Fraction(facts.participations))


@runtime_checkable
class FederatedPrivacy(Protocol):
    """How a run is to be private, as a person states it."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """The privacy of a run.

        Args:
            objective: Model and loss.
            work: What the algorithm's clients compute; most kinds of privacy leave it as it is.
            facts: What is public about the run.
        """
        ...


@dataclass(frozen=True)
class Facts:
    """What a run did that a guarantee depends on."""

    rounds: int
    """The rounds the guarantee pays for: all that were planned, if something released chose the end."""
    size: int
    """The length of a client's vector, n in 000."""
    participations: int
    """The most participations of any one client in those rounds."""
    ran: int | None = None
    """The rounds that really ran; None: all of them."""
    clients: int | None = None
    """How many clients there are."""
    state: Any = None
    """The placement's last public state."""

    def remarks(self, delta: float) -> str:
        """What people must know besides: an early end, a delta that excludes nothing."""
        warning = delta_warning(delta, self.clients, "client")
        return self.early + ("" if warning is None else f" {warning}")

    @property
    def early(self) -> str:
        """A remark for people, if the run ended before its plan."""
        if self.ran is None or self.ran >= self.rounds:
            return ""
        return f" The run ended after {self.ran} rounds, for a reason found on the way, so all of its plan is paid for."


@dataclass(frozen=True)
class PrivacyStatement:
    """A guarantee for people: what holds, for whom, against whom, and whether it is proven."""

    placement: str
    words: str
    sound: bool
    epsilon: float | None = None
    delta: float | None = None
    unit: Unit = Unit.USER
    details: dict[str, Any] | None = None
    event: Event | None = None
    """What was spent, for a ledger; ``epsilon`` is computed from it."""
    adjacency: Adjacency | None = None

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class ClientWeights:
    """How much each client counts: ``uniform``, by ``samples``, or by samples up to a public ``cap``.

    Under central privacy a weight by samples has no bound, so no sensitivity exists; uniform or capped weights have.
    """

    cap: int | None = None
    by_samples: bool = False

    def __post_init__(self) -> None:
        if self.cap is not None and self.cap < 1:
            raise InvalidInput(f"the cap on sample counts must be at least 1, got {self.cap}.")

    @property
    def bounded(self) -> bool:
        """Whether one client's weight has a public bound."""
        return not self.by_samples or self.cap is not None

    def of(self, outcome: ClientResult) -> Any:
        """One weight per client: 1, n_k, or ``min(n_k, cap) / cap``."""
        sizes = outcome.sizes.to(outcome.vectors.dtype)
        if not self.by_samples:
            return sizes.new_ones(len(sizes))
        return sizes if self.cap is None else sizes.clamp(max=self.cap) / self.cap


UNIFORM = ClientWeights()
BY_SAMPLES = ClientWeights(by_samples=True)


def check_in_turn(selection: ClientSelection, clients: int, name: str) -> None:
    """Refuse a selection in which clients take part unequally often, or others than so many in a round.

    Args:
        selection: Who takes part.
        clients: How many the noise was made for.
        name: Of the privacy, for the message.
    """
    if not isinstance(selection, ClientsInTurn) or selection.clients_per_round != clients:
        raise InvalidInput(f"{name} privacy asks {clients} clients in turn: select that many with ClientsInTurn.")


# No privacy: the server sees every update. For comparison, and for data that is public.


@dataclass(frozen=True)
class NoPrivacy:
    """Updates in the clear, clients weighted by their sample counts where the algorithm allows it."""

    name: ClassVar[str] = "none"

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """See `FederatedPrivacy`."""
        vectors = facts.needs_vectors
        placement = ClearUpdates(UNIFORM if vectors else BY_SAMPLES, gather=vectors)
        return Placed(work, placement, SampledClients(FixedSize(facts.clients_per_round, facts.clients)))


@dataclass(frozen=True)
class ClearUpdates:
    """``sum_k w_k v_k / sum_k w_k`` over the clients that answered; with ``gather`` the vectors themselves too."""

    weights: ClientWeights = BY_SAMPLES
    gather: bool = False
    hides_failures: bool = False

    @property
    def vectors_released(self) -> bool:
        """Only if a strategy needs them: a sum is cheaper."""
        return self.gather

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Any clients, any number of rounds."""

    def start(self, size: int) -> None:
        """Nothing to remember."""

    def cost(self, size: int) -> Fraction:
        """Clients keep no account: the leakage is unbounded."""
        return Fraction()

    def leakage(self, size: int) -> Leakage:
        """The update in the clear."""
        return Leakage(clear=Fraction(1))

    def seal(self, outcome: ClientResult, state: None, rng: np.random.Generator) -> ClientUpdate:
        """Weighted sums; nothing is hidden."""
        weights = self.weights.of(outcome)
        return ClientUpdate((weights @ outcome.vectors, weights.sum()), outcome.vectors if self.gather else None)

    def open(self, update: ClientUpdate, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """The weighted mean."""
        if not update.sums or float(update.sums[1]) == 0:
            return None, None
        return Release(update.sums[0] / update.sums[1], update.vectors), None

    def statement(self, facts: Facts) -> PrivacyStatement:
        """That there is no privacy."""
        words = "No privacy: the server sees every client's update in the clear."
        return PrivacyStatement("none", words, sound=True)


def clipped_rows(vectors: Tensor, threshold: float) -> Tensor:
    """Rows that are no longer than ``threshold (1 + 1e-5)``; a row that is not finite, or as good as that, becomes 0.

    A plain norm in single precision loses small entries beside large ones, and the row would stay too long.

    Args:
        vectors: One row for each client or record.
        threshold: The bound.

    >>> clipped_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    norms = squared_lengths(vectors).sqrt_()[:, None]
    usable = norms * torch.finfo(vectors.dtype).tiny < threshold  # so the factor keeps its digits
    return torch.where(usable, vectors * (threshold / norms).clamp_(max=1.0).to(vectors), 0.0)
