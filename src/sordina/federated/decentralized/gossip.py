"""Gossip averaging with noise (Muffliato): nobody sees more than its neighbours' messages.

Cyffers, Even, Bellet and Massoulie 2022. Every party noises its value once; then, for K rounds, everybody sends its
state to its neighbours and takes the weighted mean of what it has. With W the gossip matrix,

    y^0 = x + sigma z,        m^k = y^k + tau z_k,        y^(k+1) = W m^k,

or with Chebyshev's acceleration ``y^(k+1) = w_k W m^k + (1 - w_k) y^(k-1)``. A coalition sees the messages of its
members' neighbours and knows its own noises; what it does not know stays linear and Gaussian, so
`accounting.linear_gaussian` says exactly what it learns about each party. It may also send what it likes: its own
messages are known to it.

**The noise tau on every message** was added here. Without it states are *deterministic* functions of earlier
ones, and whoever sees enough of them with infinite precision solves for the rest: a neighbour's first two messages,
for instance, show a mean of second neighbours of which all but one are known. Exact accounts are then either those of
local privacy or a matter of the last bit. A fiftieth of sigma on every message ends that, raises the error by
``K tau^2 / sigma^2``, 2 % in 50 rounds, and lets messages live on a grid (`lattice`; smoothness: a hidden message has
a conditional deviation of at least tau / 2.5, 25 steps).

**The published bounds**, for noise on the values alone, at noise and sensitivity 1, of party u against observer v:

- of the conference (Theorem 1), ``sum_k sum_{w ~ v} (W^k)_uw^2 / |(W^k)_w|^2``: what each message tells by itself,
  added up. Messages share noises, and together they tell more: on a path of three, the end party that sees two messages
  of the middle one learns the other end's noised value in full, where the sum is a third (`sum_over_messages`).
- of the revised preprint (Theorem 11 of arXiv 2206.05091, as the code of Bellet et al. 2025, with two of its authors,
  computes it), the same with ``(W^k)_uw`` not squared, and at most local privacy's 1 (`revised_bound`). On the path it
  gives 1. On all pairs of the ring, the grid, the exponential and random graphs that were computed, exact losses are
  below it. Small weights break it, too: on a path 0, 1, 2 whose end 2 has a hundred other neighbours, party 0 learns
  0.19 about party 2 in two rounds, even with the noise on messages, where it says 0.02.

Both are computed for comparison; accounts never use them.

`GossipPlan.agreed` adds what everybody sees if, after K rounds, one party's estimate is passed on to all: the state of
the system is then known to everybody, and rounds of training compose (`gossip_training`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.accounting import linear_gaussian
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.graphs import CommunicationGraph
from sordina.federated.decentralized.lattice import (
    WEIGHT_BITS,
    add_fine_gaussian,
    check_exact,
    drawn,
    effective,
    step_for,
)
from sordina.privacy import check_positive
from sordina.random import add_gaussian

Doubles = NDArray[np.float64]
MESSAGE_NOISE = 0.02
"""tau over sigma, unless said otherwise."""
ACCELERATED = 0.002
"""The same with acceleration, which amplifies the noise of messages on slowly mixing graphs."""
_OFF = 1e-12
"""Powers of W are right to that relative part: sums of positive numbers, or eigenvectors of at most 2000 parties."""
_LARGEST_CHEBYSHEV = 2000
_MOST_SEEN = 3000
_REACH = 64.0


@dataclass(frozen=True)
class GossipPlan:
    """All that is public of an averaging.

    Args:
        graph: Who talks with whom.
        rounds: K.
        noise: sigma at sensitivity 1, as drawn.
        message_noise: tau over sigma.
        accelerated: Chebyshev's weights instead of plain averaging.
        leader: The party whose last state is passed on to everybody; None for plain averaging, which ends without.
    """

    graph: CommunicationGraph
    rounds: int
    noise: float = 1.0
    message_noise: float = MESSAGE_NOISE
    accelerated: bool = False
    leader: int | None = None

    def __post_init__(self) -> None:
        check_positive("noise", self.noise)
        check_positive("message noise", self.message_noise)
        if self.message_noise > 1:
            raise InvalidInput(f"the noise of a message is at most that of a value, got {self.message_noise} times it.")
        if self.rounds < 1:
            raise InvalidInput(f"gossip takes at least one round, got {self.rounds}.")
        if not self.graph.connected:
            raise InvalidInput(f"the graph {self.graph.name} does not connect its parties: no mean would be found.")
        if self.leader is not None and not 0 <= self.leader < self.graph.parties:
            raise InvalidInput(f"the leader is one of 0 to {self.graph.parties - 1}, got {self.leader}.")

    @property
    def tau(self) -> float:
        """The noise of a message, as drawn."""
        return self.noise * self.message_noise

    @cached_property
    def weights(self) -> Any:
        """W; coarser where products with Chebyshev's weights must stay exact."""
        return self.graph.gossip_weights(WEIGHT_BITS // 2 if self.accelerated else WEIGHT_BITS)

    @cached_property
    def mixing(self) -> float:
        """The largest size of an eigenvalue of W besides 1: how much of a disagreement one round leaves."""
        if self.graph.parties <= _LARGEST_CHEBYSHEV:
            return float(max(abs(self.eigenvalues[0]), abs(self.eigenvalues[-2])))
        from scipy.sparse.linalg import eigsh

        found: Any = eigsh(self.weights, k=3, which="LM", return_eigenvectors=False, tol=1e-4)
        return float(np.sort(np.abs(found))[-2])

    @cached_property
    def momenta(self) -> tuple[float, ...]:
        """w_k for each round, in multiples of 2^-12; 1 without acceleration."""
        if not self.accelerated:
            return (1.0,) * self.rounds
        unit, rho, weight, found = 2.0 ** (WEIGHT_BITS // 2), self.mixing, 1.0, []
        for k in range(self.rounds):
            found.append(np.rint(weight * unit) / unit)
            weight = 1 / (1 - rho**2 / (2 if k == 0 else 4) * weight)
        return tuple(float(one) for one in found)

    def error(self, rounds: int | None = None) -> float:
        """The mean squared error of a party's estimate, per coordinate, that is due to noise (at sensitivity 1).

        Exact up to 2000 parties, else an upper bound. What is left of the parties' own differences is not in it: at
        most ``mixing^(2 K)`` of them.

        Args:
            rounds: After how many rounds; all of them if left out.
        """
        rounds = self.rounds if rounds is None else rounds
        n, noises = self.graph.parties, np.array([self.noise**2, *[self.tau**2] * rounds])
        if n <= _LARGEST_CHEBYSHEV:
            return float(noises @ (self._ended(rounds) ** 2).sum(axis=1)) / n
        if self.accelerated:
            raise Unsupported(f"accelerated gossip is accounted for up to {_LARGEST_CHEBYSHEV} parties, got {n}.")
        ages = np.array([rounds, *range(rounds, 0, -1)])
        return float(noises @ (1 / n + self.mixing ** (2.0 * ages)))

    def _ended(self, rounds: int) -> Doubles:
        """How the state after ``rounds`` answers to the first noise and to those of the messages, by eigenvalue."""
        state, before = np.zeros((2, rounds + 1, self.graph.parties))
        state[0] = 1.0
        for k in range(rounds):
            state[k + 1] += 1.0
            weight = self.momenta[k]
            moved = weight * self.eigenvalues * state + (1 - weight) * before
            state[k + 1] -= 1.0
            state, before = moved, state
        return state

    @cached_property
    def eigenvalues(self) -> Doubles:
        """Of W, in order."""
        return np.asarray(np.linalg.eigvalsh(self.weights.toarray()))


def average(
    values: Doubles,
    plan: GossipPlan,
    rng: np.random.Generator,
    *,
    sensitivity: float = 1.0,
    trace: list[Doubles] | None = None,
) -> Doubles:
    """Run the averaging, all parties at once; every party's last state.

    Args:
        values: One row for each party, of norm at most ``sensitivity``; overwritten.
        plan: What is done.
        rng: A secure generator if anybody is to rely on it.
        sensitivity: What the noise is multiplied by.
        trace: Given the messages of every round, for tests and audits of small runs.
    """
    sigma, tau = plan.noise * sensitivity, plan.tau * sensitivity
    step = step_for(tau)
    check_exact(sensitivity + _REACH * sigma, step)
    if values.shape[0] != plan.graph.parties or values.dtype != np.float64 or not values.flags.c_contiguous:
        raise InvalidInput(f"gossip averages one contiguous float64 row for each of {plan.graph.parties} parties.")
    add_fine_gaussian(values, sigma, step, rng)
    state, before, weights = values, values, plan.weights
    for weight in plan.momenta:
        message = np.array(state) if plan.accelerated else state
        add_gaussian(message, tau, rng)
        if trace is not None:
            trace.append(message.copy())
        fresh = weights @ message
        if weight != 1.0:
            fresh = weight * fresh + (1 - weight) * before
        before, state = state, fresh
    return np.ascontiguousarray(state)


def pair_losses(plan: GossipPlan, observers: NDArray[np.int64] | list[int] | None = None) -> Doubles:
    """mu^2 at sensitivity 1 of what each observer learns about each party; 0 about itself.

    Args:
        plan: What is done.
        observers: Rows of the table; everybody if left out.
    """
    chosen = np.arange(plan.graph.parties) if observers is None else np.asarray(observers, dtype=np.int64)
    account = _Responses.of(plan, chosen)
    return np.stack([account.losses(np.array([one])) for one in chosen])


def coalition_losses(plan: GossipPlan, coalition: NDArray[np.int64] | list[int]) -> Doubles:
    """mu^2 at sensitivity 1 of what a coalition, putting all its views together, learns about each party.

    Args:
        plan: What is done.
        coalition: Its members; 0 about themselves.
    """
    members = np.unique(np.asarray(coalition, dtype=np.int64))
    if not len(members) or members[0] < 0 or members[-1] >= plan.graph.parties:
        raise InvalidInput(f"a coalition has members among 0 to {plan.graph.parties - 1}.")
    return _Responses.of(plan, members).losses(members)


def sum_over_messages(plan: GossipPlan, observers: NDArray[np.int64] | list[int] | None = None) -> Doubles:
    """What single messages tell, added up: mu^2, ``sum_k sum_{w ~ v} (W^k)_uw^2 / (sigma^2 |(W^k)_w|^2)``.

    At sensitivity 1; Theorem 1 of Cyffers et al. 2022. For comparison only: see the head of this file.

    Args:
        plan: What is done; its message noise and acceleration are left out.
        observers: Rows of the table; everybody if left out.
    """
    return _summed(plan, observers, 2)


def revised_bound(plan: GossipPlan, observers: NDArray[np.int64] | list[int] | None = None) -> Doubles:
    """mu^2 of the revised theorem, ``min(1, sum_k sum_{w ~ v} (W^k)_uw / |(W^k)_w|^2) / sigma^2``, at sensitivity 1.

    For comparison only: see the head of this file.

    Args:
        plan: What is done; its message noise and acceleration are left out.
        observers: Rows of the table; everybody if left out.
    """
    return np.minimum(_summed(plan, observers, 1), 1 / plan.noise**2)


def _summed(plan: GossipPlan, observers: NDArray[np.int64] | list[int] | None, exponent: int) -> Doubles:
    n = plan.graph.parties
    chosen = np.arange(n) if observers is None else np.asarray(observers, dtype=np.int64)
    power, total = np.eye(n), np.zeros((len(chosen), n))
    picks = plan.graph.adjacency[chosen]
    for _ in range(plan.rounds):
        total += picks @ (power**exponent / (power**2).sum(axis=1, keepdims=True))
        power = plan.weights @ power
    total[np.arange(len(chosen)), chosen] = 0.0
    return total / plan.noise**2


@dataclass(frozen=True)
class _Responses:
    """How the message of each party at round k answers to a unit of what entered j rounds earlier: polynomials of W.

    ``rows[k, j]`` is ``(observed parties, n)``: j = 0 for values and their noises, j = 1, 2, ... for the noises of the
    messages of round j - 1. Without acceleration only k - j matters.
    """

    plan: GossipPlan
    places: NDArray[np.int64]
    """The parties whose rows there are."""
    powers: NDArray[np.float64] | None
    """``(2 K + 1, observed, n)``: rows of W^p."""
    spectrum: tuple[Doubles, Doubles] | None
    """For acceleration: ``T[k, j, eigenvalue]`` and the eigenvectors."""

    @classmethod
    def of(cls, plan: GossipPlan, observers: NDArray[np.int64]) -> _Responses:
        n = plan.graph.parties
        adjacency = plan.graph.adjacency
        near = np.unique(np.concatenate([adjacency[[one]].indices for one in observers]))
        extra = [] if plan.leader is None else [plan.leader]
        places = np.unique(np.concatenate([near, observers, np.array(extra, dtype=np.int64)])).astype(np.int64)
        if plan.accelerated:
            if n > _LARGEST_CHEBYSHEV:
                raise Unsupported(f"accelerated gossip is accounted for up to {_LARGEST_CHEBYSHEV} parties, got {n}.")
            return cls(plan, places, None, _spectrum(plan))
        power = np.zeros((len(places), n))
        power[np.arange(len(places)), places] = 1.0
        powers = [power]
        for _ in range(2 * plan.rounds):
            powers.append((plan.weights @ powers[-1].T).T)
        return cls(plan, places, np.stack(powers), None)

    def losses(self, members: NDArray[np.int64]) -> Doubles:
        """For one coalition."""
        plan, n = self.plan, self.plan.graph.parties
        near = np.unique(plan.graph.adjacency[members].indices)
        seen = np.setdiff1d(near, members)
        spots = [(k, int(one)) for k in range(plan.rounds) for one in seen]
        if plan.leader is not None and plan.leader not in members:
            spots.append((plan.rounds, plan.leader))
        if len(spots) > _MOST_SEEN:
            raise Unsupported(
                f"a view of {len(spots)} messages is too large to be accounted (at most {_MOST_SEEN}): take fewer "
                "rounds, a smaller coalition or a sparser graph."
            )
        covariance, signal = self._view(spots, members)
        wanted = np.setdiff1d(np.arange(n), members)
        found = np.zeros(n)
        # a view that does not answer to a party at all, too far away for K rounds, tells nothing about it
        reached = wanted[np.abs(signal[:, wanted]).max(axis=0, initial=0.0) > 0]
        if len(reached):
            found[reached] = linear_gaussian.squared_losses(signal[:, reached], covariance=covariance, off=_OFF)
        return found

    def _view(self, spots: list[tuple[int, int]], members: NDArray[np.int64]) -> tuple[Doubles, Doubles]:
        """The covariance of unknown noises in the messages at ``spots``, and how they answer to each party's value."""
        if self.powers is not None:
            return self._plain_view(spots, members)
        assert self.spectrum is not None
        plan = self.plan
        responses, vectors = self.spectrum
        ends = plan.rounds + 1
        scales = np.array([effective(plan.noise), *[effective(plan.tau)] * ends])
        unknown = np.ones(plan.graph.parties)
        unknown[members] = 0.0
        blocks = []
        for k, party in spots:  # one row of the noise matrix for each message: columns (j, party)
            rows = (vectors[party] * responses[k]) @ vectors.T
            blocks.append((scales[:, None] * rows * unknown).ravel())
        noise = np.stack(blocks)
        signal = np.stack([(vectors[party] * responses[k, 0]) @ vectors.T for k, party in spots])
        return noise @ noise.T, signal

    def _plain_view(self, spots: list[tuple[int, int]], members: NDArray[np.int64]) -> tuple[Doubles, Doubles]:
        assert self.powers is not None
        plan, powers = self.plan, self.powers
        value, message = effective(plan.noise) ** 2, effective(plan.tau) ** 2
        rounds = np.array([k for k, _ in spots])
        parties = np.array([one for _, one in spots])
        place = np.searchsorted(self.places, parties)
        signal = powers[rounds, place]
        total = rounds[:, None] + rounds
        covariance = value * powers[total, place[:, None], parties]
        covariance -= value * signal[:, members] @ signal[:, members].T
        for j in range(plan.rounds + 1):  # noise of the messages of round j, in messages of rounds >= j
            both = (rounds[:, None] >= j) & (rounds >= j)
            covariance += np.where(both, message * powers[np.maximum(total - 2 * j, 0), place[:, None], parties], 0.0)
            own = powers[np.maximum(rounds - j, 0), place][:, members] * (rounds >= j)[:, None]
            covariance -= message * own @ own.T
        return (covariance + covariance.T) / 2, signal


def _spectrum(plan: GossipPlan) -> tuple[Doubles, Doubles]:
    """``T[k, j]`` at every eigenvalue of W, for the messages of rounds 0 to K (the last one is the leader's)."""
    values, vectors = np.linalg.eigh(plan.weights.toarray())
    ends = plan.rounds + 1
    responses = np.zeros((ends, ends + 1, len(values)))
    state, before = np.zeros((ends + 1, len(values))), np.zeros((ends + 1, len(values)))
    state[0] = 1.0
    for k in range(ends):
        message = state.copy()
        message[k + 1] += 1.0
        responses[k] = message
        if k < plan.rounds:
            weight = plan.momenta[k]
            state, before = weight * values * message + (1 - weight) * before, state
    return responses, vectors


def noise_for(plan: GossipPlan, squared_loss: float) -> GossipPlan:
    """The plan with the noise at which a loss that was computed at its present noise becomes mu^2 = 1.

    Args:
        plan: A plan, of any noise.
        squared_loss: mu^2 of what is to be bounded, under that plan.
    """
    from dataclasses import replace

    return replace(plan, noise=drawn(plan.noise * math.sqrt(squared_loss)))
