"""Canary gradients against the library's own training, sound or with a fault planted in it.

Faults to plant in a private run, each a mistake people have made; an audit that misses one is no audit.

=====================  =============================================================================================
fault                  what goes wrong
=====================  =============================================================================================
``no-noise``           nothing is added
``half-noise``         the noise has half the standard deviation that is accounted
``no-clipping``        gradients enter as they are, noise as if they were clipped
``raw-threshold``      the threshold is the largest raw norm of the batch (003's adaptive clipping, errata 10)
``sticky-sampler``     the first record is in every batch, accounted as a Poisson sample
=====================  =============================================================================================
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sordina import random
from sordina.accounting import Event
from sordina.auditing.bounds import (
    Bound,
    GaussianFamily,
    IndependentCanaries,
    TwoRates,
    best_threshold,
    check_confidence,
    rates_at,
)
from sordina.auditing.findings import AttackResult
from sordina.auditing.one_run import Membership, OneRun
from sordina.auditing.scores import BoolArray, FloatArray, Scores
from sordina.auditing.trade_off import NoiseFamily
from sordina.clipping import Fixed, Policy, named
from sordina.errors import InvalidInput
from sordina.gradients import Engine
from sordina.privacy import Adjacency, Budget
from sordina.progress import Progress, silent
from sordina.queries import Query, Scalars, VectorQuery
from sordina.sampling import Poisson, Sampler
from sordina.training import Plan, Private, make_plan

Fault = Callable[[Private], None]


def no_noise(private: Private) -> None:
    """Nothing is added."""
    _scale_noise(private, 0.0)


def half_noise(private: Private) -> None:
    """Half of the noise that is accounted."""
    _scale_noise(private, 0.5)


def no_clipping(private: Private) -> None:
    """Gradients as they are."""
    _set_policy(private, _Unclipped())


def raw_threshold(private: Private) -> None:
    """The threshold is the largest raw norm of the batch, and the noise follows it."""
    _set_policy(private, _RawMaximum())


def sticky_sampler(private: Private) -> None:
    """The first record takes part always."""
    private.plan = replace(private.plan, sampler=_Sticky(private.plan.sampler))


FAULTS: dict[str, Fault] = {
    "no-noise": no_noise,
    "half-noise": half_noise,
    "no-clipping": no_clipping,
    "raw-threshold": raw_threshold,
    "sticky-sampler": sticky_sampler,
}


def fault(name: str) -> Fault:
    """The fault called ``name``."""
    if name not in FAULTS:
        raise InvalidInput(f"no fault is called {name!r}. Choose one of {', '.join(FAULTS)}.")
    return FAULTS[name]


def _scale_noise(private: Private, factor: float) -> None:
    step = private.private_step
    sound = step.split

    def scaled() -> list[tuple[float, ...]]:
        return [tuple(factor * nu for nu in shares) for shares in sound()]

    step.split = scaled  # type: ignore[method-assign]


def _set_policy(private: Private, policy: Policy[Any]) -> None:
    step = private.private_step
    step.parts = tuple(replace(part, policy=policy) for part in step.parts)


@dataclass(frozen=True)
class _Unclipped(Fixed):
    """Says that it clips, and does not."""

    def ask(self, scalars: Scalars, state: None) -> tuple[Query, ...]:
        return (VectorQuery(torch.ones_like(scalars.norms)),)


@dataclass(frozen=True)
class _RawMaximum(Fixed):
    """Reads its threshold off the batch it clips."""

    seen: list[float] = field(default_factory=lambda: [1.0])

    def ask(self, scalars: Scalars, state: None) -> tuple[Query, ...]:
        if len(scalars.norms):
            self.seen[0] = float(scalars.norms.max())
        return (VectorQuery(torch.ones_like(scalars.norms)),)

    def bounds(self, state: None, adjacency: Adjacency) -> tuple[float, ...]:
        return (self.seen[0] if adjacency is Adjacency.ADD_REMOVE else 2 * self.seen[0],)


class _Sticky(Poisson):
    """Draws like the sampler it wraps, and adds record 0."""

    def __init__(self, sampler: Sampler) -> None:
        if not isinstance(sampler, Poisson):
            raise InvalidInput("the sticky sampler spoils Poisson sampling only.")
        super().__init__(sampler.batch_size, sampler.population)

    def draw(self, size: int, rng: np.random.Generator) -> Any:
        return np.union1d(super().draw(size, rng), [0]).astype(np.int64)


# Canary gradients against the library's own training, with full knowledge of everything released.

# Canary gradients, with full knowledge of everything released: the strongest adversary the guarantee speaks of.
#
# The world is the worst case. The model is linear and its loss is its output, so the gradient of a record is the
# record. A canary is a long vector along a coordinate that nobody else uses; the other records are known. The auditor
# sees every noised gradient that the optimiser receives, and nothing before it. Training is the library's own: sampler,
# engine, clipping policy, noise and step (`sordina.training.Private`), with whatever fault was planted in it.
#
# The seam is a `Trial`: which canaries are in, and what was then seen along each. One canary in many runs gives
# independent trials; many canaries in one run give the one-run audit (see `sordina.auditing.canaries`).


@dataclass(frozen=True)
class Trace:
    """What the auditor saw of a run, step by step, in units of the sensitivity that the policy states."""

    projections: FloatArray
    """(steps, canaries): the released sum along each canary."""
    energies: FloatArray
    """(steps,): log of the released sum's squared length. Noise or thresholds that react to the data show here."""


