"""Peers as processes of their own: each with its data, its noise and its account; Ray carries their messages.

A `GossipPeer` or a `WalkPeer` is an ordinary object that knows nothing of Ray; `gossip_on_ray` and `walk_on_ray` make
actors of them, on one machine or on a cluster that ``ray.init`` was told of. The driver passes references on and reads
no message.

**Who is hostile.** A peer takes one message a round from each neighbour, and only what an honest neighbour could send:

==========================  ===================================================================================
unknown sender, a second    refused, the sender is named (`GossipPeer.refused`)
message, another round's
malformed, not finite       refused; the peer uses its own message in that neighbour's place
1e30                        refused beyond `largest`; within it, a hostile peer moves its neighbours by its weight
a colluding majority        accounted for: `gossip.coalition_losses`. If peers refuse or replace messages the mean
                            is off, and pairs keep the guarantee of the worst pair, which holds without that
==========================  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.federated.decentralized.gopa import clipped
from sordina.federated.decentralized.gossip import GossipPlan
from sordina.federated.decentralized.lattice import add_fine_gaussian, step_for
from sordina.federated.decentralized.walk import WalkPlan, linear_bounds
from sordina.federated.privacy.accounts import ClientAccount
from sordina.random import add_gaussian, generator

Doubles = NDArray[np.float64]
_REACH = 64.0
_ONCE = Fraction(1)


class GossipPeer:
    """One party of an averaging.

    Args:
        number: By which it is known.
        weights: Its row of the gossip matrix, by party; its own among them.
        value: Its private vector.
        noise: sigma, as drawn.
        message_noise: tau, as drawn.
        sensitivity: The bound of a value.
        limit: In how many averagings it takes part at most.
        folder: Where its account is kept; None keeps it in memory.
        seed: For tests; noise is secure without.
    """

    def __init__(
        self,
        number: int,
        weights: Mapping[int, float],
        value: Doubles,
        noise: float,
        message_noise: float,
        *,
        sensitivity: float = 1.0,
        limit: int | None = None,
        folder: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.number, self.weights = number, dict(weights)
        self.refused: list[tuple[int, str]] = []
        self._value = clipped(np.asarray(value, dtype=np.float64)[None], sensitivity)[0]
        self._sigma, self._tau = noise * sensitivity, message_noise * sensitivity
        self.largest = sensitivity + _REACH * self._sigma
        self._rng = generator(seed)
        most = None if limit is None else Fraction(limit)
        self.account = ClientAccount(most) if folder is None else ClientAccount.kept(_account_file(folder), most)
        self._state: Doubles | None = None
        self._round = -1
        self._own = self._value
        self._heard: dict[int, Doubles] = {}

    def start(self) -> int:
        """Pay, then noise the value; how often this peer has taken part."""
        self.account.charge(_ONCE)
        state = self._value.copy()
        add_fine_gaussian(state, self._sigma, step_for(self._tau), self._rng)
        self._state, self._round, self._heard = state, -1, {}
        return self.account.participations

    def message(self) -> tuple[int, int, Doubles]:
        """Begin a round: ``(sender, round, message)`` for all neighbours."""
        if self._state is None:
            raise InvalidInput(f"peer {self.number} has not started.")
        self._round += 1
        self._own = self._state.copy()
        add_gaussian(self._own, self._tau, self._rng)
        self._heard = {}
        return self.number, self._round, self._own

    def receive(self, letters: Sequence[Any]) -> None:
        """Take the messages of a round, those that may count."""
        for letter in letters:
            sender, reason = self._judged(letter)
            if reason:
                self.refused.append((sender, reason))

    def _judged(self, letter: Any) -> tuple[int, str]:
        try:
            sender, number, message = letter
            sender = int(sender)
        except (TypeError, ValueError):
            return -1, "no message"
        if sender not in self.weights or sender == self.number:
            return sender, "no neighbour"
        if number != self._round:
            return sender, "another round's message"
        if sender in self._heard:
            return sender, "a second message"
        if not isinstance(message, np.ndarray) or message.dtype != np.float64 or message.shape != self._own.shape:
            return sender, "malformed"
        if not (np.abs(message) <= self.largest).all():
            return sender, "numbers that no honest peer reaches"
        self._heard[sender] = message
        return sender, ""

    def advance(self) -> None:
        """End a round: the weighted mean of what was heard, its own message in the place of what was not."""
        if self._state is None:
            raise InvalidInput(f"peer {self.number} has not started.")
        state = np.zeros_like(self._state)
        for party in sorted(self.weights):
            state += self.weights[party] * self._heard.get(party, self._own)
        self._state = state

    def estimate(self) -> Doubles:
        """Its estimate of the mean, which is its own."""
        if self._state is None:
            raise InvalidInput(f"peer {self.number} has not started.")
        return self._state

    def standing(self) -> tuple[int, list[tuple[int, str]]]:
        """How often it took part, and whom it refused."""
        return self.account.participations, self.refused


class WalkPeer:
    """One party of a walk: softmax regression on its own rows.

    Args:
        rows: Its inputs; scaled to norm 1 at most.
        labels: Their classes.
        plan: Of the walk.
        learning_rate: At most 2, so that steps are contractions.
        folder: Where its account is kept; None keeps it in memory.
        seed: For tests; noise is secure without.
    """

    def __init__(
        self,
        rows: Doubles,
        labels: NDArray[np.int64],
        plan: WalkPlan,
        learning_rate: float = 1.0,
        *,
        folder: str | None = None,
        seed: int | None = None,
    ) -> None:
        bound, smooth = linear_bounds(1.0)
        if not 0 < learning_rate <= 2 / smooth:
            raise InvalidInput(f"a walk's learning rate lies in (0, {2 / smooth:g}], got {learning_rate}.")
        whole = clipped(np.asarray(rows, dtype=np.float64), 1.0)
        self._rows = np.hstack([whole, np.ones((len(whole), 1))])
        self._labels, self._rate = np.asarray(labels), learning_rate
        self._sigma = plan.noise_multiplier * bound * learning_rate
        self._rng = generator(seed)
        most = Fraction(plan.contributions)
        self.account = ClientAccount(most) if folder is None else ClientAccount.kept(_account_file(folder), most)

    def step(self, token: Any) -> Doubles:
        """A noisy step on the token ``(classes, inputs + 1)``; noise alone when its steps are used up.

        A token that is no finite matrix of the right width is replaced by zeros: its sender spoiled it.
        """
        model = np.array(token, dtype=np.float64) if isinstance(token, np.ndarray) else np.zeros((0, 0))
        if model.ndim != 2 or model.shape[1] != self._rows.shape[1] or not np.isfinite(model).all():
            classes = model.shape[0] if model.ndim == 2 and model.shape[0] else int(self._labels.max(initial=1)) + 1
            model = np.zeros((classes, self._rows.shape[1]))
        if self.account.allows(_ONCE):
            self.account.charge(_ONCE)
            model -= self._rate * self._gradient(model)
        model = np.ascontiguousarray(model)
        add_gaussian(model, self._sigma, self._rng)
        return model

    def _gradient(self, model: Doubles) -> Doubles:
        scores = np.clip(self._rows @ model.T, -1e6, 1e6)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(chances)), self._labels] -= 1.0
        found: Doubles = chances.T @ self._rows / max(1, len(self._rows))
        return found

    def standing(self) -> int:
        """How many steps it made with its data."""
        return self.account.participations


def _account_file(folder: str) -> Path:
    from sordina import private_files

    private_files.make_folder(Path(folder))
    return Path(folder) / "account.json"


def gossip_peers(
    plan: GossipPlan,
    values: Sequence[Doubles],
    *,
    sensitivity: float = 1.0,
    limit: int | None = None,
    seed: int | None = None,
) -> list[dict[str, Any]]:
    """What each peer of ``plan`` is made with.

    Args:
        plan: Graph, rounds and noise; plain averaging.
        values: One private vector for each party.
        sensitivity: The bound of a value.
        limit: In how many averagings a peer takes part at most.
        seed: For tests.
    """
    if plan.accelerated or len(values) != plan.graph.parties:
        raise InvalidInput(f"peers average plainly, one value for each of {plan.graph.parties} parties.")
    weights = plan.weights
    made = []
    for party, value in enumerate(values):
        row = slice(weights.indptr[party], weights.indptr[party + 1])
        own = {int(one): float(weight) for one, weight in zip(weights.indices[row], weights.data[row], strict=True)}
        made.append(
            {"number": party, "weights": own, "value": value, "noise": plan.noise, "message_noise": plan.tau,
             "sensitivity": sensitivity, "limit": limit, "seed": None if seed is None else seed + party}
        )  # fmt: skip
    return made


def gossip_on_ray(plan: GossipPlan, peers: Sequence[dict[str, Any]]) -> tuple[list[Doubles], list[Any]]:
    """Average among Ray actors; every peer's estimate and standing.

    Args:
        plan: Graph and rounds.
        peers: What `gossip_peers` gave, or the same from elsewhere.
    """
    import ray

    kind = ray.remote(num_cpus=0)(_GossipActor)
    actors = [kind.remote(**one) for one in peers]
    ray.get([actor.start.remote() for actor in actors])
    near = [plan.graph.neighbours(party) for party in range(plan.graph.parties)]
    for _ in range(plan.rounds):
        letters = [actor.message.remote() for actor in actors]
        ray.get([actor.take.remote(*(letters[one] for one in near[k])) for k, actor in enumerate(actors)])
        ray.get([actor.advance.remote() for actor in actors])
    ended = ray.get([actor.estimate.remote() for actor in actors])
    standing = ray.get([actor.standing.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)
    return ended, standing


class _GossipActor(GossipPeer):
    """A peer as Ray calls it: references that are arguments of their own arrive as the messages they stand for."""

    def take(self, *letters: Any) -> None:
        self.receive(letters)


def walk_on_ray(
    plan: WalkPlan, peers: Sequence[dict[str, Any]], token: Doubles, steps: int, seed: int | None = None
) -> tuple[Doubles, list[int]]:
    """Let a token walk among Ray actors; the model at the end, and how many steps each peer made with its data.

    Args:
        plan: Of the walk.
        peers: Keyword arguments of each `WalkPeer`, without the plan.
        token: The first model.
        steps: How many steps to go.
        seed: Of the path, which is public.
    """
    import ray

    if len(peers) != plan.parties:
        raise InvalidInput(f"the plan is for {plan.parties} parties, got {len(peers)}.")
    kind = ray.remote(num_cpus=0)(WalkPeer)
    actors = [kind.remote(plan=plan, **one) for one in peers]
    path = (
        np.arange(steps) % plan.parties if plan.ring else np.random.default_rng(seed).integers(plan.parties, size=steps)
    )
    held: Any = ray.put(token)
    for holder in path:
        held = actors[int(holder)].step.remote(held)
    ended, made = ray.get(held), ray.get([actor.standing.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)
    return ended, made
