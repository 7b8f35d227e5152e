"""Are the audits themselves sound? Many private runs, each audited once: how often is a bound above the true claim?

At confidence 95 % a bound may exceed a true claim in one audit of twenty, no more. Too many say that either the
training gives away more than it claims, or the bound promises more than it proves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import binom

from sordina import random
from sordina.auditing.canaries import CanaryTrial, audit_one_run
from sordina.clipping import named
from sordina.errors import InvalidInput
from sordina.privacy import Budget
from sordina.progress import Progress, silent
from sordina.sampling import Poisson
from sordina.training import Plan, make_plan

_CHANCE = 1e-3
"""So unlikely must a count of exceedances be before it is called too many."""


@dataclass(frozen=True)
class World:
    """One kind of private training."""

    epsilon: float
    rate: float = 1.0
    steps: int = 1
    clipping: str = "fixed"

    @property
    def plan(self) -> Plan:
        """At delta 1e-5, over a hundred records."""
        return _plan(self.epsilon, self.rate, self.steps)


WORLDS = (
    World(4.0),
    World(3.0, rate=0.2, steps=4),
    World(1.0, steps=2, clipping="online"),
    World(8.0, rate=0.25, steps=3, clipping="quantile"),
    World(2.0, clipping="automatic"),
)


@lru_cache
def _plan(epsilon: float, rate: float, steps: int) -> Plan:
    return make_plan(Budget(epsilon, 1e-5), Poisson(100 * rate, 100), steps)


@dataclass(frozen=True)
class Tally:
    """One bound over all audits."""

    method: str
    audits: int
    above: int
    allowed: int
    share: float
    """The bound over the claim, on average."""

    @property
    def sound(self) -> bool:
        """Whether exceedances are as rare as the confidence says."""
        return self.above <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {**vars(self), "sound": self.sound}


@dataclass(frozen=True)
class Soundness:
    """What was found, bound by bound."""

    canaries: int
    confidence: float
    tallies: tuple[Tally, ...]

    @property
    def sound(self) -> bool:
        """Whether every bound kept its promise."""
        return all(tally.sound for tally in self.tallies)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        bounds = [tally.to_dict() for tally in self.tallies]
        return {"canaries": self.canaries, "confidence": self.confidence, "sound": self.sound, "bounds": bounds}


def soundness_study(
    audits: int = 200,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
) -> Soundness:
    """Train privately ``audits`` times, in every world in turn, and audit each run with canaries in by coins."""
    if audits < 1:
        raise InvalidInput(f"at least one audit, got {audits}.")
    rng = random.generator(seed)
    ratios: dict[str, list[float]] = {}
    for number in range(audits):
        world = WORLDS[number % len(WORLDS)]
        trial = CanaryTrial(world.plan, named(world.clipping, None), canaries=canaries)
        found = audit_one_run(trial, rng, confidence=confidence)
        assert found.claim is not None
        for bound in found.bounds:
            ratios.setdefault(bound.method, []).append(bound.epsilon / found.claim.epsilon)
        progress(number + 1, audits)
    allowed = int(binom.ppf(1 - _CHANCE, audits, 1 - confidence))
    tallies = (
        Tally(method, audits, int((np.array(values) > 1).sum()), allowed, float(np.mean(values)))
        for method, values in ratios.items()
    )
    return Soundness(canaries, confidence, tuple(tallies))
