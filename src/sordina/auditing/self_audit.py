"""The library audits itself: every check must hold, every planted fault must be caught, audits must be sound.

Are the audits themselves sound? Many private runs, each audited once: how often is a bound above the true claim?

At confidence 95 % a bound may exceed a true claim in one audit of twenty, no more. Too many say that either the
training gives away more than it claims, or the bound promises more than it proves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from sordina import private_step, random
from sordina.accounting.calibration import search_noise
from sordina.auditing import self_checks
from sordina.auditing.canaries import FAULTS, CanaryTrial, audit_one_run
from sordina.auditing.self_checks import Check, CheckResult, checks
from sordina.clipping import Fixed, named
from sordina.errors import InvalidInput, TrainingFailed
from sordina.federated.messages import ClientResult
from sordina.federated.privacy import local
from sordina.gradients.explicit import MatrixTape
from sordina.gradients.tape import GhostTape
from sordina.plan import check_whole
from sordina.privacy import Budget
from sordina.progress import Progress, StagedProgress, silent, silent_stages
from sordina.queries import Scalars, VectorQuery
from sordina.random import generators
from sordina.sampling import CyclicPoisson, Poisson
from sordina.training import Plan, losses, make_plan

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
    trials = [CanaryTrial(world.plan, named(world.clipping, None), canaries=canaries) for world in WORLDS]
    for number in range(audits):
        found = audit_one_run(trials[number % len(WORLDS)], rng, confidence=confidence)
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


# The library audits itself: every check must hold, every planted fault must be caught, audits must be sound.

# Mistakes of the library itself, planted while a check runs that must then fail (`sordina.auditing.self_audit`).
#
# Each is one that was found in this library by attack, or a relative of one. Those of `sordina.auditing.canaries` spoil
# one run; these replace a function of the library while the check runs.

Plant = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class PlantedFault:
    """A fault, and the check that must notice it."""

    name: str
    check: Check
    plant: Plant = nullcontext


def _small_norms(factor: float, kind: type[Any]) -> Plant:
    genuine = kind.scalars

    def scalars(self: Any, *arguments: Any) -> Scalars:
        found: Scalars = genuine(self, *arguments)
        return replace(found, norms=found.norms * factor)

    return lambda: patch.object(kind, "scalars", scalars)


def _rolled_weights() -> AbstractContextManager[Any]:
    """The coefficient of one record is applied to its neighbour."""
    genuine = GhostTape._weights
    return patch.object(GhostTape, "_weights", lambda self, own: genuine(self, own).roll(1))


def _plain_floats(values: Tensor, sigma: float, rng: np.random.Generator) -> Tensor:
    drawn = rng.standard_normal(tuple(values.shape), np.float32)
    return values.add_(torch.from_numpy(drawn).to(values), alpha=sigma)


def _less_noise(factor: float) -> Callable[[Tensor, float, np.random.Generator], Tensor]:
    genuine = private_step.add_noise
    return lambda values, sigma, rng: genuine(values, factor * sigma, rng)


def _stopping_sums(tape: Any, queries: Any, direction: Any, group: int) -> list[Tensor]:
    """What stood here before: a sum that is not finite stops the run."""
    answers: list[Tensor] = tape.contract(queries, direction, group)
    if not all(bool(answer.isfinite().all()) for answer in answers) or not bool(tape.scalars().norms.isfinite().all()):
        raise TrainingFailed("a gradient is not finite.")
    return answers


def _raise_again(self: Any, batch: Any, error: Exception, *_: Any, **__: Any) -> Tensor:
    raise error


def _unfiltered(vectors: Tensor, clip: float) -> Tensor:
    norms = vectors.norm(dim=1, keepdim=True)
    shrunk: Tensor = vectors * (clip / norms).clamp(max=1.0)
    return shrunk


@contextmanager
def _diverged_shows() -> Iterator[None]:
    """Three things have to fail before it shows: the client's own check, the clipping and the noise."""
    plain = patch.object(local, "add_noise", _plain_floats)
    with (
        patch.object(local, "clipped_rows", _unfiltered),
        patch.object(ClientResult, "steady", lambda self: self),
        plain,
    ):
        yield


