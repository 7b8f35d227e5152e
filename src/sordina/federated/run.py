"""A federated run, top to bottom: send, work, seal, open, update, look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordina.errors import InvalidInput, Unsupported
from sordina.federated.aggregation import Aggregator
from sordina.federated.clients.work import ClientWork
from sordina.federated.engines.engine import Call, ClientSide, Engine
from sordina.federated.messages import Arrays, Parcel, Refusal, Release
from sordina.federated.order import Order
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.placement import Facts, Placement, Statement
from sordina.federated.selection import Selection
from sordina.federated.stopping import Patience
from sordina.federated.strategies.feddyn import FedDynServer
from sordina.federated.strategies.fsvrg import FsvrgServer
from sordina.federated.strategies.mean import AddMean
from sordina.federated.strategies.scaffold import ScaffoldServer
from sordina.federated.strategies.strategy import Strategy
from sordina.federated.traffic import weight
from sordina.federated.validation import Score, Validation

_STEP_ALONG_ONE_MEAN = (AddMean, ScaffoldServer, FedDynServer, FsvrgServer)
_SILENCE = 10
"""So many rounds in a row without a single answer end a run: every client that was asked has reached its limit."""


@dataclass(frozen=True)
class Method:
    """The independent choices of a run, except the engine."""

    strategy: Strategy[Any]
    work: ClientWork
    placement: Placement
    selection: Selection
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

    def seen(self, release: Release, parcel: Parcel) -> Release:
        """What the strategy is shown: with vectors, whose they are; the robust mean, if one is wanted."""
        if release.vectors is None:
            return release
        mean = release.mean if self.aggregator is None else self.aggregator.combine(release.vectors)
        return Release(mean, release.vectors, parcel.senders or None)


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
class Seen:
    """What an observer is shown after each round: released values and public state only."""

    round: Round
    models: Tensor
    release: Release | None
    leakage: NDArray[np.float64]


@dataclass
class Result:
    """The models a run ended with, the best ones on the way, its history, and what it cost."""

    models: Tensor
    best: Tensor
    history: list[Round]
    statement: Statement
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


def federate(
    method: Method,
    engine: Engine,
    models: Tensor,
    *,
    clients: int,
    rounds: int,
    rng: np.random.Generator,
    validation: Validation | None = None,
    every: int = 1,
    patience: Patience | None = None,
    observe: Callable[[Seen], None] | None = None,
) -> Result:
    """Run at most ``rounds`` rounds among ``clients`` clients, from initial ``models (k, P)``."""
    if rounds < 1 or every < 1:
        raise InvalidInput(f"a run has at least one round and validates at least once, got {rounds} and {every}.")
    strategy, placement = method.strategy, method.placement
    side = ClientSide(method.work, placement)
    placement.check(method.selection, rounds)
    seed, judge = int(rng.integers(2**63)), np.random.default_rng(rng.integers(2**63))
    state = strategy.init(models)
    size = method.work.width(strategy.configure(state))
    privacy = placement.start(size)
    history: list[Round] = []
    losses: list[float] = []
    best, lowest = strategy.models(state), float("inf")
    silent = 0
    for number in range(rounds):
        chosen = method.selection.draw(number, clients, rng)
        call = Call(strategy.configure(state), privacy, Order(seed, number))
        parcel = engine.map_reduce(side, call, chosen, rng)
        release, privacy = placement.open(parcel, privacy, rng)
        if release is not None:
            release = method.seen(release, parcel)
            state = strategy.update(state, release)
        score = None
        if validation is not None and (number + 1) % every == 0:
            score = validation.score(strategy.models(state), judge)
            losses.append(score.loss)
            if score.loss < lowest:
                best, lowest = strategy.models(state).clone(), score.loss
        told = replace(_told(number, parcel, call, len(chosen)), score=score, secret=isinstance(placement, Central))
        history.append(told)
        if observe is not None:
            observe(Seen(history[-1], strategy.models(state), release, leakage(engine)))
        silent = 0 if parcel.answered else silent + 1
        if silent >= _SILENCE or (patience is not None and score is not None and patience.over(losses)):
            break
    most = max((account.participations for account in engine.accounts), default=0)
    statement = placement.statement(Facts(len(history), size, most))
    ended = strategy.models(state)
    return Result(
        ended, best if losses else ended, history, statement, leakage(engine), privacy, strategy.configure(state)
    )


def _told(number: int, parcel: Parcel, call: Call, asked: int) -> Round:
    """What happened in a round. Every client that was heard sent as much as any other."""
    down, up = weight(call.sent) + weight(call.privacy), weight(parcel.each())
    counts = (parcel.answered, parcel.withheld, parcel.rejected, parcel.dropped)
    return Round(number, None, *counts, parcel.refused, asked, down, up)


def leakage(engine: Engine) -> NDArray[np.float64]:
    """What each client's own account says."""
    return np.array([float(account.spent) for account in engine.accounts])