class Trial(Protocol):
    """Run the private steps with some of the canaries in, and say what was released."""

    @property
    def plan(self) -> Plan:
        """What is claimed."""
        ...

    @property
    def canaries(self) -> int:
        """How many there are to put in."""
        ...

    def __call__(self, included: BoolArray, rng: np.random.Generator) -> Trace:
        """One run."""
        ...


@dataclass(frozen=True)
class CanaryTrial:
    """Train on ``background`` records and the canaries that are in. Canaries come first: faults live at the edges.

    Under add/remove a canary that is out is absent; under replace-one its opposite takes its place. ``fault`` may spoil
    the bound run before it starts; the plan, and with it the claim, stays what it was.
    """

    plan: Plan
    clipping: Policy[Any] = field(default_factory=Fixed)
    canaries: int = 1
    background: int = 8
    length: float = 100.0
    """Norm of a canary: far above any threshold, so that clipping is tested too."""
    fault: Callable[[Private], None] | None = None

    def __call__(self, included: BoolArray, rng: np.random.Generator) -> Trace:
        """One run of all planned steps."""
        model, engine = self._watched
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        records = self._records(included)
        private = Private(model, optimizer, records, self.plan, self.clipping, rng=rng, engine=engine)
        if self.fault is not None:
            self.fault(private)
        projections: list[Tensor] = []
        energies: list[Tensor] = []
        stated = self._bound(private)

        def look(*_: Any) -> None:
            nonlocal stated
            assert model.weight.grad is not None
            released = model.weight.grad.flatten().double() * (self.plan.sampler.expected_batch_size / stated)
            projections.append(released[self.background :])
            energies.append(released.square().sum().clamp(min=1e-30).log())
            stated = self._bound(private)

        optimizer.register_step_pre_hook(look)
        for inputs, _ in private:
            private.step(model(inputs).flatten())
        return Trace(torch.stack(projections).numpy(), torch.stack(energies).numpy())

    @cached_property
    def _watched(self) -> tuple[nn.Linear | IndexedWeights, Engine | None]:
        """The model, and the engine that studied it: once for all runs of the trial."""
        columns = self.background + self.canaries
        model = nn.Linear(columns, 1, bias=False) if self._dense else IndexedWeights(columns)
        return model, Engine(model) if self.plan.private else None

    def _bound(self, private: Private) -> float:
        """The sensitivity that the policy states for its gradient query at this moment: public."""
        return float(self.clipping.bounds(private.private_step.states[0], self.plan.adjacency)[0])

    def _records(self, included: BoolArray) -> tuple[Tensor, Tensor]:
        if included.shape != (self.canaries,):
            raise InvalidInput(f"{self.canaries} canaries, but memberships of shape {included.shape}.")
        columns = self.background + self.canaries
        if not self._dense:
            return self._indexed(included)
        rows = np.zeros((self.canaries, columns), dtype=np.float32)
        rows[:, self.background :] = np.diag(np.where(included, self.length, -self.length))
        if self.plan.adjacency is Adjacency.ADD_REMOVE:
            rows = rows[included]
        inputs = torch.from_numpy(np.concatenate([rows, np.eye(self.background, columns, dtype=np.float32)]))
        return inputs, torch.zeros(len(inputs))

    @property
    def _dense(self) -> bool:
        """Whether a canary is written out as a vector: thousands of them would fill the memory with zeros."""
        return self.canaries <= _DENSE

    def _indexed(self, included: BoolArray) -> tuple[Tensor, Tensor]:
        """Records as (coordinate, value): the same gradients."""
        rows = np.column_stack(
            [self.background + np.arange(self.canaries), np.where(included, self.length, -self.length)]
        )
        if self.plan.adjacency is Adjacency.ADD_REMOVE:
            rows = rows[included]
        known = np.column_stack([np.arange(self.background), np.ones(self.background)])
        inputs = torch.from_numpy(np.concatenate([rows, known]).astype(np.float32))
        return inputs, torch.zeros(len(inputs))


_DENSE = 3000


