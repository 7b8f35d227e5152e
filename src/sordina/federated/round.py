"""A federated run, top to bottom: send, work, seal, open, update, look, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput, Unsupported
from sordina.federated.aggregation import Aggregator, blank
from sordina.federated.algorithms.algorithm import ClientWork, ServerStrategy
from sordina.federated.algorithms.fedavg import AddMean
from sordina.federated.algorithms.feddyn import FedDynServer
from sordina.federated.algorithms.fsvrg import FsvrgServer
from sordina.federated.algorithms.scaffold import ScaffoldServer
from sordina.federated.engines import ClientSide, FederatedEngine, RoundRequest
from sordina.federated.messages import Arrays, ClientUpdate, Refusal, Release, weight
from sordina.federated.population import ClientSelection, RowOrder
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.placement import Facts, Placement, PrivacyStatement
from sordina.federated.problem import Score, Validation

# When to stop: no improvement of the validation loss for some rounds.


@dataclass(frozen=True)
class Patience:
    """Stop after ``rounds`` validations without a new best; losses are first averaged over ``window`` validations.

    The papers use ``window = 1``, with which one lucky round among noisy ones ends a run early.

    >>> Patience(2).over([3.0, 1.0, 2.0]), Patience(2).over([3.0, 1.0, 2.0, 1.5])
    (False, True)
    """

    rounds: int
    window: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.window < 1:
            raise InvalidInput(f"patience and its window are at least 1, got {self.rounds} and {self.window}.")

    def over(self, losses: Sequence[float]) -> bool:
        """Whether it is time to stop."""
        smooth = self.smoothed(losses)
        if not smooth:
            return False
        return len(smooth) - 1 - smooth.index(min(smooth)) >= self.rounds

    def smoothed(self, losses: Sequence[float]) -> list[float]:
        """Running means over the window; a loss that is not finite counts as very bad."""
        finite = [loss if math.isfinite(loss) else 1e300 for loss in losses]
        ends = range(self.window, len(finite) + 1)
        return [sum(finite[end - self.window : end]) / self.window for end in ends]


# A federated run, top to bottom: send, work, seal, open, update, look.

_STEP_ALONG_ONE_MEAN = (AddMean, ScaffoldServer, FedDynServer, FsvrgServer)
_SILENCE = 10
"""This many rounds in a row without a single answer end a run: every client that was asked has reached its limit.

Not under central privacy, where it is a secret whether anybody was asked."""


@dataclass(frozen=True)
class FederatedMethod:
    """The independent choices of a run, except the engine."""

    strategy: ServerStrategy[Any]
    work: ClientWork
    placement: Placement
    selection: ClientSelection
    aggregator: Aggregator | None = None
    """In place of the mean, where hostile clients are expected."""

    def __post_init__(self) -> None:
        placement = type(self.placement).__name__
        if self.strategy.needs_vectors and not self.placement.vectors_released:
            raise Unsupported(
                f"{type(self.strategy).__name__} reads the clients' vectors one by one, but {placement} privacy "
                "releases only a sum. Use IFCA, whose server needs the sum alone, or metric or local privacy."
            )
        if self.aggregator is None:
            return
        robust = type(self.aggregator).__name__
        if not self.placement.vectors_released:
            raise Unsupported(
                f"{robust} reads the clients' vectors one by one, but {placement} privacy releases only a sum: one "
                "client can move it further than the noise was calibrated for. Use the mean, whose terms are "
                "clipped, or local or metric privacy."
            )
        if not isinstance(self.strategy, _STEP_ALONG_ONE_MEAN):
            raise Unsupported(
                f"{robust} stands in for a mean over all clients, but {type(self.strategy).__name__} sorts clients "
                "into models of their own. Use the mean, or a strategy with one model."
            )

    def seen(self, release: Release, update: ClientUpdate) -> Release:
        """What the strategy is shown: with vectors, whose they are; the robust mean, if one is wanted."""
        if release.vectors is None:
            return release
        mean = release.mean if self.aggregator is None else self.aggregator.combine(release.vectors)
        return Release(mean, release.vectors, update.senders or None)


@dataclass(frozen=True)
class Round:
    """What may be told about a round."""

    number: int
    score: Score | None
    answered: int
    withheld: int
    rejected: int
    dropped: int = 0
    refused: tuple[Refusal, ...] = ()
    """Who was turned away and why: for the operator, as under central privacy it tells who took part."""
    asked: int = 0
    """How many clients were asked."""
    down: int = 0
    """Bytes to each client that was asked."""
    up: int = 0
    """Bytes from each client that was heard."""
    secret: bool = False
    """Whether it is a secret who, and how many, took part: then these counts are for the operator's eyes."""

    @property
    def sent(self) -> int:
        """Bytes to all clients."""
        return self.asked * self.down

    @property
    def received(self) -> int:
        """Bytes from all clients, also from those that were turned away."""
        return (self.answered + len(self.refused)) * self.up


