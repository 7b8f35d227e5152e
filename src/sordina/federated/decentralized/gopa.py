"""GOPA: a server that sees every message, none of them readable, and a sum as accurate as a trusted curator's.

**The account** of GOPA and of DECOR, for the graph that was drawn: neighbours share noise with opposite signs.
Every party k adds ``sum_l Delta_kl + eta_k`` with ``Delta_kl = -Delta_lk ~ N(0, s_Delta^2)`` for each neighbour l and
``eta_k ~ N(0, s_eta^2)``. The coalition sees every message and knows the noises of its members. What it does not know
are the noises of honest parties and of pairs of honest parties; with L the Laplacian of the graph H between these,

    mu_i^2 = S^2 e_i^T (s_Delta^2 L + s_eta^2 I)^-1 e_i        for the honest party i

(`accounting.linear_gaussian`; a statement about a unit that is one party). It lies between ``S^2 / (n s_eta^2)``, the
trusted curator's who adds the noises of the n honest parties, and ``S^2 / s_eta^2``, that of a party which has no
honest neighbour. Such a party is left alone, and `party_losses` refuses.

**Thousands of parties.** No dense matrix: on each connected part of H, of m parties, the constant vector is solved for
exactly, and on the rest the eigenvalues are at least ``s_eta^2 + s_Delta^2 lambda_2``. One step of the Krylov space
bounds every mu_i from above in closed form; the largest of these bounds are then replaced by conjugate gradients until
none that is left can be the maximum. `second_eigenvalue` bounds lambda_2 from below by Lanczos' method, wrong with a
chance below 2^-60 over its own random start (Kuczynski and Wozniakowski 1992, Theorem 4.2).

**The protocol** (Sabater, Bellet and Ramon 2022). Each client k sends, on a public grid of step g,

    m_k = round_g(clip(v_k) + eta_k) + sum_{l ~ k} Delta_kl,       Delta_kl = -Delta_lk,

with independent noise ``eta_k ~ N(0, s_eta^2)`` and, for each neighbour l in a random graph, pairwise noise
``Delta_kl ~ N(0, s_Delta^2)`` that the two expand from a key they agreed on (`gopa_party`). The pairwise noises cancel
to the last bit, and the mean of the messages is the mean of the clipped updates plus ``mean(eta_k)``.

The coalition is the server and a stated share of the clients. The account is exact, per honest client, for the graph
that was drawn (above); smoothness, which `lattice` asks for, holds for up to `MOST_NEIGHBOURS` neighbours:
given all messages a pairwise noise has variance ``s_eta^2 / (2 d)`` at least in every direction, 9 g^2 or more as
``s_eta >= 64 g`` and d <= 220.

**Who colludes** is not known, so the account takes coalitions of the stated size drawn at random, independently of the
graph, and counts the worst of them. A coalition whose members were chosen after the graph was drawn is another
matter: it could hold all neighbours of one client, who is then protected by ``eta_k`` alone. The statement says so.

**Against the curator.** A curator's noise is ``n_H s_eta^2`` in the sum. GOPA's is ``n s_eta^2``: whoever colludes
knows its own noise, which protects nobody but still disturbs the mean. So with a share h of honest clients the mean
squared error is ``1/h`` times ``mu^2 n_H s_eta^2 / S^2`` times a fully trusted curator's.

**In process** the clients of a round are one computation and the pairwise noises, which cancel, are not drawn: the sum
is the same to the last bit. On Flower (`flower.gopa_round`) clients agree on keys and send what the formula says;
`gopa_party` has the protocol, with commitments and repair.

**Drop-outs.** At most the planned share may drop out of a round; the account leaves the edges to so many honest clients
out. If more drop out, nothing can be read and the round is given up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse import csgraph

from sordina.accounting import ApproximateDP, Composed, Event, Repeated, accountant, linear_gaussian, noise_multiplier
from sordina.accounting.events import Gaussian
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.algorithms.algorithm import ClientWork
from sordina.federated.decentralized.graphs import CommunicationGraph, k_out
from sordina.federated.decentralized.lattice import drawn, effective, step_for, whole_steps
from sordina.federated.messages import ClientResult, ClientUpdate, Release
from sordina.federated.objective import Objective
from sordina.federated.population import ClientSelection
from sordina.federated.privacy.accounts import Leakage, exact
from sordina.federated.privacy.placement import Facts, FederationFacts, Placed, PrivacyStatement, check_in_turn
from sordina.privacy import Adjacency, Budget, Unit, check_delta, check_positive, format_up
from sordina.random import add_gaussian

# Noise that neighbours share with opposite signs: the account of GOPA and of DECOR, for the graph that was drawn.

Doubles = NDArray[np.float64]
_SMALL = 1200
"""Parts of at most so many parties are solved by Cholesky."""
_BATCH = 64
_STEPS = 600
_MISSED = 60 * math.log(2)


def account_failure(parties: int) -> float:
    """The chance that `party_losses` of so many honest parties is wrong: that of its eigenvalues, one for each part.

    Args:
        parties: How many honest parties there are.

    >>> account_failure(1000), account_failure(7000) < 1e-16
    (0.0, True)
    """
    return parties // _SMALL * 2.0**-60 if parties > _SMALL else 0.0


def party_losses(
    graph: CommunicationGraph,
    honest: NDArray[np.bool_],
    independent: float,
    pairwise: float,
    rng: np.random.Generator | None = None,
) -> Doubles:
    """mu^2 at sensitivity 1 of every honest party against all the others together, rounded up.

    Args:
        graph: Who shares noise with whom.
        honest: Which parties do not belong to the coalition.
        independent: s_eta, as an account may count it.
        pairwise: s_Delta, likewise.
        rng: Starts Lanczos' method, so that two who compute the same account find the same.

    Raises:
        Unsupported: An honest party has no honest neighbour.
    """
    check_positive("independent noise", independent)
    check_positive("pairwise noise", pairwise)
    if honest.shape != (graph.parties,) or int(honest.sum()) < 2:
        raise InvalidInput("pairwise noise protects nobody with fewer than two honest parties.")
    inner = graph.among(honest)
    alone = int((inner.degrees == 0).sum())
    if alone:
        raise Unsupported(
            f"{alone} of {inner.parties} honest parties share noise with colluders only and would be left alone with "
            "their own small noise: let every party choose more neighbours, or draw another graph."
        )
    adjacency = inner.adjacency
    parts, label = csgraph.connected_components(adjacency, directed=False)
    losses = np.empty(inner.parties)
    for part in range(int(parts)):
        places = np.flatnonzero(label == part)
        losses[places] = _part_losses(adjacency[places][:, places], independent**2, pairwise**2, rng)
    return losses


def _part_losses(adjacency: Any, independent: float, pairwise: float, rng: np.random.Generator | None) -> Doubles:
    size = adjacency.shape[0]
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    laplacian = sparse.diags_array(degrees) - adjacency
    covariance: Any = sparse.csr_array(pairwise * laplacian + independent * sparse.eye_array(size))
    if size <= _SMALL:
        return linear_gaussian.squared_losses(np.eye(size), covariance=covariance.toarray())
    floor = independent + pairwise * second_eigenvalue(sparse.csr_array(laplacian), degrees, rng)
    losses = _one_step(degrees, independent, pairwise, floor)
    order = np.argsort(-losses)
    largest = 0.0
    for first in range(0, size, _BATCH):
        batch = order[first : first + _BATCH]
        if losses[batch[0]] <= largest:
            break
        columns = np.zeros((size, len(batch)))
        columns[batch, np.arange(len(batch))] = 1.0
        found = linear_gaussian.squared_losses(
            sparse.csc_array(columns), covariance=covariance, floor=independent * (1 - 1e-9)
        )
        losses[batch] = np.minimum(found, losses[batch])
        largest = max(largest, float(losses[batch].max()))
    return losses


def _one_step(degrees: Doubles, independent: float, pairwise: float, floor: float) -> Doubles:
    """``e_i^T C^-1 e_i <= 1/(m s_eta^2) + min_a f(a)`` with x = a v, ``v = e_i - 1/m``, from above.

    ``f(a) = 2 a v.v - a^2 v.Cv + (v.v - 2 a v.Cv + a^2 |Cv|^2) / floor``, which the degree determines.
    """
    size = len(degrees)
    own = 1 - 1 / size
    energy = independent * own + pairwise * degrees
    square = independent**2 * own + 2 * independent * pairwise * degrees + pairwise**2 * (degrees**2 + degrees)
    a = (energy / floor - own) / (square / floor - energy)
    rest = 2 * a * own - a**2 * energy + (own - 2 * a * energy + a**2 * square) / floor
    bound: Doubles = (1 / (size * independent) + np.maximum(rest, 0.0)) * (1 + 1e-9)
    return bound


def second_eigenvalue(laplacian: Any, degrees: Doubles, rng: np.random.Generator | None = None) -> float:
    """A lower bound of the least eigenvalue of a connected graph's Laplacian besides 0; wrong with chance 2^-60.

    Lanczos' method, k steps from a random start, on ``c I - L >= 0`` orthogonally to the constant vector: the largest
    eigenvalue is at most the one found over ``1 - x``, but with a chance of ``1.648 sqrt(n) e^(-sqrt(x) (2k - 1))``.

    Args:
        laplacian: L, sparse.
        degrees: Its diagonal.
        rng: Draws the start.
    """
    size = len(degrees)
    top = 2 * float(degrees.max())
    steps = min(_STEPS, size - 1)
    share = ((math.log(1.648 * math.sqrt(size)) + _MISSED) / (2 * steps - 1)) ** 2
    rng = np.random.default_rng() if rng is None else rng
    vector = rng.standard_normal(size)
    vector -= vector.mean()
    vector /= np.linalg.norm(vector)
    before, beta = np.zeros(size), 0.0
    diagonal, beside = [], []
    for _ in range(steps):
        after = top * vector - laplacian @ vector - beta * before
        alpha = float(after @ vector)
        diagonal.append(alpha)
        after -= alpha * vector
        after -= after.mean()
        beta = float(np.linalg.norm(after))
        if beta < 1e-10 * top:
            break
        beside.append(beta)
        before, vector = vector, after / beta
    values: Any = eigvalsh_tridiagonal(np.array(diagonal), np.array(beside[: len(diagonal) - 1]))
    if share >= 1:
        return 0.0
    return max(0.0, top - float(values.max()) / (1 - share) - 1e-9 * top)


# GOPA: a server that sees every message, none of them readable, and a sum as accurate as a trusted curator's.

MOST_NEIGHBOURS = 220
PAIRWISE = 300.0
"""s_Delta over s_eta, unless said otherwise."""
_ADJACENCY = Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class GopaNoise:
    """What is added, and the graph it was accounted for.

    Args:
        graph: Who shares noise with whom, among the clients of a round.
        threshold: The bound of a client's update, in L2 norm.
        independent: s_eta, as drawn.
        pairwise: s_Delta, as drawn.
        losses: mu^2 of a round at sensitivity 1 for each honest client of the worst coalition that was drawn.
        honest: How many clients of a round are honest.
        least: The fewest that must remain in a round.
        delta: The delta of the guarantee.
        participations: In how many rounds a client takes part at most.
        coalitions: How many coalitions were drawn.
        failure: The chance that the account of this graph is wrong (`pairwise_noise.account_failure`).
    """

    graph: CommunicationGraph
    threshold: float
    independent: float
    pairwise: float
    losses: NDArray[np.float64]
    honest: int
    least: int
    delta: float
    participations: int
    coalitions: int = 1
    failure: float = 0.0
    vectors_released: bool = False
    hides_failures: bool = True

    def __post_init__(self) -> None:
        check_positive("clipping threshold", self.threshold)
        check_positive("independent noise", self.independent)
        check_positive("pairwise noise", self.pairwise)
        check_delta(self.delta)
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
        neighbours: int = 10,
        threshold: float = 1.0,
        pairwise: float = PAIRWISE,
        dropout: float = 0.0,
        coalitions: int = 3,
        rng: np.random.Generator | None = None,
    ) -> GopaNoise:
        """Draw a graph, and the least noise with which every honest client stays within ``budget``.

        Args:
            budget: Epsilon and delta of every honest client, against the server and all who collude with it.
            clients: How many clients take part in a round.
            participations: In how many rounds a client takes part at most.
            honest_share: The share of the clients that does not collude with the server.
            neighbours: How many others each client chooses to share noise with.
            threshold: The bound of a client's update.
            pairwise: s_Delta over s_eta.
            dropout: The largest share of clients that may drop out of a round.
            coalitions: How many coalitions are drawn; the worst counts.
            rng: Draws graph and coalitions, which are public or hypothetical; not the noise.
        """
        rng = np.random.default_rng() if rng is None else rng
        if not 0 < honest_share <= 1 or not 0 <= dropout < 1:
            raise InvalidInput(f"shares lie in [0, 1]: honest {honest_share}, dropping out {dropout}.")
        if coalitions < 1:
            raise InvalidInput(f"at least one coalition is drawn, got {coalitions}.")
        graph = k_out(clients, neighbours, rng)
        if int(graph.degrees.max()) > MOST_NEIGHBOURS:
            raise InvalidInput(f"no client may have more than {MOST_NEIGHBOURS} neighbours: choose fewer.")
        honest, lost = math.floor(honest_share * clients), math.floor(dropout * clients)
        losses = worst_losses(graph, honest, lost, pairwise, coalitions, rng)
        failure = coalitions * account_failure(honest - lost)
        left = Budget(budget.epsilon, budget.delta - failure)
        rate = noise_multiplier(lambda x: Repeated(Gaussian(x), participations), left, _ADJACENCY)
        wanted = threshold * math.sqrt(float(losses.max())) * rate * (1 + 1e-12)
        independent = drawn(_short(wanted))
        counted = effective(independent)
        return cls(
            graph, threshold, independent, drawn(_short(pairwise * counted)), losses / counted**2 * (1 + 1e-12), honest,
            clients - lost, budget.delta, participations, coalitions, failure,
        )  # fmt: skip

    def check(self, selection: ClientSelection, rounds: int) -> None:
        """Every client takes part equally often, as many each time as the graph has."""
        check_in_turn(selection, self.graph.parties, "gopa")

    def start(self, size: int) -> None:
        """Nothing to remember."""

    def cost(self, size: int) -> Fraction:
        """One participation."""
        return Fraction(1)

    @property
    def mu(self) -> float:
        """What one round tells about the least protected honest client."""
        return self.threshold * math.sqrt(float(self.losses.max())) * (1 + 2.0**-50)

    @property
    def noise_multiplier(self) -> float:
        """``1 / mu``: of a curator's noise that would protect as well."""
        return 1 / self.mu

    @property
    def step(self) -> float:
        """The grid of all messages."""
        return step_for(self.independent)

    def leakage(self, size: int) -> Leakage:
        """``(2 mu)^2``: a client that is *replaced* moves twice as far as one that is absent; and the failure."""
        return Leakage(gaussian=4 * exact(self.mu) ** 2, failure=exact(self.failure))

    def seal(self, outcome: ClientResult, state: None, rng: np.random.Generator) -> ClientUpdate:
        """At the clients: clip, add independent noise, round to the grid; pairwise noises cancel in the sum."""
        if not len(outcome.vectors):
            return ClientUpdate()
        values = clipped(outcome.vectors.double().numpy(), self.threshold)
        add_gaussian(values, self.independent, rng)
        return ClientUpdate((torch.from_numpy(whole_steps(values, self.step).sum(axis=0)),))

    def open(self, update: ClientUpdate, state: None, rng: np.random.Generator) -> tuple[Release | None, None]:
        """At the server: the mean over those that remained, or nothing where too few did."""
        if not update.sums or update.answered < self.least:
            return None, None
        return Release((update.sums[0].double() * (self.step / update.answered)).float()), None

    def event(self) -> Event:
        """What one round costs the least protected honest client."""
        return linear_gaussian.event(self.mu)

    def statement(self, facts: Facts) -> PrivacyStatement:
        """What every honest client is guaranteed."""
        event: Event = Repeated(self.event(), facts.participations)
        if self.failure:
            event = Composed((event, ApproximateDP(0.0, self.failure)))
        epsilon = accountant("pld").epsilon(event, self.delta, _ADJACENCY)
        clients = self.graph.parties
        words = (
            f"Distributed differential privacy (GOPA): every honest client has ({format_up(epsilon)}, "
            f"{format_up(self.delta)})-DP for all its data ({_ADJACENCY} neighbours: its update against one of zero) "
            f"against the server, which follows the protocol and sees every message, and {clients - self.honest} of "
            f"the {clients} clients of a round, after at most {facts.participations} participations: the worst of "
            f"{self.coalitions} coalitions drawn at random for the graph in use. A coalition that is chosen after "
            f"the graph can leave a client with its own noise alone.{facts.remarks(self.delta)}"
        )
        details: dict[str, Any] = {
            "mu_per_round": self.mu,
            "curator_ratio": self.curator_ratio,
            "independent_noise": self.independent,
            "pairwise_noise": self.pairwise,
            "neighbours": float(self.graph.degrees.mean()),
            "honest": self.honest,
            "limit": self.participations,
        }
        return PrivacyStatement("gopa", words, True, epsilon, self.delta, Unit.USER, details, event, _ADJACENCY)

    @property
    def curator_ratio(self) -> float:
        """``mu^2`` over that of a curator with the noise of the honest clients: 1 is ideal."""
        return float(self.losses.max()) * self.honest * effective(self.independent) ** 2


