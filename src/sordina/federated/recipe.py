"""A named federated job as plain data, and how it becomes a run: what ``sordina federate`` was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from sordina import random
from sordina._renamed import current_fields, renamed
from sordina.clipping import NAMES as CLIPPINGS
from sordina.clipping import named as clipping_named
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.algorithms import registry
from sordina.federated.algorithms.algorithm import LocalSteps
from sordina.federated.algorithms.metric_pfl import spread
from sordina.federated.algorithms.registry import FederatedAlgorithm
from sordina.federated.data import load
from sordina.federated.decentralized.gopa import GOPA
from sordina.federated.engines import FaultInjection, hostile_of
from sordina.federated.privacy.central import CentralDP
from sordina.federated.privacy.distributed import DistributedDP
from sordina.federated.privacy.local import LocalDP
from sordina.federated.privacy.metric import MetricDP, PublicRadius, radius_of
from sordina.federated.privacy.placement import FederatedPrivacy, FederationFacts, NoPrivacy
from sordina.federated.privacy.records import RecordDP
from sordina.federated.problem import FederatedProblem
from sordina.federated.round import Patience, RoundView
from sordina.federated.setup import ENGINES, FederatedSetup, Finished, SetupKeeper, conduct
from sordina.privacy import Budget, check_positive, check_seed

_STEADY_PATIENCE, _STEADY_WINDOW = 30, 10
"""The steady server's stopping rule: its losses are averaged first, as one lucky round says little."""
PRIVACY = ("none", "metric", "central", "distributed", "gopa", "local", "record")


@dataclass(frozen=True)
class DatasetDefaults:
    """What a data set is trained with unless the caller says otherwise (000 section 2.5 where it says)."""

    rounds: int
    clients_per_round: int
    learning_rate: float
    batch_size: int
    patience: int | None = None
    every: int = 1
    sample: int | None = None
    """Held-out clients looked at each time."""
    steady_rate: float = 1.0
    """The server's step for metric-pfl-steady: the inverse of how far local steps go towards a client's optimum."""
    records: int | None = None
    """A public number near the records of a client, to divide record-level sums by (UCI prints Adult's 32 561)."""


DATASET_DEFAULTS = {
    "synthetic": DatasetDefaults(200, 7, 0.1, 10, patience=6, steady_rate=5.0),
    "synthetic-fairness": DatasetDefaults(200, 50, 0.1, 10, patience=6, steady_rate=5.0),
    "hospital": DatasetDefaults(300, 100, 0.05, 10, patience=30, sample=200),
    "mnist-writers": DatasetDefaults(500, 20, 0.1, 20, patience=5, every=5),
    "femnist": DatasetDefaults(500, 20, 0.1, 20, patience=5, every=5),
    "adult": DatasetDefaults(100, 50, 0.5, 64, records=650),
    "table": DatasetDefaults(50, 20, 0.5, 32),
    "own": DatasetDefaults(20, 100, 0.1, 32),
}
"""``own`` are the data of a Flower app's clients, which no loader knows."""


_FORMER = {
    "local_rate": "learning_rate", "batch": "batch_size", "noise": "noise_multiplier",
    "server_rate": "server_learning_rate", "inner_rate": "inner_learning_rate",
}  # fmt: skip