@dataclass(frozen=True)
class RoundView:
    """What an observer is shown after each round: released values and public state only."""

    round: Round
    models: Tensor
    release: Release | None
    leakage: NDArray[np.float64]


@dataclass
class FederatedRun:
    """The models a run ended with, the best ones on the way, its history, and what it cost."""

    models: Tensor
    best: Tensor
    history: list[Round]
    statement: PrivacyStatement
    leakage: NDArray[np.float64]
    """What each client has leaked by its own account (all zero where clients keep none)."""
    privacy: Any = field(default=None, repr=False)
    """The last public state of the placement."""
    sent: Arrays = field(default_factory=dict, repr=False)
    """What clients would be sent next: with their own states, what personal models are made of."""

    @property
    def losses(self) -> list[float]:
        """The validation losses, in order."""
        return [one.score.loss for one in self.history if one.score is not None]


@dataclass
class FederationState:
    """Where a run stands between two rounds. All of it is public, or was released."""

    state: Any
    """The strategy's."""
    privacy: Any
    """The placement's."""
    seed: int
    """Of the order of the clients' rows."""
    judge: np.random.Generator
    """Draws the held-out clients to look at."""
    best: Tensor
    lowest: float = float("inf")
    number: int = 0
    """The next round."""
    silent: int = 0
    """Rounds in a row without an answer."""
    losses: list[float] = field(default_factory=list)
    history: list[Round] = field(default_factory=list)

    def over(self, patience: Patience | None) -> bool:
        """Whether the rounds so far say that there should be no other."""
        return self.silent >= _SILENCE or (patience is not None and patience.over(self.losses))


class Keeper(Protocol):
    """Keeps a run on disk, so that a kill neither loses it nor lets it spend what it did not plan."""

    def resumed(self, first: FederationState, accounts: Sequence[ClientAccount], cost: Fraction) -> FederationState:
        """Where to go on: ``first``, or where the run on disk stands; ``accounts`` are brought up to date."""
        ...

    def claim(self, number: int, rounds: int, clients: NDArray[np.int64] | None) -> None:
        """Write down that round ``number`` is about to be drawn, with its clients where they are no secret."""
        ...

    def keep(self, now: FederationState, accounts: Sequence[ClientAccount]) -> None:
        """Write down where the run stands."""
        ...