class IndexedWeights(nn.Module):
    """``weight[i] * v`` for the input ``(i, v)``: a linear model of inputs that are zero but in one place."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.table = nn.Embedding(columns, 1)

    @property
    def weight(self) -> Tensor:
        """All weights."""
        return self.table.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, 2) to (N, 1)."""
        found: Tensor = self.table(inputs[:, 0].long())
        return found * inputs[:, 1:]


def likelihood(trace: Trace, plan: Plan) -> FloatArray:
    """Per canary, the log-likelihood ratio of "in" and "out" of what was seen, under the claimed noise.

    A step shows ``N(b, nu^2)`` with b = 0, except with probability q (the sampling rate), when it shows the canary:
    b = 1 against nothing under add/remove, b = 1/2 against -1/2 under replace-one, in units of the sensitivity.
    """
    if plan.turn > 1:
        return _over_turns(trace, plan)
    rate = getattr(plan.sampler, "rate", None)
    if rate is None:
        rate = plan.sampler.expected_batch_size / getattr(plan.sampler, "population")  # noqa: B009 - not in the protocol
    inside, outside = (1.0, 0.0) if plan.adjacency is Adjacency.ADD_REMOVE else (0.5, -0.5)
    variance = plan.noise_multiplier**2

    def log_density(mean: float) -> FloatArray:
        shown = (trace.projections - mean / 2) * mean / variance
        with np.errstate(divide="ignore"):
            mixed: FloatArray = np.logaddexp(np.log1p(-rate), np.log(rate) + shown)
        return mixed

    ratio: FloatArray = (log_density(inside) - log_density(outside)).sum(axis=0)
    return ratio


def _over_turns(trace: Trace, plan: Plan) -> FloatArray:
    """As `likelihood`, where noise is correlated and a canary has its turn every ``plan.turn`` steps, unknown which.

    ``C r = C x + nu z`` has independent noise. A canary that takes part in step s shows there as the column s of C; all
    columns of a canary together count as one where they overlap, which is exact if nobody is left out.
    """
    steps, rate = len(trace.projections), float(getattr(plan.sampler, "rate"))  # noqa: B009 - not in the protocol
    c = np.zeros(steps)
    c[: len(plan.coefficients)] = plan.coefficients[:steps]
    matrix = np.array([[c[t - s] if t >= s else 0.0 for s in range(steps)] for t in range(steps)])
    white = matrix @ trace.projections
    apart = len(plan.coefficients) <= plan.turn
    ratios = []
    for first in range(min(plan.turn, steps)):
        columns = matrix[:, first :: plan.turn]
        columns = columns if apart else columns.sum(axis=1, keepdims=True)
        shown = (columns.T @ white - (columns**2).sum(axis=0)[:, None] / 2) / plan.noise_multiplier**2
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(np.log1p(-rate), np.log(rate) + shown) if apart else shown
        ratios.append(mixed.sum(axis=0))
    ratio: FloatArray = np.logaddexp.reduce(ratios, axis=0) - math.log(plan.turn)
    return ratio


def energy(trace: Trace, plan: Plan) -> FloatArray:
    """The largest log-length of a released sum: the same for all canaries, and blind to their direction."""
    return np.full(trace.projections.shape[1], float(trace.energies.max()))


# The audit of the library: is what `sordina.training` claims true of what it releases?
#
# Two ways, both on a `Trial` (see `sordina.auditing.canaries`):
#
# - `audit_runs`: one canary, many independent runs, half of them with it. Sees every fault that a single record can
# show.
# - `audit_one_run`: many canaries in one run, each in by a coin. One training is enough.
#
# In both, the statistic and its threshold are chosen on one half of the evidence and judged on the other.

Observer = Callable[[Trace, Plan], FloatArray]
TUNING = 0.3
"""Part of the evidence that the statistic and its threshold are chosen on."""
_POPULATION = 1000
"""Any number will do: only the rate matters."""
OBSERVERS: dict[str, Observer] = {"likelihood": likelihood, "energy": energy}


def noise_event(plan: Plan) -> Callable[[float], Event]:
    """What the plans that differ from ``plan`` in their noise only do, by their noise multiplier."""
    return lambda noise_multiplier: replace(plan, noise_multiplier=noise_multiplier).event()