@renamed(**_FORMER)
@dataclass(frozen=True)
class FederatedRecipe:
    """Everything a run depends on but the data. ``seed`` None means secure noise; elsewhere: the default."""

    data: str
    strategy: str = "metric-pfl"
    hypotheses: int = 2
    privacy: str | None = None
    noise_multiplier: float = 5.0
    radius: str = "update"
    leakage_limit: float | None = None
    epsilon: float = 3.0
    delta: float = 1e-5
    clipping: str = "fixed"
    threshold: float = 1.0
    rounds: int | None = None
    clients_per_round: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: int = 1
    server_learning_rate: float | None = None
    mu: float = 0.1
    patience: int | None = None
    window: int | None = None
    seed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the data's loader."""
    data_seed: int | None = None
    """Who validates and how clients differ, where ``seed`` does not say: drawn and kept, so that audits know."""
    engine: str = "in-process"
    aggregate: str = "mean"
    compress: str = "none"
    dropout: float = 0.0
    late: float = 0.0
    hostile: str = ""
    """Clients that misbehave, as ``nan:3,huge:7``."""
    inner_learning_rate: float | None = None
    """The step with which clients of per-fedavg adapt; None: the learning rate."""
    prune: float = 0.5
    """The share of weights that clients of sub-fedavg end up without."""
    records: int | None = None
    """A public number near the records of a client, for record-level privacy; None: the default of the data."""
    honest_share: float = 0.7
    """Under distributed privacy and gopa: the share of a round's clients that does not collude with the server."""
    tolerated_dropout: float = 0.1
    """Under distributed privacy and gopa: the largest share of the clients of a round that may drop out of it."""
    neighbours: int = 10
    """Under gopa: how many others each client shares noise with."""

    def __post_init__(self) -> None:
        if self.data not in DATASET_DEFAULTS:
            raise InvalidInput(f"unknown federation {self.data!r}: choose one of {', '.join(DATASET_DEFAULTS)}.")
        if self.strategy not in registry.NAMES:
            raise InvalidInput(f"unknown strategy {self.strategy!r}: choose one of {', '.join(registry.NAMES)}.")
        if self.placed not in PRIVACY:
            raise InvalidInput(f"unknown privacy {self.privacy!r}: choose one of {', '.join(PRIVACY)}.")
        if self.clipping not in CLIPPINGS:
            raise InvalidInput(f"unknown clipping {self.clipping!r}: choose one of {', '.join(CLIPPINGS)}.")
        if self.engine not in ENGINES:
            raise InvalidInput(f"unknown engine {self.engine!r}: choose one of {', '.join(ENGINES)}.")
        if self.records is not None and self.records < 1:
            raise InvalidInput(f"records must be at least 1, got {self.records}.")
        if not 1 <= self.hypotheses <= registry.MOST_MODELS:
            raise InvalidInput(f"at least one hypothesis, at most {registry.MOST_MODELS}, got {self.hypotheses}.")
        if self.placed == "record" and self.strategy not in ("fedsgd", "fedavg", "fedprox"):
            raise InvalidInput(f"record-level privacy goes with fedsgd, fedavg or fedprox, not {self.strategy}.")
        if self.compress.startswith("top") and self.strategy.startswith("metric-pfl"):
            raise Unsupported(
                "metric PFL's clients send whole models, of which top-k would keep a few weights: use 8bit."
            )
        if self.leakage_limit is not None and self.placed != "metric":
            raise InvalidInput("a leakage limit belongs to metric privacy: use --privacy metric.")
        self._check_numbers()

    def _check_numbers(self) -> None:
        """None means the default; 0 is a mistake."""
        for name in ("rounds", "clients_per_round", "batch_size", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name.replace('_', ' ')} must be at least 1, got {value}.")
        check_positive("noise multiplier nu", self.noise_multiplier)
        for name in ("learning_rate", "server_learning_rate", "inner_learning_rate", "threshold"):
            if getattr(self, name) is not None:
                check_positive(name.replace("_", " "), getattr(self, name))
        if not 0 < self.honest_share <= 1 or not 0 <= self.tolerated_dropout < 1:
            raise InvalidInput("the honest share must lie in (0, 1], the tolerated dropout in [0, 1).")
        if self.neighbours < 1:
            raise InvalidInput(f"neighbours must be at least 1, got {self.neighbours}.")
        if self.epochs < 1:
            raise InvalidInput(f"epochs must be at least 1, got {self.epochs}.")
        if not 0 <= self.mu < math.inf:
            raise InvalidInput(f"mu must be finite and not negative, got {self.mu}.")
        if not 0 <= self.prune < 1:
            raise InvalidInput(f"the share of weights to prune must lie in [0, 1), got {self.prune}.")
        if self.patience is not None and self.patience < 0:
            raise InvalidInput(f"patience must not be negative, got {self.patience}.")
        for seed in (self.seed, self.data_seed):
            if seed is not None:
                check_seed(seed)
        Budget(self.epsilon, self.delta)
        FaultInjection(self.dropout, self.late, hostile_of(self.hostile))
        radius_of(self.radius)

    @property
    def placed(self) -> str:
        """Where privacy happens: metric for metric PFL and none for the rest, unless said."""
        return self.privacy or ("metric" if self.strategy.startswith("metric-pfl") else "none")

    @property
    def faults(self) -> FaultInjection:
        """What happens to clients and messages on the way."""
        return FaultInjection(self.dropout, self.late, hostile_of(self.hostile), self.seed or 0)

    @property
    def models(self) -> int:
        """How many models are trained."""
        return self.hypotheses if self.strategy in registry.PERSONAL else 1

    def setup(self, clients: int) -> FederatedSetup:
        """The choices of this recipe among ``clients`` clients, with the defaults of the data filled in.

        Args:
            clients: How many there are.
        """
        defaults = DATASET_DEFAULTS[self.data]
        if self.clients_per_round is not None and self.clients_per_round > clients:
            raise InvalidInput(f"clients per round must lie in [1, {clients}], got {self.clients_per_round}.")
        per_round = min(self.clients_per_round or defaults.clients_per_round, clients)
        steady = self.strategy == "metric-pfl-steady"
        patience = self.patience if self.patience is not None else defaults.patience
        window = self.window or (_STEADY_WINDOW if steady else 1)
        if steady and self.patience is None:
            patience = _STEADY_PATIENCE
        return FederatedSetup(
            self.algorithm(),
            self.placing(),
            FederationFacts(self.rounds or defaults.rounds, clients, per_round, self.seed),
            Patience(patience, window) if patience else None,
            defaults.every,
            defaults.sample,
            self.engine,
            self.aggregate,
            self.compress,
            self.faults,
        )

    @property
    def local_steps(self) -> LocalSteps:
        """A client's steps."""
        defaults = DATASET_DEFAULTS[self.data]
        return LocalSteps(
            self.learning_rate or defaults.learning_rate, self.batch_size or defaults.batch_size, self.epochs
        )

    def algorithm(self) -> FederatedAlgorithm:
        """The algorithm this recipe names, with its options."""
        defaults, steps = DATASET_DEFAULTS[self.data], self.local_steps
        steady = self.strategy == "metric-pfl-steady"
        options: dict[str, Any] = {
            "learning_rate": steps.learning_rate,
            "batch_size": steps.batch_size,
            "local_epochs": self.epochs,
            "server_learning_rate": self.server_learning_rate or (defaults.steady_rate if steady else 1.0),
            "models": self.hypotheses,
            "mu": self.mu,
            "alpha": self.mu,
            "weight": self.mu,
            "inner_learning_rate": self.inner_learning_rate,
            "prune": self.prune,
        }
        if self.strategy == "fedsgd":
            options["learning_rate"] *= self.server_learning_rate or 1.0
        return registry.named(self.strategy, options)

    def placing(self) -> FederatedPrivacy:
        """The privacy this recipe names, with its options."""
        budget = Budget(self.epsilon, self.delta)
        if self.placed == "metric":
            radius = radius_of(self.radius)
            shown = radius.value if isinstance(radius, PublicRadius) else self.radius
            return MetricDP(self.noise_multiplier, shown, self.leakage_limit)
        if self.placed == "central":
            policy = clipping_named(self.clipping, None if self.clipping == "automatic" else self.threshold)
            return CentralDP(budget, policy)
        if self.placed == "distributed":
            policy = clipping_named(self.clipping, None if self.clipping == "automatic" else self.threshold)
            return DistributedDP(budget, policy, self.honest_share, self.tolerated_dropout)
        if self.placed == "gopa":
            return GOPA(budget, self.honest_share, self.neighbours, self.threshold, self.tolerated_dropout)
        if self.placed == "local":
            return LocalDP(budget, self.threshold)
        if self.placed == "record":
            return RecordDP(budget, self.threshold, self.records or DATASET_DEFAULTS[self.data].records)
        return NoPrivacy()

    def problem(self, rng: np.random.Generator) -> FederatedProblem:
        """The data, by ``data_seed`` if there is one; else they are the first that ``rng`` draws."""
        drawn = rng if self.data_seed is None else np.random.default_rng(self.data_seed)
        return FederatedProblem.of(load(self.data, drawn, **self.options))

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> FederatedRecipe:
        """The recipe in a run's folder or in the configuration of a Flower app, also of earlier versions.

        Args:
            facts: Plain data.
        """
        return cls(**current_fields(cls, facts))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run(
    recipe: FederatedRecipe,
    observe: Callable[[RoundView], None] | None = None,
    problem: FederatedProblem | None = None,
    *,
    keeper: SetupKeeper | None = None,
) -> Finished:
    """Load the data (unless a ``problem`` is given), put the parts together, and federate.

    Args:
        recipe: The run.
        observe: Shown every round.
        problem: The data, if they are there already.
        keeper: Keeps the run in a folder (`keeping`).
    """
    rng = random.generator(recipe.seed)
    if problem is None:
        if recipe.seed is None and recipe.data_seed is None:
            recipe = replace(recipe, data_seed=int(rng.integers(2**63 - 1)))
        problem = recipe.problem(rng)
    setup = recipe.setup(len(problem.train))
    models = initial(recipe, problem, rng)
    return conduct(setup, problem, models, recipe.to_dict(), rng, observe=observe, keeper=keeper)


def initial(recipe: FederatedRecipe, problem: FederatedProblem, rng: np.random.Generator) -> Tensor:
    """The first models; the steady server spreads those of a linear model out."""
    models = problem.initial(recipe.models, rng)
    if recipe.strategy == "metric-pfl-steady" and problem.federation.model == "linear":
        return spread(recipe.models, problem.objective.size, 3.0, rng).to(models)
    return models
