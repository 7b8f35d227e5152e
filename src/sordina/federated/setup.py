"""A federated run but for its data, and what its noise will do to what it learns."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sordina import random
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.federated import aggregation, compression
from sordina.federated.algorithms.registry import FederatedAlgorithm
from sordina.federated.compression import Compressed
from sordina.federated.decentralized.gopa import GOPA, GopaNoise
from sordina.federated.engines import FaultInjectingEngine, FaultInjection, InProcess, PerClientEngine
from sordina.federated.objective import Objective
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.distributed import Distributed, DistributedDP
from sordina.federated.privacy.local import Local, RecordNoise
from sordina.federated.privacy.metric import MetricDP
from sordina.federated.privacy.placement import FederatedPrivacy, FederationFacts
from sordina.federated.privacy.records import PrivateUpdates
from sordina.federated.problem import FederatedProblem
from sordina.federated.round import FederatedMethod, FederatedRun, Keeper, Patience, RoundView, federate
from sordina.privacy import format_up

# What a run's noise will do to what it learns, from public facts alone: said before anything is spent.

TOO_NOISY = 0.5
"""From this share on the noise, not the clients, decides where a model ends: measured in tests/federated."""


@dataclass(frozen=True)
class Forecast:
    """How a run will fare, as far as public facts tell.

    Args:
        noise_share: The expected length of all noise that the model takes up over the run, as a share of the longest
            way that the clients could move it if all agreed in every round. None where there is no such noise.
        noise_multiplier: Of the placement.
        warning: What to say of it, if anything.
    """

    noise_share: float | None
    noise_multiplier: float | None = None
    warning: str | None = None


def forecast(method: FederatedMethod, facts: FederationFacts, size: int, limit: Fraction | None = None) -> Forecast:
    """Compare noise and signal of a run before it begins.

    Noise of standard deviation s on each of d numbers, in each of T rounds, adds up to ``s sqrt(d T)``; updates clipped
    to C that all point the same way add up to ``C T``.

    Args:
        method: The run's parts.
        facts: What is public about it.
        size: The length of a client's vector.
        limit: That each client sets for its own account.
    """
    placement: Any = method.placement.placement if isinstance(method.placement, Compressed) else method.placement
    each = _noise_of_a_round(placement, method.work, facts, size)
    if each is None:
        return Forecast(None, warning=_withholding(placement.cost(size), facts, limit))
    share = each * math.sqrt(size / facts.rounds)
    nu = float(placement.plan.noise_multiplier if isinstance(placement, Central) else placement.noise_multiplier)
    return Forecast(share, nu, _warning(placement, facts, size, share) if share > TOO_NOISY else None)


def _withholding(cost: Fraction, facts: FederationFacts, limit: Fraction | None) -> str | None:
    """What to say where clients reach their limits before the rounds are over."""
    if limit is None or not cost:
        return None
    allowed, wanted = int(limit // cost), math.ceil(facts.rounds * facts.clients_per_round / facts.clients)
    if allowed >= wanted:
        return None
    return (
        f"WARNING: a client leaks {format_up(float(cost))} each time, so within its limit of {float(limit):.4g} it "
        f"takes part {allowed} times, where {facts.rounds} rounds want it about {wanted} times: later rounds "
        "will have few answers, or none. Run fewer rounds, ask fewer clients in each, or raise the noise multiplier or "
        "the limit."
    )


def _noise_of_a_round(placement: Any, work: Any, facts: FederationFacts, size: int) -> float | None:
    """The standard deviation of the noise on a round's mean, relative to the longest mean update."""
    clients = facts.clients_per_round
    if isinstance(placement, Central):
        groups = len(placement.columns(size))
        return float(placement.multipliers(groups)[0][0]) / clients
    if isinstance(placement, Distributed):
        return placement.noise_multiplier * math.sqrt(clients / placement.honest) / clients
    if isinstance(placement, GopaNoise):
        return placement.independent / placement.threshold / math.sqrt(clients)
    if isinstance(placement, Local):
        return 2 * placement.noise_multiplier / math.sqrt(clients)
    if isinstance(placement, RecordNoise):
        return placement.noise_multiplier / (float(getattr(work, "divisor", 1.0)) * math.sqrt(clients))
    if isinstance(placement, PrivateUpdates):
        per_step = placement.noise_multiplier / placement.sampler.expected_batch_size
        return per_step / math.sqrt(placement.steps * clients)
    return None


