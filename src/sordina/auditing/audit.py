"""Audit a model that was trained by anybody: members, non-members, attacks, and what they prove.

    result = sd.audit(model, (x_train, y_train), (x_test, y_test), attacks=["loss", "lira-online"])
    print(result.verdict)

Rows are split once: on the tuning part noise levels, thresholds and numbers of guesses are chosen; the other part is
reported on, the same for all attacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from sordina.auditing.bounds import Bound, TwoRates, shared_confidence
from sordina.auditing.membership.attack import Attack, Loss
from sordina.auditing.membership.calibrated import AttackModel, LiRA, ShadowDifference
from sordina.auditing.membership.noisy import NoisyNeighbours
from sordina.auditing.membership.recipe import Progress, Recipe, fresh, silent
from sordina.auditing.membership.samples import Samples, as_samples
from sordina.auditing.membership.shadows import Shadows, make_shadows
from sordina.auditing.membership.target import Target, as_target
from sordina.auditing.one_run import OneRun, PairedRun
from sordina.auditing.result import AttackResult, Audit
from sordina.auditing.scores import BoolArray, Scores
from sordina.errors import InvalidInput
from sordina.types import Adjacency, Guarantee, check_delta, check_seed

ATTACKS = ("loss", "noisy", "shadow", "lira-online", "lira-offline", "attack-model")
"""The names that `audit` knows; all but the first two train shadow models."""
SHADOWED: dict[str, Callable[[Shadows], Attack]] = {
    "shadow": ShadowDifference,
    "lira-online": LiRA,
    "lira-offline": lambda shadows: LiRA(shadows, online=False),
    "attack-model": AttackModel,
}


def audit(
    model: Any,
    members: Any,
    non_members: Any,
    attacks: Sequence[str | Attack] = ("loss", "noisy"),
    *,
    claim: Guarantee | None = None,
    random_split: bool = False,
    delta: float | None = None,
    confidence: float = 0.95,
    recipe: Recipe | None = None,
    shadows: int = 16,
    embedding: str | None = None,
    tuning: float = 0.3,
    seed: int | None = None,
    progress: Progress = silent,
) -> Audit:
    """Attack ``model`` and bound its epsilon from below.

    Args:
        model: What was trained: a module, or what `Trainer.fit` or `FederatedTrainer.fit` gave; then its claim counts.
        members: Who was trained on: ``(inputs, labels)``, token ids, or a torch data set.
        non_members: Who was not, in the same form.
        attacks: Names of `ATTACKS`, or attacks.
        claim: The guarantee to hold the bounds against.
        random_split: Say so if chance alone decided who became a member (`sordina.auditing.one_run`). Any other
            difference between the two groups looks like leakage, so without it no claim is called refuted.
        delta: Where the bounds are taken without a claim; 1e-5 if left out.
        confidence: That of all bounds together: each attack gets an equal share of the error.
        recipe: How shadow models are trained; should be the target's own way.
        shadows: How many of them.
        embedding: The layer that noise is added behind, by name.
        tuning: The share of rows that attacks are tuned on; the others are reported on.
        seed: Makes the audit repeatable.
        progress: Told of every shadow model.
    """
    model, claim = _trained(model, claim)
    each = shared_confidence(confidence, len(attacks))
    if not attacks:
        raise InvalidInput(f"an audit needs at least one attack. Choose from {', '.join(ATTACKS)}.")
    rng = np.random.default_rng(None if seed is None else check_seed(seed))
    delta = check_delta(delta if delta is not None else claim.delta if claim is not None else 1e-5)
    rows = _Rows.of(as_samples(members), as_samples(non_members), tuning, rng)
    target = as_target(model, rows.samples, embedding)
    trained: Shadows | None = None
    results = []
    for attack in attacks:
        start = time.perf_counter()
        if isinstance(attack, str) and attack in SHADOWED:
            trained = trained or _train_shadows(target, rows.samples, recipe, shadows, rng, progress)
        ready = _ready(attack, target, rows, trained, rng)
        tuned, reported = rows.separate(ready, target)
        bounds = tuple(bound.epsilon_lower(tuned, reported, delta, each) for bound in _bounds(claim))
        seconds = time.perf_counter() - start
        results.append(
            AttackResult(ready.name, reported, bounds, claim, confidence, seconds, _details(ready), random_split)
        )
    return Audit(tuple(results), claim)


def _trained(model: Any, claim: Guarantee | None) -> tuple[Any, Guarantee | None]:
    """The module of a run, and what the run claims for a record, unless a claim was given."""
    told = getattr(model, "guarantee", None)
    if isinstance(model, nn.Module) or told is None:
        return model, claim
    if claim is None and isinstance(told, Guarantee):
        claim = told
    elif claim is None and getattr(told, "epsilon", None) is not None and told.adjacency is not None:
        claim = Guarantee(told.epsilon, told.delta, told.adjacency, told.unit)
    return model.model, claim


@dataclass(frozen=True)
class _Rows:
    """All rows in random order, who of them is a member, and who is for tuning."""

    samples: Samples
    member: BoolArray
    tuning: BoolArray

    @staticmethod
    def of(members: Samples, non_members: Samples, share: float, rng: np.random.Generator) -> _Rows:
        if min(len(members), len(non_members)) < 10:
            raise InvalidInput(f"needs at least 10 members and non-members, got {len(members)} and {len(non_members)}.")
        if not 0 < share < 1:
            raise InvalidInput(f"the part to tune on must lie between 0 and 1, got {share}.")
        order = rng.permutation(len(members) + len(non_members))
        member = order < len(members)
        tuning = np.zeros(len(order), dtype=bool)
        for side in (member, ~member):
            tuning[np.flatnonzero(side)[: max(2, round(share * side.sum()))]] = True
        return _Rows((members + non_members).take(order), member, tuning)

    def part(self, member: bool, tuning: bool) -> Samples:
        return self.samples.take((self.member == member) & (self.tuning == tuning))

    def separate(self, attack: Attack, target: Target) -> tuple[Scores, Scores]:
        """Scores of the tuning part and of the reported part."""
        scores = attack.scores(target, self.samples)
        tuned, reported = (
            Scores(scores[self.member & part], scores[~self.member & part]) for part in (self.tuning, ~self.tuning)
        )
        return tuned, reported


def _ready(
    attack: str | Attack, target: Target, rows: _Rows, shadows: Shadows | None, rng: np.random.Generator
) -> Attack:
    """The attack by name, its free parameters tuned on the tuning rows."""
    if isinstance(attack, str):
        if attack == "loss":
            return Loss()
        if attack in SHADOWED and shadows is not None:
            return SHADOWED[attack](shadows)
        if attack != "noisy":
            raise InvalidInput(f"no attack is called {attack!r}. Choose one of {', '.join(ATTACKS)}.")
        attack = NoisyNeighbours(rng)
    if isinstance(attack, NoisyNeighbours) and attack.sigma is None:
        return attack.tuned(target, rows.part(member=True, tuning=True), rows.part(member=False, tuning=True))
    return attack


def _train_shadows(
    target: Target, samples: Samples, recipe: Recipe | None, count: int, rng: np.random.Generator, progress: Progress
) -> Shadows:
    model: nn.Module = target.model
    first = int(rng.integers(2**31))

    def build(index: int) -> nn.Module:
        return fresh(model, first + index)

    return make_shadows(build, samples, recipe or Recipe(), rng, count=count, progress=progress)


def _bounds(claim: Guarantee | None) -> tuple[Bound, ...]:
    """One run decides; two rates, which takes rows for independent trials, is shown beside it."""
    replace_one = claim is not None and claim.adjacency is Adjacency.REPLACE_ONE
    return (PairedRun() if replace_one else OneRun(), TwoRates())


def _details(attack: Attack) -> dict[str, Any]:
    peak = getattr(attack, "peak", None)
    return {} if peak is None else {"sigma": peak.sigma, "auc_by_sigma": [list(point) for point in peak.tried]}
