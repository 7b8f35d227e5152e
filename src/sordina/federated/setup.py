"""A federated run but for its data: what `FederatedTrainer` and ``sordina federate`` both come down to."""

from __future__ import annotations

import logging
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
from sordina.federated.decentralized.gopa import GOPA
from sordina.federated.engines.engine import PerClientEngine
from sordina.federated.engines.fault_injection import FaultInjectingEngine, FaultInjection
from sordina.federated.engines.in_process import InProcess
from sordina.federated.forecast import forecast
from sordina.federated.objective import Objective
from sordina.federated.privacy.accounts import ClientAccount
from sordina.federated.privacy.distributed import DistributedDP
from sordina.federated.privacy.metric import MetricDP
from sordina.federated.privacy.placement import FederatedPrivacy, FederationFacts
from sordina.federated.problem import FederatedProblem
from sordina.federated.round import FederatedMethod, FederatedRun, Keeper, Patience, RoundView, federate

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