@contextmanager
def _any_loss() -> Iterator[None]:
    """Nothing is tried or compared before the loss is called: (n, 1) and (n,) become (n, n), then a mean of rows."""
    with patch.object(losses.PerSample, "_try", lambda *_, **__: None):
        yield


def _cheap_runs(name: str) -> Check:
    """A search whose runs have a third of the noise that a run alone would need."""
    genuine = search_noise

    def cheap(make_event: Any, budget: Any, runs: int, **options: Any) -> Any:
        found = genuine(make_event, budget, runs, **options)
        alone = genuine(make_event, budget, 1, method="composition")
        return replace(found, noise_multiplier=alone.noise_multiplier / 3)

    inner = self_checks.search_check(name)

    def check(rng: np.random.Generator) -> self_checks.CheckResult:
        with patch.object(self_checks, "search_noise", cheap):
            return inner(rng)

    return check


def _twice(norms: Tensor, threshold: float) -> Tensor:
    """Clips to twice the threshold that is stated."""
    return (2 * threshold / norms.clamp(min=1e-30)).clamp(max=1.0)


def _own_everything(self: Any, scalars: Scalars, state: None) -> tuple[VectorQuery, ...]:
    return (VectorQuery(_twice(scalars.norms, self.threshold)),)


def planted_faults() -> tuple[PlantedFault, ...]:
    """All of them, with what must catch them."""
    training = [
        PlantedFault(name, self_checks.policy_check("fixed", sampling="every record", plant=FAULTS[name]))
        for name in ("no-noise", "half-noise", "no-clipping")
    ]
    layers = {name: self_checks.layer_check(name) for name in ("Linear", "Conv2d", "Embedding", "LSTM", "LayerNorm")}
    return (
        *training,
        PlantedFault("raw-threshold", self_checks.one_canary_check("threshold", FAULTS["raw-threshold"])),
        PlantedFault("sticky-sampler", self_checks.sticky_check(FAULTS["sticky-sampler"])),
        *[PlantedFault(f"norms of {k} too small", c, _small_norms(0.7, GhostTape)) for k, c in layers.items()],
        *[PlantedFault(f"weights of {k} go to a neighbour", c, _rolled_weights) for k, c in layers.items()],
        PlantedFault("users clipped too late", self_checks.users_check, _small_norms(0.7, GhostTape)),
        PlantedFault(
            "a policy clips to twice its threshold",
            self_checks.layer_check("Linear"),
            lambda: patch.object(Fixed, "ask", _own_everything),
        ),
        PlantedFault("clients clip too late", self_checks.placement_check("central"), _small_norms(0.2, MatrixTape)),
        PlantedFault(
            "half of the local noise",
            self_checks.placement_check("local"),
            lambda: patch.object(local, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault(
            "half of the record noise",
            self_checks.placement_check("record"),
            lambda: patch.object(local, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault(
            "half of the server's noise",
            self_checks.placement_check("central"),
            lambda: patch.object(private_step, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault(
            "half of the correlated noise",
            self_checks.correlated_check(),
            lambda: patch.object(private_step, "add_noise", _less_noise(0.5)),
        ),
        PlantedFault(
            "correlated noise, and everybody's turn in every step",
            self_checks.correlated_check(),
            lambda: patch.object(CyclicPoisson, "draw_part", lambda self, divided, step, rng: np.arange(len(divided))),
        ),
        PlantedFault("a client announces that it diverged", self_checks.diverged_check, _diverged_shows),
        PlantedFault("too little noise in a search", _cheap_runs("composition")),
        PlantedFault("too little noise in a stopped search", _cheap_runs("random-stopping")),
        PlantedFault(
            "one record stops the run",
            self_checks.one_record_check,
            lambda: patch.object(private_step, "_finite_sums", _stopping_sums),
        ),
        PlantedFault(
            "a record that the loss refuses stops the run",
            self_checks.refused_record_check,
            lambda: patch.object(losses.FailingRows, "_without_failing", _raise_again),
        ),
        PlantedFault("losses broadcast", self_checks.losses_check, _any_loss),
        PlantedFault(
            "epsilon from the plan, not from the noise",
            self_checks.account_check,
            lambda: patch.object(private_step.PrivateStep, "_refuse_other_noise", lambda self, multipliers: None),
        ),
        PlantedFault(
            "noise of plain floats",
            self_checks.noise_check,
            lambda: patch.object(private_step, "add_noise", _plain_floats),
        ),
        PlantedFault(
            "noise that is three per cent too small",
            self_checks.noise_check,
            lambda: patch.object(private_step, "add_noise", _less_noise(0.97)),
        ),
        PlantedFault(
            "a fork repeats the stream",
            self_checks.fork_check,
            lambda: patch.object(generators.SecureGenerator, "_refresh", lambda self: None),
        ),
    )


# The library audits itself: every check must hold, every planted fault must be caught, audits must be sound.
#
# - *checks* (`sordina.auditing.self_checks`): every layer rule, clipping policy, sampler, placement and search method,
#   and what may not show of a record, a client or a copied process;
# - *faults* (`sordina.auditing.self_audit`): each is planted in turn, and the check that speaks of it must fail. A
# check
#   that cannot fail proves nothing;
# - *soundness* (`sordina.auditing.self_audit`): many private runs, each audited: bounds may pass the claim no more
#   often than their confidence says.
#
# What it does not look at: Metric privacy (its claim is no (epsilon, delta)), Flower, and models other than the small
# ones here (`docs/reference/supported-models.md` has those).


@dataclass(frozen=True)
class FaultResult:
    """One planted fault, and whether its check noticed."""

    name: str
    caught: bool
    detail: str


@dataclass(frozen=True)
class SelfAudit:
    """What ``sordina audit self`` found."""

    checks: tuple[CheckResult, ...]
    faults: tuple[FaultResult, ...]
    soundness: Soundness | None

    @property
    def passed(self) -> bool:
        """Whether all checks held, all faults were caught, and the audits kept their confidence."""
        return (
            all(result.holds for result in self.checks)
            and all(result.caught for result in self.faults)
            and (self.soundness is None or self.soundness.sound)
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "passed": self.passed,
            "checks": [asdict(result) for result in self.checks],
            "faults": [asdict(result) for result in self.faults],
            "soundness": None if self.soundness is None else self.soundness.to_dict(),
        }


def self_audit(
    *,
    repeats: int = 1,
    audits: int = 0,
    canaries: int = 300,
    seed: int | None = None,
    progress: StagedProgress = silent_stages,
) -> SelfAudit:
    """Audit the library.

    Args:
        repeats: How often every check runs, with fresh randomness; all must hold.
        audits: Private runs to train and audit for soundness; 0 leaves that part out.
        canaries: Canaries of each of those.
        seed: Makes the audit repeatable.
        progress: Told of every stage.
    """
    if repeats < 1 or audits < 0:
        raise InvalidInput(f"repeats must be at least 1 and audits not negative, got {repeats} and {audits}.")
    check_whole("canaries", canaries)
    rng = random.generator(seed)
    held = _run_checks(repeats, rng, progress("checks"))
    caught = _run_faults(rng, progress("planted faults"))
    sound = None
    if audits:
        sound = soundness_study(audits, canaries=canaries, seed=seed, progress=progress("audits"))
    return SelfAudit(held, caught, sound)


def _run_checks(repeats: int, rng: np.random.Generator, tick: Progress) -> tuple[CheckResult, ...]:
    results = []
    everything = checks()
    for number, check in enumerate(everything.values()):
        found = [check(rng) for _ in range(repeats)]
        results.append(min(found, key=lambda result: result.holds))
        tick(number + 1, len(everything))
    return tuple(results)


def _run_faults(rng: np.random.Generator, tick: Progress) -> tuple[FaultResult, ...]:
    results = []
    faults = planted_faults()
    for number, fault in enumerate(faults):
        with fault.plant():
            found = fault.check(rng)
        results.append(FaultResult(fault.name, not found.holds, f"{found.name}: {found.detail}"))
        tick(number + 1, len(faults))
    return tuple(results)