def _warning(placement: Any, facts: FederationFacts, size: int, share: float) -> str:
    """How much more would be needed for half of `TOO_NOISY`."""
    factor = share / (TOO_NOISY / 2)
    if isinstance(placement, (RecordNoise, PrivateUpdates)):
        remedy = f"about {factor:.2g} times as many records per client"
    elif isinstance(placement, Central):
        everybody, present = (math.ceil(factor * count) for count in (facts.clients, facts.clients_per_round))
        remedy = f"about {everybody:,} clients ({present:,} in a round)"
    else:
        remedy = f"about {math.ceil(factor**2 * facts.clients_per_round):,} clients in a round"
    return (
        f"WARNING: too much noise to learn from: over {facts.rounds} rounds the noise will move the model {share:.2g} "
        f"times as far as {facts.clients_per_round} of {facts.clients} clients could if they all agreed. At this "
        f"budget a model of {size:,} numbers needs {remedy}; or raise epsilon, train fewer numbers, or choose "
        "another kind of privacy."
    )


# A federated run but for its data: what `FederatedTrainer` and ``sordina federate`` both come down to.

log = logging.getLogger("sordina")
ENGINES = ("in-process", "flower")


@dataclass(frozen=True)
class FederatedSetup:
    """The choices of a run, none left open.

    Args:
        algorithm: What server and clients compute.
        privacy: What is done to an update, and where.
        facts: Rounds, clients, clients in a round, seed.
        patience: When to stop early, by the validation loss.
        validate_every: Rounds between validations.
        validation_sample: Held-out clients looked at each time; None: all.
        engine: ``in-process``, or ``flower`` for Flower's simulation.
        aggregate: ``mean``, or a robust mean's name.
        compress: ``none``, or a codec's name.
        faults: What simulated clients and networks do wrong.
    """

    algorithm: FederatedAlgorithm
    privacy: FederatedPrivacy
    facts: FederationFacts
    patience: Patience | None = None
    validate_every: int = 1
    validation_sample: int | None = None
    engine: str = "in-process"
    aggregate: str = "mean"
    compress: str = "none"
    faults: FaultInjection = field(default_factory=FaultInjection)

    def __post_init__(self) -> None:
        facts = self.facts
        if self.engine not in ENGINES:
            raise InvalidInput(f"unknown engine {self.engine!r}: choose one of {', '.join(ENGINES)}.")
        if not 1 <= facts.clients_per_round <= facts.clients:
            raise InvalidInput(f"clients per round must lie in [1, {facts.clients}], got {facts.clients_per_round}.")
        if isinstance(self.privacy, DistributedDP | GOPA):
            if self.faults.hostile or self.faults.late:
                raise Unsupported(
                    f"under {self.privacy.name} privacy the server can read no update by itself, so it can tell no "
                    "hostile or late one: only silent clients are simulated there (dropout)."
                )
            if self.engine == "flower" and not self.faults.calm:
                raise Unsupported(
                    f"dropouts under {self.privacy.name} privacy are simulated in process, not on Flower."
                )
        if absent := [client for client in self.faults.hostile if client >= facts.clients]:
            raise InvalidInput(f"client {absent[0]} cannot misbehave: the clients are 0 to {facts.clients - 1}.")

    def method(self, objective: Objective) -> tuple[FederatedMethod, Fraction | None]:
        """The parts of the run, and the limit each client sets for its own account.

        Args:
            objective: Model and loss.
        """
        privacy = self.privacy
        nu = privacy.noise_multiplier if isinstance(privacy, MetricDP) else 0.0
        facts = replace(self.facts, noise_multiplier=nu, takes_turns=self.algorithm.takes_turns)
        strategy, work = self.algorithm.parts(objective, facts)
        robust, codec = aggregation.named(self.aggregate), compression.named(self.compress)
        vectors = strategy.needs_vectors or robust is not None or codec is not None
        placed = privacy.place(objective, work, replace(facts, needs_vectors=vectors))
        placement = placed.placement
        if codec is not None:
            blank = torch.zeros(self.algorithm.count, objective.size)
            placement = Compressed(placement, codec, placed.work.width(strategy.configure(strategy.init(blank))))
        return FederatedMethod(strategy, placed.work, placement, placed.selection, robust), placed.limit


