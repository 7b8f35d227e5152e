"""What an attack achieved and what that proves, set beside what was claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sordina.auditing.bounds import LowerBound
from sordina.auditing.scores import Estimate, Roc, Scores, auc, roc, tpr_at
from sordina.types import Guarantee, format_down, format_up

NO_SPLIT = "who was in was not decided by chance, so that another difference between the two groups may show"
LOW_RATES = (0.01, 0.001)
"""False positive rates at which a membership attack is judged (Carlini et al. 2022)."""


@dataclass(frozen=True)
class AttackResult:
    """One attack on one model or mechanism. ``scores`` are those reported on: nothing was tuned on them."""

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
    """All attacks on one model."""

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
