r"""Distributed privacy: every client adds a share of the noise, and secure aggregation shows the server their sum only.

No server needs to be trusted with an update: what it learns is ``sum_i R_i``, where client i contributes the integers

    R_i = round((x_i + sigma Z_i) / g),      |x_i| <= C,      Z_i standard Gaussians,  g a public power of two,

drawn with their exact law (`sordina.random.noise`), so that ``64 g <= sigma < 128 g``.

**Theorem.** Let m of the clients in the sum be honest. What the server and all the others together see is as hard to
tell apart as the ideal Gaussian mechanism ``sum_i x_i + sqrt(m) sigma Z``, up to a total variation distance below
``1e-300`` per number. So a round is an ordinary Gaussian event of noise multiplier ``sqrt(m) sigma / C``.

*Proof.* Count in units of g. The colluding clients know their own R_i and subtract them. ``R_i`` has the
probabilities ``f_i(k)``, k an integer, f_i the density of ``x_i + sigma Z_i + U_i`` with U_i uniform on [-1/2, 1/2];
let F_i be its Fourier transform, ``|F_i(t)| <= exp(-sigma^2 t^2 / 2)``. By Poisson's formula the characteristic
function of the sum is ``prod_i sum_j F_i(t + 2 pi j)``. Compare it with ``Q = round(sum_i x_i + sqrt(m) sigma Z + U_2
+ ... + U_m)``, all U_i independent: rounding adds the missing uniform, so Q has characteristic function ``sum_j
prod_i F_i(t + 2 pi j)``. The two differ by the products in which not all j are equal. On [-pi, pi] let ``a =
exp(-sigma^2 t^2 / 2)`` and r the sum of the other terms: ``r <= 2.1 exp(-sigma^2 (2 pi - |t|)^2 / 2) <= 2.1 a``. So
they differ by at most ``(a + r)^m - a^m <= m r (a + r)^(m-1) <= m 3.1^m exp(-sigma^2 ((2 pi - |t|)^2 + (m - 1) t^2) /
2)``, whose exponent is largest at ``|t| = 2 pi / m``: ``m 3.1^m exp(-2 pi^2 sigma^2 (m - 1) / m)``, below exp(-40
000) for sigma >= 64 and 2 <= m <= 10 000 (for m = 1 both are the same). Each probability is that close, and outside
of ``m / 2 + 40 sqrt(m) sigma`` around the centre, a window of less than 2e6 integers, both have less than exp(-800).
The distance is below 1e-300. And Q is a function of the ideal mechanism's output and of independent numbers:
post-processing. QED

Unlike with discrete Gaussians (Kairouz, Liu and Steinke 2021) nothing is lost: neither the sensitivity grows by
rounding vectors first, nor is the sum bounded by way of concentrated privacy.

The server knows who takes part, so sampling amplifies nothing: participations of a client compose in full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.accounting import ApproximateDP, Composed, Event, Gaussian, Repeated, accountant, noise_multiplier
from sordina.clipping import Fixed, Policy
from sordina.clipping.policy import split_at, spread
from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import ClientWork
from sordina.federated.decentralized.graphs import AggregationGraph, plan_graph
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.objective import Objective
from sordina.federated.population import ClientSelection
from sordina.federated.privacy.accounts import Leakage, exact
from sordina.federated.privacy.placement import Facts, FederationFacts, Placed, PrivacyStatement, check_in_turn
from sordina.gradients.explicit import MatrixTape
from sordina.privacy import Adjacency, Budget, Unit, check_delta, check_positive, format_up
from sordina.queries import Released
from sordina.random.noise import add_gaussian, grid_of

_MOST_CLIENTS = 10_000


@dataclass(frozen=True)
class DistributedState:
    """Public: the length of a client's vector, the policy's state, and how many clients remained in each round."""

    size: int
    policy: Any
    remained: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


@dataclass(frozen=True)
class Distributed:
    """``sum_i round((clip(v_i) + sigma Z_i) / g) g / remaining``, summed securely; see the head of this file.

    Args:
        clients: How many clients are asked in a round.
        honest: The fewest of the clients that remain in a round that do not collude with the server.
        least: The fewest clients that must remain; a round with fewer is given up, and nothing of it is unmasked.
        noise_multiplier: Of the sum, with the noise of ``honest`` clients alone.
        delta: The delta of the guarantee, the graph's failures included.
        participations: In how many rounds a client takes part at most.
        graph: Neighbours and threshold of secure aggregation.
        clipping: The policy that bounds an update.
    """

    clients: int
    honest: int
    least: int
    noise_multiplier: float
    delta: float
    participations: int
    graph: AggregationGraph
    clipping: Policy[Any]
    vectors_released: bool = False
    hides_failures: bool = True

    def __post_init__(self) -> None:
        check_positive("noise multiplier", self.noise_multiplier)
        check_delta(self.delta)
        if not 1 <= self.honest <= self.least <= self.clients <= _MOST_CLIENTS:
            raise InvalidInput(
                f"of {self.clients} clients (at most {_MOST_CLIENTS}) {self.least} must remain and {self.honest} be "
                "honest: a round needs at least one honest client that remains."
            )
        if self.participations < 1:
            raise InvalidInput(f"a client takes part at least once, got {self.participations}.")

    @classmethod
    def within(
        cls,
        budget: Budget,
        clients: int,
        participations: int,
        *,
        honest_share: float = 0.7,
        dropout: float = 0.1,
        clipping: Policy[Any] | None = None,
    ) -> Distributed:
        """The least noise with which ``participations`` rounds of one client stay within ``budget``.

        Args:
            budget: Epsilon and delta of every client, against the server and all who collude with it.
            clients: How many clients are asked in a round.
            participations: In how many rounds a client takes part at most.
            honest_share: The share of the clients of a round that does not collude with the server.
            dropout: The largest share of the clients that may drop out; with more, the round is given up.
            clipping: How an update is bounded; `Fixed(1.0)` if left out.
        """
        graph = plan_graph(clients, honest_share, dropout)
        colluding = clients - math.floor(honest_share * clients)
        least = clients - math.floor(dropout * clients)
        left = budget.delta - participations * graph.failure
        if left <= 0.9 * budget.delta:
            raise InvalidInput(
                f"secure aggregation fails with probability {format_up(graph.failure)} a round, which is too much of a "
                f"delta of {format_up(budget.delta)}: state a larger delta."
            )
        nu = noise_multiplier(
            lambda x: Repeated(Gaussian(x), participations), Budget(budget.epsilon, left), Adjacency.ADD_REMOVE
        )
        policy = Fixed(1.0) if clipping is None else clipping
        return cls(clients, least - colluding, least, nu, budget.delta, participations, graph, policy)

    @property
    def colluding(self) -> int:
        """The most clients of a round that collude with the server."""
        return self.least - self.honest

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Every client takes part equally often, and as many are asked each time as the noise was made for."""
        check_in_turn(selection, self.clients, "distributed")

    def start(self, size: int) -> DistributedState:
        """The policy's first state; a policy without a bound is refused here."""
        state = self.clipping.init(size)
        self.clipping.bounds(state, Adjacency.ADD_REMOVE)
        return DistributedState(size, state)

    def cost(self, size: int) -> Fraction:
        """One participation."""
        return Fraction(1)

    def leakage(self, size: int) -> Leakage:
        """``4 / nu^2``: a client that is *replaced* moves the sum by twice its bound; and that the graph fails."""
        nu = spread(self.clipping.split(self.noise_multiplier))
        return Leakage(gaussian=4 / exact(nu) ** 2, failure=exact(self.graph.failure))

    def scales(self, state: DistributedState) -> list[float]:
        """The standard deviation of one client's noise on each query."""
        bounds = self.clipping.bounds(state.policy, Adjacency.ADD_REMOVE)
        nus = split_at(self.clipping, self.noise_multiplier, state.policy)
        pairs = zip(bounds, nus, strict=True)
        return [math.nextafter(bound * nu / math.sqrt(self.honest), math.inf) for bound, nu in pairs]

    def length(self, state: DistributedState) -> int:
        """How many integers a client contributes."""
        return sum(one.numel() for one in self._answers(torch.zeros(1, state.size), state))

    def bits(self, state: DistributedState) -> int:
        """32 where no sum of clipped updates and noise can leave that range, else 64.

        A client's update is at most its bound in any place, noise beyond 40 standard deviations is not seen.
        """
        bounds = self.clipping.bounds(state.policy, Adjacency.ADD_REMOVE)
        steps = [grid_of(scale)[0] for scale in self.scales(state)]
        largest = max(bound / step for bound, step in zip(bounds, steps, strict=True))
        return 32 if self.clients * largest + 40 * 128 * self.clients < 2**31 else 64

    def seal(self, outcome: ClientResult, state: DistributedState, rng: np.random.Generator) -> ClientUpdate:
        """At the clients: clip, add a share of the noise, round; what leaves is a sum of integers (of one, masked)."""
        total: NDArray[np.int64] | None = None
        for row in range(len(outcome.vectors)):
            integers = self._integers(outcome.vectors[row : row + 1], state, rng)
            total = integers if total is None else total + integers
        return ClientUpdate() if total is None else ClientUpdate((torch.from_numpy(total),))

    def open(
        self, update: ClientUpdate, state: DistributedState, rng: np.random.Generator
    ) -> tuple[Release | None, DistributedState]:
        """At the server: the mean over those that remained, or nothing where too few did."""
        if not update.sums or update.answered < self.least:
            return None, state
        total = np.asarray(update.sums[0].numpy(), dtype=np.int64)
        if self.bits(state) == 32:
            total = (total + 2**31) % 2**32 - 2**31
        scales, answers, first = self.scales(state), [], 0
        for blank, scale in zip(self._answers(torch.zeros(1, state.size), state), scales, strict=True):
            part = total[first : first + blank.numel()]
            answers.append(torch.from_numpy(part * grid_of(scale)[0]).float().reshape(blank.shape))
            first += blank.numel()
        noise = tuple(scale * math.sqrt(update.answered) for scale in scales)
        released = Released(tuple(answers), noise, float(update.answered))
        policy = self.clipping.adapt(state.policy, released)
        remained = torch.cat([state.remained, torch.tensor([update.answered])])
        return Release(released.mean()), DistributedState(state.size, policy, remained)

    def event(self, remained: int | None = None) -> Event:
        """What one round costs, from the noise of the honest clients that remained.

        Args:
            remained: How many clients remained; the least that must, if left out.
        """
        honest = self.honest if remained is None else remained - self.colluding
        nu = spread(self.clipping.split(self.noise_multiplier))
        return Gaussian(nu * math.sqrt(honest / self.honest))

    def statement(self, facts: Facts) -> PrivacyStatement:
        """What the client that took part most often is guaranteed, its rounds taken to be the costliest ones."""
        state = facts.state if isinstance(facts.state, DistributedState) else DistributedState(facts.size, None)
        # a round that was given up while it was unmasked may have been seen by those who hold shares of their own
        ran = facts.rounds if facts.ran is None else facts.ran
        open_rounds = max(facts.participations - len(state.remained), ran - len(state.remained), 0)
        rounds: list[int | None] = [*[None] * open_rounds, *sorted(state.remained.tolist())]
        parts = [self.event(one) for one in rounds[: facts.participations]]
        failure = facts.participations * self.graph.failure
        event = Composed((*parts, ApproximateDP(0.0, failure)) if failure else tuple(parts))
        epsilon = accountant("pld").epsilon(event, self.delta, Adjacency.ADD_REMOVE)
        words = (
            f"Distributed differential privacy: every client has ({format_up(epsilon)}, {format_up(self.delta)})-DP "
            f"for all its data ({Adjacency.ADD_REMOVE} neighbours: its contribution against noise alone) against the "
            f"server, which follows the protocol, and up to {self.colluding} of the {self.clients} clients of a round, "
            f"after at most {facts.participations} participations. The server learns sums only."
            f"{facts.remarks(self.delta)}"
        )
        details = {
            "noise_multiplier": self.noise_multiplier,
            "honest_that_remain": self.honest,
            "clients_that_must_remain": self.least,
            "neighbours": self.graph.degree,
            "threshold": self.graph.threshold,
            "limit": self.participations,
        }
        return PrivacyStatement(
            "distributed", words, True, epsilon, self.delta, Unit.USER, details, event, Adjacency.ADD_REMOVE
        )

    def _answers(self, vector: Tensor, state: DistributedState) -> list[Tensor]:
        """The policy's queries about one client."""
        tape = MatrixTape(vector.double())
        direction = self.clipping.direction(state.policy)
        return tape.contract(self.clipping.ask(tape.scalars(direction), state.policy), direction)

    def _integers(self, vector: Tensor, state: DistributedState, rng: np.random.Generator) -> NDArray[np.int64]:
        parts = []
        for answer, scale in zip(self._answers(vector, state), self.scales(state), strict=True):
            values = np.ascontiguousarray(answer.reshape(-1).numpy(), dtype=np.float64)
            add_gaussian(values, scale, rng)
            parts.append(np.rint(values / grid_of(scale)[0]).astype(np.int64))
        return np.concatenate(parts)


@dataclass(frozen=True)
class DistributedDP:
    """Privacy of every client against the server and those who collude with it: shared noise under secure aggregation.

    Args:
        budget: Epsilon and delta of every client.
        clipping: How a client's update is bounded; `Fixed(1.0)` if left out.
        honest_share: The share of the clients of a round that does not collude with the server.
        dropout: The largest share of the clients of a round that may drop out of it; with more, it is given up.
    """

    budget: Budget
    clipping: Policy[Any] | None = None
    honest_share: float = 0.7
    dropout: float = 0.1

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return "distributed"

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """Noise for as often as a client takes part, and clients in turn.

        Args:
            objective: Model and loss.
            work: What the algorithm's clients compute.
            facts: What is public about the run.
        """
        placement = Distributed.within(
            self.budget,
            facts.clients_per_round,
            facts.participations,
            honest_share=self.honest_share,
            dropout=self.dropout,
            clipping=self.clipping,
        )
        return Placed.in_turn(work, placement, facts)