def federate(
    method: FederatedMethod,
    engine: FederatedEngine,
    models: Tensor,
    *,
    clients: int,
    rounds: int,
    rng: np.random.Generator,
    validation: Validation | None = None,
    every: int = 1,
    patience: Patience | None = None,
    observe: Callable[[RoundView], None] | None = None,
    keeper: Keeper | None = None,
) -> FederatedRun:
    """Run at most ``rounds`` rounds among ``clients`` clients, from initial ``models (k, P)``.

    Whatever ends a run before its last round was chosen from what was released, so the guarantee pays for the plan: the
    rounds and participations that would have come (epsilon of a prefix whose length the data chose is not a bound).

    Args:
        method: Strategy, client work, privacy and selection.
        engine: Where the clients are.
        models: The first models.
        clients: How many clients there are.
        rounds: The plan's rounds.
        rng: Draws clients and noise.
        validation: Held-out clients to look at.
        every: After how many rounds to look.
        patience: When to stop early.
        observe: Shown every round.
        keeper: Keeps the run on disk.
    """
    _check_validation(rounds, every, validation, keeper)
    strategy, placement = method.strategy, method.placement
    side, secret = ClientSide(method.work, placement), isinstance(placement, Central)
    placement.check(method.selection, rounds)
    state = strategy.init(models)
    size = method.work.width(strategy.configure(state))
    seed, judge = int(rng.integers(2**63)), np.random.default_rng(rng.integers(2**63))
    now = FederationState(state, placement.start(size), seed, judge, strategy.models(state))
    if keeper is not None:
        now = keeper.resumed(now, engine.accounts, placement.cost(size))
    while now.number < rounds and not now.over(patience):
        chosen = method.selection.draw(now.number, clients, rng)
        if keeper is not None:
            keeper.claim(now.number, rounds, None if secret else chosen)
        call = RoundRequest(strategy.configure(now.state), now.privacy, RowOrder(now.seed, now.number))
        update = engine.map_reduce(side, call, chosen, rng)
        release, now.privacy = placement.open(update, now.privacy, rng)
        if release is not None:
            release = method.seen(release, update)
            now.state = strategy.update(now.state, release)
        score = _scored(now, strategy, validation) if (now.number + 1) % every == 0 else None
        now.history.append(replace(_told(now.number, update, call, len(chosen), side), score=score))
        now.silent = 0 if update.answered or secret else now.silent + 1
        now.number += 1
        if observe is not None:
            observe(RoundView(now.history[-1], strategy.models(now.state), release, leakage(engine)))
        if keeper is not None:
            keeper.keep(now, engine.accounts)
    most = _participations(engine.accounts, rounds - now.number, placement.cost(size))
    statement = placement.statement(Facts(rounds, size, most, now.number, clients, now.privacy))
    ended = strategy.models(now.state)
    best = now.best if now.losses else ended
    return FederatedRun(
        ended, best, now.history, statement, leakage(engine), now.privacy, strategy.configure(now.state)
    )


def _check_validation(rounds: int, every: int, validation: Validation | None, keeper: Keeper | None) -> None:
    if rounds < 1 or every < 1:
        raise InvalidInput(f"a run has at least one round and validates at least once, got {rounds} and {every}.")
    if validation is not None and validation.metrics is not None:
        if keeper is not None:
            raise Unsupported(
                "randomised client metrics are counted in this process only: a run that is kept, and may be resumed, "
                "would ask held-out clients more often than they agreed to."
            )
        validation.metrics.check(rounds // every)


def _scored(now: FederationState, strategy: ServerStrategy[Any], validation: Validation | None) -> Score | None:
    """Look at the models, and keep them if they are the best so far."""
    if validation is None:
        return None
    score = validation.score(strategy.models(now.state), now.judge)
    now.losses.append(score.loss)
    if score.loss < now.lowest:
        now.best, now.lowest = strategy.models(now.state).clone(), score.loss
    return score


def _participations(accounts: Sequence[ClientAccount], left: int, cost: Fraction) -> int:
    """The most participations of one client, had all planned rounds been run: as many more as its account allows."""

    def more(account: ClientAccount) -> int:
        if account.limit is None or not cost:
            return left
        return max(0, min(left, int((account.limit - account.spent) // cost)))

    return max((one.participations + more(one) for one in accounts), default=0)


def _told(number: int, update: ClientUpdate, call: RoundRequest, asked: int, side: ClientSide) -> Round:
    """What happened in a round. Every client sends as much as any other, so bytes per client tell nothing."""
    secret = isinstance(side.placement, Central)
    down = weight(call.sent) + weight(call.privacy)
    up = weight((blank(side, call) if secret else update).each())
    counts = (update.answered, update.withheld, update.rejected, update.dropped)
    return Round(number, None, *counts, update.refused, asked, down, up, secret)


def leakage(engine: FederatedEngine) -> NDArray[np.float64]:
    """What each client's own account says."""
    return np.array([float(account.spent) for account in engine.accounts])
