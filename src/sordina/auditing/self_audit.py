"""The library audits itself: every check must hold, every planted fault must be caught, audits must be sound.

- *checks* (`sordina.auditing.self_checks`): every layer rule, clipping policy, sampler, placement and search method,
  and what may not show of a record, a client or a copied process;
- *faults* (`sordina.auditing.planted`): each is planted in turn, and the check that speaks of it must fail. A check
  that cannot fail proves nothing;
- *soundness* (`sordina.auditing.studies.soundness`): many private runs, each audited: bounds may pass the claim no more
  often than their confidence says.

What it does not look at: Metric privacy (its claim is no (epsilon, delta)), Flower, and models other than the small
ones here (`docs/reference/supported-models.md` has those).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sordina import random
from sordina.auditing.planted import planted_faults
from sordina.auditing.self_checks import CheckResult, checks
from sordina.auditing.studies.soundness import Soundness, soundness_study
from sordina.errors import InvalidInput
from sordina.training.plan import check_whole

Bar = Callable[[str], Callable[[int, int], None]]
"""Starts a stage of the progress and gives what to call with (done, total)."""


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


def _silent(stage: str) -> Callable[[int, int], None]:
    return lambda done, total: None


def self_audit(
    *, repeats: int = 1, audits: int = 0, canaries: int = 300, seed: int | None = None, progress: Bar = _silent
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


def _run_checks(repeats: int, rng: np.random.Generator, tick: Callable[[int, int], None]) -> tuple[CheckResult, ...]:
    results = []
    everything = checks()
    for number, check in enumerate(everything.values()):
        found = [check(rng) for _ in range(repeats)]
        results.append(min(found, key=lambda result: result.holds))
        tick(number + 1, len(everything))
    return tuple(results)


def _run_faults(rng: np.random.Generator, tick: Callable[[int, int], None]) -> tuple[FaultResult, ...]:
    results = []
    faults = planted_faults()
    for number, fault in enumerate(faults):
        with fault.plant():
            found = fault.check(rng)
        results.append(FaultResult(fault.name, not found.holds, f"{found.name}: {found.detail}"))
        tick(number + 1, len(faults))
    return tuple(results)