@dataclass(frozen=True)
class Finished:
    """A run that ended, with what it was run on."""

    setup: FederatedSetup
    description: dict[str, Any]
    """How the run was asked for, as plain data: recipe.json."""
    problem: FederatedProblem
    result: FederatedRun
    releasable: bool
    method: FederatedMethod
    states: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """What simulated clients kept between rounds: theirs, never released."""
    accounts: tuple[ClientAccount, ...] = ()
    """The clients' own, as far as the engine sees them."""


class SetupKeeper(Keeper, Protocol):
    """A keeper that is told, before the first round, what the plan will cost."""

    def settled(self, setup: FederatedSetup) -> FederatedSetup:
        """The setup with what is drawn once in the life of a run."""
        ...

    def begin(self, method: FederatedMethod, setup: FederatedSetup, size: int, rng: np.random.Generator) -> None:
        """Reserve it."""
        ...


def conduct(
    setup: FederatedSetup,
    problem: FederatedProblem,
    models: Tensor,
    description: dict[str, Any],
    rng: np.random.Generator,
    *,
    observe: Callable[[RoundView], None] | None = None,
    keeper: SetupKeeper | None = None,
) -> Finished:
    """Run ``setup`` on a problem, from its first models to the last round.

    Args:
        setup: The choices.
        problem: Model, loss, clients, held-out clients.
        models: The first models, ``(count, P)``.
        description: How the run was asked for.
        rng: Draws clients and noise.
        observe: Shown every round.
        keeper: Keeps the run in a folder.
    """
    if keeper is not None:
        setup = keeper.settled(setup)
    method, limit = setup.method(problem.objective)
    check_limit(method, models, limit)
    facts, validation = setup.facts, problem.validation(setup.validation_sample)
    size = method.work.width(method.strategy.configure(method.strategy.init(models)))
    if warning := forecast(method, facts, size, limit).warning:
        log.warning(warning)
    if keeper is not None:
        keeper.begin(method, setup, size, rng)
    engines: list[Any] = []

    def go(engine: PerClientEngine) -> FederatedRun:
        engines.append(engine)
        return federate(
            method, engine if setup.faults.calm else FaultInjectingEngine(engine, setup.faults), models,
            clients=facts.clients, rounds=facts.rounds, rng=rng, validation=validation, every=setup.validate_every,
            patience=setup.patience, observe=observe, keeper=keeper,
        )  # fmt: skip

    if setup.engine == "flower":
        from sordina.federated.flower.simulation import simulated

        result = simulated(go, problem.train, limit=limit, seed=facts.seed)
    else:
        result = go(InProcess(problem.train, limit=limit))
    engine = engines[0]
    return Finished(
        setup, description, problem, result, random.releasable(rng), method,
        dict(getattr(engine, "states", {})), tuple(engine.accounts),
    )  # fmt: skip


def check_limit(method: FederatedMethod, models: Tensor, limit: Fraction | None) -> None:
    """Refuse a run in which no client could take part even once.

    Args:
        method: The run's parts.
        models: The first models.
        limit: That each client sets for its own account.
    """
    strategy = method.strategy
    cost = method.placement.cost(method.work.width(strategy.configure(strategy.init(models))))
    if limit is not None and cost > limit:
        raise BudgetRefused(
            f"one participation leaks {float(cost):.6g}, more than the limit of {float(limit):.6g}: nobody could take "
            "part. Raise the limit or the noise multiplier."
        )
