"""A named federated job as plain data, and how it becomes a run: what ``sordina federate`` was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sordina import randomness
from sordina.clipping.names import NAMES as CLIPPINGS
from sordina.clipping.names import named as clipping_named
from sordina.errors import BudgetRefused, InvalidInput, Unsupported
from sordina.federated import aggregation, compression, methods
from sordina.federated.clients.records import ClippedGradient
from sordina.federated.clients.work import ClientWork, LocalSteps
from sordina.federated.compression import Compressed
from sordina.federated.data import load
from sordina.federated.engines.engine import Postal
from sordina.federated.engines.inprocess import InProcess
from sordina.federated.engines.stormy import Stormy
from sordina.federated.objective import Objective
from sordina.federated.privacy.account import exact
from sordina.federated.privacy.central import Central, layers_of
from sordina.federated.privacy.local import Local, RecordNoise
from sordina.federated.privacy.metric import Metric, radius_of
from sordina.federated.privacy.nothing import Nothing
from sordina.federated.privacy.placement import BY_SAMPLES, UNIFORM, Placement
from sordina.federated.problem import Problem
from sordina.federated.run import Keeper, Method, Result, Seen, federate
from sordina.federated.selection import InTurn, Sampled, Selection
from sordina.federated.stopping import Patience
from sordina.federated.strategies.steady_pfl import spread
from sordina.federated.weather import Weather, hostile_of
from sordina.sampling import FixedSize, Poisson, Sampler
from sordina.training.plan import make_plan
from sordina.types import Budget, Unit, check_positive, check_seed

_STEADY_PATIENCE, _STEADY_WINDOW = 30, 10
"""The steady server's stopping rule: its losses are averaged first, as one lucky round says little."""
PRIVACY = ("none", "metric", "central", "local", "record")
ENGINES = ("in-process", "flower")


@dataclass(frozen=True)
class Habits:
    """What a data set is trained with unless the caller says otherwise (000 section 2.5 where it says)."""

    rounds: int
    clients_per_round: int
    local_rate: float
    batch: int
    patience: int | None = None
    every: int = 1
    sample: int | None = None
    """Held-out clients looked at each time."""
    steady_rate: float = 1.0
    """The server's step for metric-pfl-steady: the inverse of how far local steps go towards a client's optimum."""
    records: int | None = None
    """A public number near the records of a client, to divide record-level sums by (UCI prints Adult's 32 561)."""


