"""Audit a model that was trained by anybody: attacks, what they achieved, and what that proves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from sordina.auditing.bounds import Bound, LowerBound, OneRun, PairedRun, TwoRates, shared_confidence
from sordina.auditing.membership.attacks import (
    AttackModel,
    LiRA,
    LossAttack,
    MembershipAttack,
    NoisyNeighbours,
    ShadowDifference,
)
from sordina.auditing.membership.shadows import PlainTraining, Progress, Shadows, fresh, make_shadows, silent
from sordina.auditing.membership.target import Samples, Target, as_samples, as_target
from sordina.auditing.scores import BoolArray, Estimate, Roc, Scores, auc, roc, tpr_at
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Guarantee, check_delta, check_seed, format_down, format_up

# What an attack achieved and what that proves, set beside what was claimed.

NO_SPLIT = "who was in was not decided by chance, so that another difference between the two groups may show"
LOW_RATES = (0.01, 0.001)
"""False positive rates at which a membership attack is judged (Carlini et al. 2022)."""


@dataclass(frozen=True)
class AttackResult:
    """One attack on one model or mechanism. ``scores`` are those reported on: nothing was tuned on them.

    Args:
        name: The attack's name.
        claim: What was claimed, if anything was.
        confidence: With which probability the bounds hold.
        seconds: How long the attack took.
        details: What the attack says of itself.
    """

    name: str
    scores: Scores
    bounds: tuple[LowerBound, ...]
    """The first one decides; the others are for comparison, under their own assumptions."""
    claim: Guarantee | None = None
    confidence: float = 0.95
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    random_split: bool = True
    """Whether chance alone decided who was in; without it a difference between the two groups proves nothing."""

    @cached_property
    def auc(self) -> Estimate:
        """Area under the ROC curve."""
        return auc(self.scores, self.confidence)

    @cached_property
    def roc(self) -> Roc:
        """The ROC curve."""
        return roc(self.scores)

    @cached_property
    def tpr(self) -> dict[float, Estimate]:
        """TPR at 1 % and 0.1 % FPR."""
        return {rate: tpr_at(self.scores, rate, self.confidence) for rate in LOW_RATES}

    @property
    def bound(self) -> LowerBound:
        """The bound that decides."""
        return self.bounds[0]

    @property
    def exceeds_claim(self) -> bool:
        """Whether epsilon was shown to be above what was claimed."""
        return self.random_split and self._above

    @property
    def suspicious(self) -> bool:
        """Whether it would have been shown, had chance decided who was in."""
        return not self.random_split and self._above

    @property
    def _above(self) -> bool:
        return self.claim is not None and self.bound.epsilon > self.claim.epsilon

    @property
    def verdict(self) -> str:
        """The finding in a sentence."""
        proven, delta = format_down(self.bound.epsilon), self.bound.delta
        shown = f"epsilon >= {proven} at delta {delta:.3g}, confidence {100 * self.bound.confidence:.4g} %"
        if self.claim is None:
            return f"{self.name}: {shown}; no epsilon was claimed."
        if math.isinf(self.claim.epsilon):
            return f"{self.name}: {shown}; the model claims no privacy."
        if self.suspicious:
            return (
                f"NOT A REFUTATION: {self.name} finds {shown}, above the claimed epsilon "
                f"{format_up(self.claim.epsilon)}, but {NO_SPLIT}. Leave rows out by chance and audit again (--rows)."
            )
        if self.exceeds_claim:
            return f"CLAIM REFUTED by {self.name}: {shown}, but epsilon {format_up(self.claim.epsilon)} was claimed."
        unproven = "" if self.random_split else f"; {NO_SPLIT}"
        return f"{self.name}: {shown}; consistent with the claimed epsilon {format_up(self.claim.epsilon)}{unproven}."

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "attack": self.name,
            "members": len(self.scores.inside),
            "non_members": len(self.scores.outside),
            "auc": self.auc.to_dict(),
            "tpr_at_fpr": {str(rate): estimate.to_dict() for rate, estimate in self.tpr.items()},
            "bounds": [bound.to_dict() for bound in self.bounds],
            "claimed_epsilon": _claimed(self.claim),
            "random_split": self.random_split,
            "exceeds_claim": self.exceeds_claim,
            "suspicious": self.suspicious,
            "verdict": self.verdict,
            "roc": thinned(self.roc).to_dict(),
            "seconds": round(self.seconds, 3),
            "details": self.details,
        }


@dataclass(frozen=True)
class Audit:
    """All attacks on one model.

    Args:
        results: One result per attack.
        claim: What was claimed, if anything was.
    """

    results: tuple[AttackResult, ...]
    claim: Guarantee | None = None

    def __getitem__(self, name: str) -> AttackResult:
        """The result of the attack called ``name``."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"no attack called {name!r} here; there are {[result.name for result in self.results]}")

    @property
    def exceeds_claim(self) -> bool:
        """Whether any attack refuted the claim."""
        return any(result.exceeds_claim for result in self.results)

    @property
    def epsilon_lower(self) -> float:
        """The largest bound of all attacks; the error was shared among them, so it holds for whichever it is."""
        return max(result.bound.epsilon for result in self.results)

    @property
    def verdict(self) -> str:
        """The finding in a sentence: that of the attack with the largest bound, or of the first that refutes."""
        refuting = [result for result in self.results if result.exceeds_claim or result.suspicious]
        said = (refuting or [max(self.results, key=lambda result: result.bound.epsilon)])[0].verdict
        many = len(self.results)
        return (
            said if many == 1 else f"{said} The {many} attacks together: confidence {self.results[0].confidence:.4g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "verdict": self.verdict,
            "exceeds_claim": self.exceeds_claim,
            "claimed_epsilon": _claimed(self.claim),
            "results": [result.to_dict() for result in self.results],
        }


