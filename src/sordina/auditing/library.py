"""The audit of the library: is what `sordina.training` claims true of what it releases?

Two ways, both on a `Trial` (see `sordina.auditing.canaries`):

- `audit_runs`: one canary, many independent runs, half of them with it. Sees every fault that a single record can show.
- `audit_one_run`: many canaries in one run, each in by a coin. One training is enough.

In both, the statistic and its threshold are chosen on one half of the evidence and judged on the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sordina import randomness
from sordina.accounting import Event
from sordina.auditing.bounds import Bound, TwoRates, best_threshold, check_confidence, rates_at
from sordina.auditing.canaries import CanaryTrial, Trace, Trial, energy, likelihood
from sordina.auditing.family import GaussianFamily
from sordina.auditing.faults import fault
from sordina.auditing.membership.recipe import Progress, silent
from sordina.auditing.one_run import OneRun
from sordina.auditing.result import AttackResult
from sordina.auditing.scores import BoolArray, FloatArray, Scores
from sordina.clipping.names import named
from sordina.errors import InvalidInput
from sordina.sampling import Poisson
from sordina.training import Plan, make_plan
from sordina.types import Budget

Observer = Callable[[Trace, Plan], FloatArray]
TUNING = 0.3
"""Part of the evidence that the statistic and its threshold are chosen on."""
_POPULATION = 1000
"""Any number will do: only the rate matters."""
OBSERVERS: dict[str, Observer] = {"likelihood": likelihood, "energy": energy}


def family(plan: Plan) -> GaussianFamily:
    """The plans that differ from ``plan`` in their noise only."""

    def event(noise_multiplier: float) -> Event:
        return replace(plan, noise_multiplier=noise_multiplier).event()

    return GaussianFamily(event, plan.adjacency)


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
    bounds: tuple[Bound, ...] = (family(trial.plan), TwoRates())
    details: dict[str, object] = {"runs": runs, "statistic": best}
    return _judge("canary runs", trial.plan, halves[best], bounds, confidence, start, details)


def audit_one_run(
    trial: Trial, rng: np.random.Generator, *, repeats: int = 1, confidence: float = 0.95, progress: Progress = silent
) -> AttackResult:
    """One training with each canary in by a coin. The first bound assumes nothing of the mechanism.

    Canaries along different coordinates meet independent noise and independent coins, so that the family's bound
    holds for them too. ``repeats`` of the training, with new coins, are pooled as if they were more canaries: each is
    in one training only.
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
    bounds: tuple[Bound, ...] = (OneRun(coins=True), family(trial.plan))
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
    """Audit training at a budget, by name: what ``sordina audit canaries`` was asked for."""
    check_confidence(confidence)
    rng = randomness.generator(seed)
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
    return AttackResult(name, halves[1], found, claim, confidence, time.perf_counter() - start, details)