MOST_HYPOTHESES = 10_000
HABITS = {
    "synthetic": Habits(200, 7, 0.1, 10, patience=6, steady_rate=5.0),
    "synthetic-fairness": Habits(200, 50, 0.1, 10, patience=6, steady_rate=5.0),
    "hospital": Habits(300, 100, 0.05, 10, patience=30, sample=200),
    "mnist-writers": Habits(500, 20, 0.1, 20, patience=5, every=5),
    "femnist": Habits(500, 20, 0.1, 20, patience=5, every=5),
    "adult": Habits(100, 50, 0.5, 64, records=650),
    "own": Habits(20, 100, 0.1, 32),
}
"""``own`` are the data of a Flower app's clients, which no loader knows."""


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on but the data. ``seed`` None means secure noise; None elsewhere means the habit."""

    data: str
    strategy: str = "metric-pfl"
    hypotheses: int = 2
    privacy: str | None = None
    noise: float = 5.0
    radius: str = "update"
    leakage_limit: float | None = None
    epsilon: float = 3.0
    delta: float = 1e-5
    clipping: str = "fixed"
    threshold: float = 1.0
    rounds: int | None = None
    clients_per_round: int | None = None
    local_rate: float | None = None
    batch: int | None = None
    epochs: int = 1
    server_rate: float | None = None
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
    inner_rate: float | None = None
    """The step with which clients of per-fedavg adapt; None: the local rate."""
    prune: float = 0.5
    """The share of weights that clients of sub-fedavg end up without."""

    def __post_init__(self) -> None:
        if self.data not in HABITS:
            raise InvalidInput(f"unknown federation {self.data!r}: choose one of {', '.join(HABITS)}.")
        if self.strategy not in methods.NAMES:
            raise InvalidInput(f"unknown strategy {self.strategy!r}: choose one of {', '.join(methods.NAMES)}.")
        if self.placed not in PRIVACY:
            raise InvalidInput(f"unknown privacy {self.privacy!r}: choose one of {', '.join(PRIVACY)}.")
        if self.clipping not in CLIPPINGS:
            raise InvalidInput(f"unknown clipping {self.clipping!r}: choose one of {', '.join(CLIPPINGS)}.")
        if self.engine not in ENGINES:
            raise InvalidInput(f"unknown engine {self.engine!r}: choose one of {', '.join(ENGINES)}.")
        if not 1 <= self.hypotheses <= MOST_HYPOTHESES:
            raise InvalidInput(f"at least one hypothesis, at most {MOST_HYPOTHESES}, got {self.hypotheses}.")
        if self.placed == "record" and self.strategy != "fedsgd":
            raise InvalidInput("record-level noise needs the clipped gradients of fedsgd: use --strategy fedsgd.")
        if self.compress.startswith("top") and self.strategy.startswith("metric-pfl"):
            raise Unsupported(
                "metric PFL's clients send whole models, of which top-k would keep a few weights: use 8bit."
            )
        if self.leakage_limit is not None and self.placed != "metric":
            raise InvalidInput("a leakage limit belongs to metric privacy: use --privacy metric.")
        self._check_numbers()

    def _check_numbers(self) -> None:
        """None is the habit; 0 is a mistake."""
        for name in ("rounds", "clients_per_round", "batch", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name.replace('_', ' ')} must be at least 1, got {value}.")
        check_positive("noise multiplier nu", self.noise)
        for name in ("local_rate", "server_rate", "inner_rate", "threshold"):
            if getattr(self, name) is not None:
                check_positive(name.replace("_", " "), getattr(self, name))
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
        Weather(self.dropout, self.late, hostile_of(self.hostile))
        radius_of(self.radius)

    @property
    def placed(self) -> str:
        """Where privacy happens: metric for metric PFL and none for the rest, unless said."""
        return self.privacy or ("metric" if self.strategy.startswith("metric-pfl") else "none")

    @property
    def weather(self) -> Weather:
        """What happens to clients and messages on the way."""
        return Weather(self.dropout, self.late, hostile_of(self.hostile), self.seed or 0)

    @property
    def models(self) -> int:
        """How many models are trained."""
        return self.hypotheses if self.strategy in methods.PERSONAL else 1

    def settled(self, clients: int) -> Settled:
        """The recipe with the data's habits filled in."""
        habits = HABITS[self.data]
        if self.clients_per_round is not None and self.clients_per_round > clients:
            raise InvalidInput(f"clients per round must lie in [1, {clients}], got {self.clients_per_round}.")
        if absent := [client for client in self.weather.hostile if client >= clients]:
            raise InvalidInput(f"client {absent[0]} cannot misbehave: the clients are 0 to {clients - 1}.")
        per_round = min(self.clients_per_round or habits.clients_per_round, clients)
        steps = LocalSteps(self.local_rate or habits.local_rate, self.batch or habits.batch, self.epochs)
        steady = self.strategy == "metric-pfl-steady"
        patience = self.patience if self.patience is not None else habits.patience
        window = self.window or (_STEADY_WINDOW if steady else 1)
        if steady and self.patience is None:
            patience = _STEADY_PATIENCE
        rate = self.server_rate or (habits.steady_rate if steady else 1.0)
        return Settled(
            self.rounds or habits.rounds,
            per_round,
            clients,
            steps,
            rate,
            Patience(patience, window) if patience else None,
            habits.every,
            habits.sample,
        )

    def problem(self, rng: np.random.Generator) -> Problem:
        """The data, by ``data_seed`` if there is one; else they are the first that ``rng`` draws."""
        drawn = rng if self.data_seed is None else np.random.default_rng(self.data_seed)
        return Problem.of(load(self.data, drawn, **self.options))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Settled:
    """The numbers of a run, none left open."""

    rounds: int
    per_round: int
    clients: int
    steps: LocalSteps
    server_rate: float
    patience: Patience | None
    every: int
    sample: int | None

    @property
    def participations(self) -> int:
        """The most a client takes part when everybody takes turns."""
        return math.ceil(self.rounds / (self.clients // self.per_round))


@dataclass(frozen=True)
class Finished:
    """A run that ended, with what it was run on."""

    recipe: Recipe
    settled: Settled
    problem: Problem
    result: Result
    releasable: bool


class RecipeKeeper(Keeper, Protocol):
    """A keeper that is told, before the first round, what the plan will cost."""

    def begin(self, method: Method, recipe: Recipe, rounds: int, size: int, rng: np.random.Generator) -> None:
        """Reserve it."""
        ...


def run(
    recipe: Recipe,
    observe: Callable[[Seen], None] | None = None,
    problem: Problem | None = None,
    *,
    keeper: RecipeKeeper | None = None,
) -> Finished:
    """Load the data (unless a ``problem`` is given), put the parts together, and federate.

    Args:
        recipe: The run.
        observe: Shown every round.
        problem: The data, if they are there already.
        keeper: Keeps the run in a folder (`keeping`).
    """
    rng = randomness.generator(recipe.seed)
    if problem is None:
        if recipe.seed is None and recipe.data_seed is None:
            recipe = replace(recipe, data_seed=int(rng.integers(2**63 - 1)))
        problem = recipe.problem(rng)
    settled = recipe.settled(len(problem.train))
    method, limit = assemble(recipe, settled, problem.objective)
    models, validation = initial(recipe, problem, rng), problem.validation(settled.sample)
    check_limit(method, models, limit)
    if keeper is not None:
        size = method.work.width(method.strategy.configure(method.strategy.init(models)))
        keeper.begin(method, recipe, settled.rounds, size, rng)

    def go(engine: Postal) -> Result:
        return federate(
            method,
            engine if recipe.weather.calm else Stormy(engine, recipe.weather),
            models,
            clients=settled.clients,
            rounds=settled.rounds,
            rng=rng,
            validation=validation,
            every=settled.every,
            patience=settled.patience,
            observe=observe,
            keeper=keeper,
        )

    if recipe.engine == "flower":
        from sordina.federated.engines.simulation import simulated

        result = simulated(go, problem.train, limit=limit, seed=recipe.seed)
    else:
        result = go(InProcess(problem.train, limit=limit))
    return Finished(recipe, settled, problem, result, randomness.releasable(rng))


def check_limit(method: Method, models: Tensor, limit: Fraction | None) -> None:
    """Refuse a run in which no client could take part even once."""
    strategy = method.strategy
    cost = method.placement.cost(method.work.width(strategy.configure(strategy.init(models))))
    if limit is not None and cost > limit:
        raise BudgetRefused(
            f"one participation leaks {float(cost):.6g}, more than the limit of {float(limit):.6g}: nobody could take "
            "part. Raise the limit or the noise multiplier."
        )


def initial(recipe: Recipe, problem: Problem, rng: np.random.Generator) -> Tensor:
    """The first models; the steady server spreads those of a linear model out."""
    models = problem.initial(recipe.models, rng)
    if recipe.strategy == "metric-pfl-steady" and problem.federation.model == "linear":
        return spread(recipe.models, problem.objective.size, 3.0, rng).to(models)
    return models


def assemble(recipe: Recipe, settled: Settled, objective: Objective) -> tuple[Method, Fraction | None]:
    """The method and the limit each client sets for its own account."""
    nu = recipe.noise if recipe.placed == "metric" else 0.0
    options = methods.Options(
        settled.steps,
        settled.server_rate,
        share=settled.per_round / settled.clients,
        mu=recipe.mu,
        nu=nu,
        seed=recipe.seed or 0,
        models=recipe.models,
        clients=settled.clients,
        inner_rate=recipe.inner_rate,
        prune=recipe.prune,
    )
    strategy, work = methods.named(recipe.strategy, objective, options)
    if recipe.placed == "record":
        work = _clipped(recipe, objective)
    robust, codec = aggregation.named(recipe.aggregate), compression.named(recipe.compress)
    vectors = strategy.needs_vectors or robust is not None or codec is not None
    placement, selection, limit = _place(recipe, settled, objective, vectors)
    if codec is not None:
        blank = torch.zeros(recipe.models, objective.size)
        placement = Compressed(placement, codec, work.width(strategy.configure(strategy.init(blank))))
    return Method(strategy, work, placement, selection, robust), limit


def _clipped(recipe: Recipe, objective: Objective) -> ClientWork:
    """Per-record clipping, divided by a public number: dividing by the true counts would tell them."""
    records = HABITS[recipe.data].records
    if records is None:
        raise InvalidInput(f"record-level privacy needs a public number of records per client; {recipe.data} has none.")
    return ClippedGradient(objective, recipe.threshold, divisor=float(records))


def _place(
    recipe: Recipe, settled: Settled, objective: Objective, vectors: bool
) -> tuple[Placement, Selection, Fraction | None]:
    budget = Budget(recipe.epsilon, recipe.delta)
    in_turn = InTurn(settled.per_round, recipe.seed or 0)
    uniform = Sampled(FixedSize(settled.per_round, settled.clients))
    if recipe.placed == "metric":
        limit = None if recipe.leakage_limit is None else exact(check_positive("leakage limit", recipe.leakage_limit))
        selection: Selection = in_turn if recipe.strategy == "metric-pfl-steady" else uniform
        return Metric(recipe.noise, radius_of(recipe.radius)), selection, limit
    if recipe.placed == "central":
        sampler = _sampler(recipe, settled)
        plan = make_plan(budget, sampler, settled.rounds, unit=Unit.USER)
        layers = layers_of(objective.names, objective.lengths)
        policy = clipping_named(recipe.clipping, None if recipe.clipping == "automatic" else recipe.threshold)
        return Central(plan, policy, layers=layers), Sampled(sampler), None
    if recipe.placed == "local":
        local = Local.within(budget, recipe.threshold, settled.participations)
        return local, in_turn, Fraction(local.participations)
    if recipe.placed == "record":
        record = RecordNoise.within(budget, settled.participations)
        return record, in_turn, Fraction(record.participations)
    return Nothing(UNIFORM if vectors else BY_SAMPLES, gather=vectors), uniform, None


def _sampler(recipe: Recipe, settled: Settled) -> Sampler:
    """Sector clipping lives in the bounded model; everything else under add/remove."""
    if recipe.clipping == "sector":
        return FixedSize(settled.per_round, settled.clients)
    return Poisson(settled.per_round, settled.clients)