def thinned(curve: Roc, points: int = 200) -> Roc:
    """At most ``points`` of the curve, dense where the false positive rate is low."""
    if len(curve.fpr) <= points:
        return curve
    low = np.geomspace(1, len(curve.fpr), points // 2).astype(int) - 1
    even = np.linspace(0, len(curve.fpr) - 1, points - points // 2).astype(int)
    keep = np.unique(np.concatenate([low, even]))
    return Roc(curve.fpr[keep], curve.tpr[keep])


def _claimed(claim: Guarantee | None) -> float | str | None:
    if claim is None:
        return None
    return "inf" if math.isinf(claim.epsilon) else claim.epsilon


# Audit a model that was trained by anybody: members, non-members, attacks, and what they prove.
#
#     result = sd.audit(model, (x_train, y_train), (x_test, y_test), attacks=["loss", "lira-online"])
#     print(result.verdict)
#
# Rows are split once: on the tuning part noise levels, thresholds and numbers of guesses are chosen; the other part is
# reported on, the same for all attacks.

ATTACKS = ("loss", "noisy", "shadow", "lira-online", "lira-offline", "attack-model")
"""The names that `audit` knows; all but the first two train shadow models."""
SHADOWED: dict[str, Callable[[Shadows], MembershipAttack]] = {
    "shadow": ShadowDifference,
    "lira-online": LiRA,
    "lira-offline": lambda shadows: LiRA(shadows, online=False),
    "attack-model": AttackModel,
}


def audit(
    model: Any,
    members: Any,
    non_members: Any,
    attacks: Sequence[str | MembershipAttack] = ("loss", "noisy"),
    *,
    claim: Guarantee | None = None,
    random_split: bool = False,
    delta: float | None = None,
    confidence: float = 0.95,
    recipe: PlainTraining | None = None,
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
        random_split: Say so if chance alone decided who became a member (`sordina.auditing.bounds`). Any other
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

    def separate(self, attack: MembershipAttack, target: Target) -> tuple[Scores, Scores]:
        """Scores of the tuning part and of the reported part."""
        scores = attack.scores(target, self.samples)
        tuned, reported = (
            Scores(scores[self.member & part], scores[~self.member & part]) for part in (self.tuning, ~self.tuning)
        )
        return tuned, reported


def _ready(
    attack: str | MembershipAttack, target: Target, rows: _Rows, shadows: Shadows | None, rng: np.random.Generator
) -> MembershipAttack:
    """The attack by name, its free parameters tuned on the tuning rows."""
    if isinstance(attack, str):
        if attack == "loss":
            return LossAttack()
        if attack in SHADOWED and shadows is not None:
            return SHADOWED[attack](shadows)
        if attack != "noisy":
            raise InvalidInput(f"no attack is called {attack!r}. Choose one of {', '.join(ATTACKS)}.")
        attack = NoisyNeighbours(rng)
    if isinstance(attack, NoisyNeighbours) and attack.sigma is None:
        return attack.tuned(target, rows.part(member=True, tuning=True), rows.part(member=False, tuning=True))
    return attack


def _train_shadows(
    target: Target,
    samples: Samples,
    recipe: PlainTraining | None,
    count: int,
    rng: np.random.Generator,
    progress: Progress,
) -> Shadows:
    model: nn.Module = target.model
    first = int(rng.integers(2**31))

    def build(index: int) -> nn.Module:
        return fresh(model, first + index)

    return make_shadows(build, samples, recipe or PlainTraining(), rng, count=count, progress=progress)


def _bounds(claim: Guarantee | None) -> tuple[Bound, ...]:
    """One run decides; two rates, which takes rows for independent trials, is shown beside it."""
    replace_one = claim is not None and claim.adjacency is Adjacency.REPLACE_ONE
    return (PairedRun() if replace_one else OneRun(), TwoRates())


def _details(attack: MembershipAttack) -> dict[str, Any]:
    peak = getattr(attack, "peak", None)
    return {} if peak is None else {"sigma": peak.sigma, "auc_by_sigma": [list(point) for point in peak.tried]}