def _short(value: float) -> float:
    """Rounded up to 24 bits: whoever computes it on another machine finds the same, but for a chance of 1e-5."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, 24)), exponent - 24)


def worst_losses(
    graph: CommunicationGraph, honest: int, lost: int, pairwise: float, coalitions: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """mu^2, at sensitivity 1 and s_eta = 1, of the honest clients of the worst coalition among some drawn at random.

    Args:
        graph: Who shares noise with whom.
        honest: How many clients are honest.
        lost: How many of these may drop out.
        pairwise: s_Delta over s_eta.
        coalitions: How many coalitions to draw.
        rng: Draws them.
    """
    worst = np.zeros(0)
    for _ in range(coalitions):
        kept = np.zeros(graph.parties, dtype=np.bool_)
        kept[rng.permutation(graph.parties)[: honest - lost]] = True
        losses = party_losses(graph, kept, 1.0, pairwise, rng)
        if losses.max() > worst.max(initial=0.0):
            worst = losses
    return worst


def clipped(vectors: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Rows of norm at most ``threshold``, in a fresh array; a row that is not finite becomes 0.

    Args:
        vectors: One row for each client.
        threshold: The bound.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    safe = np.isfinite(norms)
    rows = np.where(safe, vectors, 0.0)
    short = threshold * (1 - 2.0**-40)  # what is left after rounding is no longer than the threshold
    return np.ascontiguousarray(rows * np.minimum(1.0, short / np.where(safe & (norms > 0), norms, short)))


@dataclass(frozen=True)
class GOPA:
    """Privacy of every honest client against the server, which sees every message, and those who collude with it.

    Args:
        budget: Epsilon and delta of every honest client.
        honest_share: The share of the clients of a round that does not collude with the server.
        neighbours: How many others each client chooses to share noise with.
        threshold: The bound of a client's update, in L2 norm.
        dropout: The largest share of the clients of a round that may drop out of it; with more, it is given up.
        pairwise: The noise that a pair shares over the noise of a single client.
        coalitions: How many coalitions are drawn to find the worst.
        graph_seed: Draws the graph, which is public, and the coalitions: a run that is kept draws it once and keeps it,
            so that it can be resumed. Left out, the run's seed does, or else the operating system.
    """

    budget: Budget
    honest_share: float = 0.7
    neighbours: int = 10
    threshold: float = 1.0
    dropout: float = 0.0
    pairwise: float = PAIRWISE
    coalitions: int = 3
    graph_seed: int | None = None

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return "gopa"

    def place(self, objective: Objective, work: ClientWork, facts: FederationFacts) -> Placed:
        """A graph, noise for as often as a client takes part, and clients in turn.

        Args:
            objective: Model and loss.
            work: What the algorithm's clients compute.
            facts: What is public about the run.
        """
        placement = GopaNoise.within(
            self.budget,
            facts.clients_per_round,
            facts.participations,
            honest_share=self.honest_share,
            neighbours=self.neighbours,
            threshold=self.threshold,
            dropout=self.dropout,
            pairwise=self.pairwise,
            coalitions=self.coalitions,
            rng=np.random.default_rng(facts.seed if self.graph_seed is None else self.graph_seed),
        )
        return Placed.in_turn(work, placement, facts)