def audit_runs(
    trial: Trial, runs: int, rng: np.random.Generator, *, confidence: float = 0.95, progress: Progress = silent
) -> AttackResult:
    """``runs`` trainings, every other one with the canary; independent trials, so both bounds hold."""
    if runs < 8 or trial.canaries != 1:
        raise InvalidInput(f"needs one canary and at least 8 runs, got {trial.canaries} and {runs}.")
    start = time.perf_counter()
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in OBSERVERS}
    for run in range(runs):
        present = run % 2 == 0
        trace = trial(np.array([present]), rng)
        for name, observe in OBSERVERS.items():
            seen[name][0 if present else 1].append(float(observe(trace, trial.plan)[0]))
        progress(run + 1, runs)
    halves = {
        name: Scores(np.array(inside), np.array(outside)).split(TUNING, rng) for name, (inside, outside) in seen.items()
    }
    best = max(halves, key=lambda name: _promise(halves[name][0], confidence))
    bounds: tuple[Bound, ...] = (GaussianFamily(noise_event(trial.plan), trial.plan.adjacency), TwoRates())
    details: dict[str, object] = {"runs": runs, "statistic": best}
    return _judge("canary runs", trial.plan, halves[best], bounds, confidence, start, details)


def audit_one_run(
    trial: Trial, rng: np.random.Generator, *, repeats: int = 1, confidence: float = 0.95, progress: Progress = silent
) -> AttackResult:
    """One training with each canary in by a coin.

    Canaries along different coordinates meet independent noise and independent coins if training is what it claims to
    be, which is what the first bound refutes (`IndependentCanaries`). The second knows the mechanism's trade-off curve
    but not that canaries do not meet, the third neither. ``repeats`` of the training, with new coins, are pooled as if
    they were more canaries: each is in one training only.
    """
    if trial.canaries < 100 or repeats < 1:
        raise InvalidInput(f"one run needs many canaries, got {trial.canaries}: at least 100, a usual choice is 1000.")
    start = time.perf_counter()
    coins, scores = [], []
    for repeat in range(repeats):
        coins.append(rng.random(trial.canaries) < 0.5)
        scores.append(likelihood(trial(coins[-1], rng), trial.plan))
        progress(repeat + 1, repeats)
    included, seen = np.concatenate(coins), np.concatenate(scores)
    event, adjacency = noise_event(trial.plan), trial.plan.adjacency
    bounds: tuple[Bound, ...] = (
        IndependentCanaries(event, adjacency),
        OneRun(Membership("coins"), NoiseFamily(event, adjacency)),
        OneRun(Membership("coins")),
    )
    details: dict[str, object] = {"canaries": trial.canaries, "repeats": repeats}
    return _judge("one run", trial.plan, blind_split(seen, included, rng), bounds, confidence, start, details)


def blind_split(seen: FloatArray, included: BoolArray, rng: np.random.Generator) -> tuple[Scores, Scores]:
    """Scores to tune on and scores to report on, divided without looking at the coins.

    With the same share of both sides in either part, the first would tell how many of the second fell on "in", and so
    on which side to bet.
    """
    tuning = rng.permutation(len(seen)) < round(TUNING * len(seen))
    tuned, reported = (Scores(seen[part & included], seen[part & ~included]) for part in (tuning, ~tuning))
    return tuned, reported


def audit_training(
    epsilon: float,
    delta: float = 1e-5,
    *,
    rate: float = 1.0,
    steps: int = 1,
    runs: int = 1000,
    one_run: int | None = None,
    clipping: str = "fixed",
    plant: str | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
) -> AttackResult:
    """Audit training at a budget, by name: what ``sordina audit canaries`` was asked for.

    Args:
        epsilon: The budget that the audited training claims.
        delta: Its delta.
        rate: Sampling rate of a step; 1 takes all records.
        steps: Private steps of each training.
        runs: Trainings with one canary, half of them without it.
        one_run: Instead: one training with this many canaries, each included with probability one half.
        clipping: A policy's name.
        plant: A fault to be found, by name.
        confidence: Of the lower bound.
        seed: Makes the audit repeatable.
        progress: Told of every training.
    """
    check_confidence(confidence)
    rng = random.generator(seed)
    plan = make_plan(Budget(epsilon, delta), Poisson(rate * _POPULATION, _POPULATION), steps)
    trial = CanaryTrial(
        plan, named(clipping, None), canaries=one_run or 1, fault=None if plant is None else fault(plant)
    )
    if one_run is not None:
        return audit_one_run(trial, rng, confidence=confidence)
    return audit_runs(trial, runs, rng, confidence=confidence, progress=progress)


def _promise(tuning: Scores, confidence: float) -> float:
    threshold = best_threshold(tuning, lambda rates: rates.gap, confidence)
    return float(rates_at(tuning, threshold, confidence).gap[0])


def _judge(
    name: str,
    plan: Plan,
    halves: tuple[Scores, Scores],
    bounds: tuple[Bound, ...],
    confidence: float,
    start: float,
    details: dict[str, object],
) -> AttackResult:
    claim = plan.guarantee()
    found = tuple(bound.epsilon_lower(*halves, claim.delta, confidence) for bound in bounds)
    return AttackResult(
        name, halves[1], found, claim, confidence, time.perf_counter() - start, details,
        knows="everything that every step released, and all records but the canaries",
    )  # fmt: skip
