"""What attacks achieved and what that proves, set beside what was claimed, in words that promise no more than it does.

=========================  ==========================================================================================
word                       when
=========================  ==========================================================================================
``REFUTED``                chance decided who was in, and a bound passed the claim at the stated confidence
``NOT PRIVATE``            no limit was claimed: nothing bounds what the model may tell
``CLAIMED, NOT VERIFIED``  a limit was claimed, no attack broke it, and nobody proved it
``PRIVATE``                Sordina computed the limit from the events that ran, and no attack broke it
=========================  ==========================================================================================

An attack that finds little proves little: no audit turns a claim into a proof.

Pictures of an audit: ROC on log axes, empirical epsilon against FPR, AUC against sigma, reconstructions.

Each function writes one PNG and returns its path; nothing here decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sordina import private_files
from sordina.auditing.bounds import LowerBound, rates_at
from sordina.auditing.one_run import Membership
from sordina.auditing.scores import Estimate, FloatArray, Roc, Scores, auc, roc, tpr_at
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Guarantee, Unit, check_delta, format_down, format_up

REFUTED = "REFUTED"
NOT_PRIVATE = "NOT PRIVATE"
NOT_VERIFIED = "CLAIMED, NOT VERIFIED"
PRIVATE = "PRIVATE"
NO_SPLIT = "who was in was not decided by chance, so that another difference between the two groups may show"
NO_PROOF = "An attack that finds no more proves nothing: a stronger one may."
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
        membership: How it was decided who was in.
        knows: What the attacker had.
    """

    name: str
    scores: Scores
    bounds: tuple[LowerBound, ...]
    """The first one decides; the others are for comparison, under their own assumptions."""
    claim: Guarantee | None = None
    confidence: float = 0.95
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    membership: Membership = field(default_factory=lambda: Membership("coins"))
    knows: str = "what the model answers"

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
    def random_split(self) -> bool:
        """Whether chance alone decided who was in; without it a difference between the two groups proves nothing."""
        return self.membership.by_chance

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
        """The finding in a sentence or two."""
        proven, delta = format_down(self.bound.epsilon), self.bound.delta
        shown = f"epsilon >= {proven} at delta {delta:.3g}, confidence {100 * self.bound.confidence:.4g} %"
        if self.claim is None:
            measured = "" if self.random_split else f" {_sentence(NO_SPLIT)}"
            return f"{self.name}: {shown}; no epsilon was claimed.{measured}"
        if math.isinf(self.claim.epsilon):
            return f"{self.name}: {shown}; the model claims no privacy."
        claimed = format_up(self.claim.epsilon)
        if self.suspicious:
            return (
                f"NOT A REFUTATION: {self.name} finds {shown}, above the claimed epsilon {claimed}, but {NO_SPLIT}. "
                "Leave rows out by chance and audit again (--rows)."
            )
        if self.exceeds_claim:
            return f"CLAIM REFUTED by {self.name}: {shown}, but epsilon {claimed} was claimed."
        unproven = "" if self.random_split else f"; {NO_SPLIT}"
        return f"{self.name}: {shown}; not above the claimed epsilon {claimed}{unproven}. {NO_PROOF}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {
            "attack": self.name,
            "knows": self.knows,
            "members": len(self.scores.inside),
            "non_members": len(self.scores.outside),
            "auc": self.auc.to_dict(),
            "tpr_at_fpr": {str(rate): estimate.to_dict() for rate, estimate in self.tpr.items()},
            "bounds": [bound.to_dict() for bound in self.bounds],
            "claimed_epsilon": _claimed(self.claim),
            "membership": str(self.membership),
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
        proved: Whether Sordina itself computed the claim from the events that ran.
    """

    results: tuple[AttackResult, ...]
    claim: Guarantee | None = None
    proved: bool = False

    def __getitem__(self, name: str) -> AttackResult:
        """The result of the attack called ``name``."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"no attack called {name!r} here; there are {[result.name for result in self.results]}")

    @property
    def ranked(self) -> tuple[AttackResult, ...]:
        """The strongest attack first: by what it proves, then by how well it tells members apart."""
        return tuple(sorted(self.results, key=lambda one: (-one.bound.epsilon, -one.auc.value)))

    @property
    def exceeds_claim(self) -> bool:
        """Whether any attack refuted the claim."""
        return any(result.exceeds_claim for result in self.results)

    @property
    def epsilon_lower(self) -> float:
        """The largest bound of all attacks; the error was shared among them, so it holds for whichever it is."""
        return max(result.bound.epsilon for result in self.results)

    def save(self, folder: str | Path) -> Path:
        """Write ``audit.json`` and figures to ``folder``; returns it.

        Args:
            folder: Where to; made if it is not there.
        """
        from sordina.auditing.runs import write_audit

        return write_audit(self, folder)

    @property
    def word(self) -> str:
        """``REFUTED``, ``NOT PRIVATE``, ``CLAIMED, NOT VERIFIED`` or ``PRIVATE``."""
        if self.exceeds_claim:
            return REFUTED
        if self.claim is None or math.isinf(self.claim.epsilon):
            return NOT_PRIVATE
        return PRIVATE if self.proved else NOT_VERIFIED

    @property
    def verdict(self) -> str:
        """The finding in words: that of the strongest attack."""
        said = self.ranked[0].verdict
        many = len(self.results)
        together = f" The {many} attacks together: confidence {self.results[0].confidence:.4g}." if many > 1 else ""
        return f"{said}{together}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture, the strongest attack first."""
        return {
            "word": self.word,
            "verdict": self.verdict,
            "exceeds_claim": self.exceeds_claim,
            "claimed_epsilon": _claimed(self.claim),
            "results": [result.to_dict() for result in self.ranked],
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


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def claim_from(words: str) -> Guarantee:
    """A claim written as "epsilon,delta", for add/remove of a record.

    >>> claim_from("8,1e-5").epsilon
    8.0
    """
    try:
        epsilon, delta = (float(part) for part in words.split(","))
    except ValueError as error:
        raise InvalidInput(f"a claim is written as epsilon,delta, for example 8,1e-5; got {words!r}.") from error
    if not epsilon >= 0:
        raise InvalidInput(f"a claimed epsilon is 0 or more, got {epsilon}.")
    return Guarantee(epsilon, check_delta(delta), Adjacency.ADD_REMOVE, Unit.RECORD)


# Pictures of an audit: ROC on log axes, empirical epsilon against FPR, AUC against sigma, reconstructions.


def roc_figure(results: Sequence[AttackResult], path: str | Path) -> Path:
    """TPR against FPR, both on log axes, where attacks differ (000 figure 4.3b; Carlini et al. 2022)."""
    figure, axes = _axes("false positive rate", "true positive rate")
    floor = min(1 / len(result.scores.outside) for result in results) / 2
    for result in results:
        fpr, tpr = np.maximum(result.roc.fpr, floor), np.maximum(result.roc.tpr, floor)
        axes.plot(fpr, tpr, label=f"{result.name} (AUC {result.auc.value:.3f})")
    axes.plot([floor, 1], [floor, 1], color="grey", linestyle=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    return _finish(figure, axes, path)


def epsilon_figure(results: Sequence[AttackResult], path: str | Path) -> Path:
    """Lower bounds on epsilon against FPR (000 figure 4.4, with confidence): each point is a bound by itself."""
    figure, axes = _axes("false positive rate", "epsilon, lower confidence bound")
    for result in results:
        fpr, bounds = epsilon_curve(result.scores, result.bound.delta, result.confidence)
        axes.plot(fpr, bounds, label=result.name)
    claim = results[0].claim
    if claim is not None and np.isfinite(claim.epsilon):
        axes.axhline(claim.epsilon, color="black", linestyle="--", label="claimed")
    axes.set(xscale="log", ylim=(0, None))
    return _finish(figure, axes, path)


def epsilon_curve(scores: Scores, delta: float, confidence: float, points: int = 60) -> tuple[FloatArray, FloatArray]:
    """(FPR, two-rates bound) over thresholds. One threshold chosen from the curve needs evidence of its own."""
    ordered = np.sort(scores.outside)[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), points).astype(int))
    bounds = rates_at(scores, ordered[ranks - 1], confidence).log_ratio(delta)
    return ranks / len(ordered), np.maximum(bounds, 0.0)


def sigma_figure(tried: Sequence[Sequence[float]], path: str | Path) -> Path:
    """AUC against the noise of the neighbours: one peak (000 figure 4.2). Takes the pairs that the search tried."""
    figure, axes = _axes("sigma of the noisy neighbours", "AUC on the tuning split")
    points = sorted((float(sigma), float(value)) for sigma, value in tried)
    axes.plot([sigma for sigma, _ in points], [value for _, value in points], marker="o")
    axes.axhline(0.5, color="grey", linestyle=":")
    axes.set(xscale="log")
    return _finish(figure, axes, path)


def reconstruction_figure(
    originals: Tensor, rows: Sequence[tuple[str, Tensor]], path: str | Path, captions: Sequence[Sequence[str]] = ()
) -> Path:
    """A grid: the originals, then one row per defence (000 figure 2.5). Images are (N, channels, height, width)."""
    from matplotlib.figure import Figure

    table = [("original", originals), *rows]
    size = (1.1 * len(originals) + 1.6, 1.25 * len(table))
    figure = Figure(figsize=size)
    grid = figure.subplots(len(table), len(originals), squeeze=False)
    for line, (name, images) in enumerate(table):
        for column, image in enumerate(images):
            axes = grid[line][column]
            axes.imshow(image.detach().clamp(0, 1).mean(dim=0).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if line and captions:
                axes.set_xlabel(captions[line - 1][column], fontsize=6, labelpad=1)
        grid[line][0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return _save(figure, path)


def class_figure(images: Tensor, confidences: Sequence[float], path: str | Path) -> Path:
    """What a model thinks its classes look like, with how sure it is. Images are (classes, height, width)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * len(images), 1.5))
    for axes, image, sure in zip(figure.subplots(1, len(images), squeeze=False)[0], images, confidences, strict=True):
        axes.imshow(image.detach().numpy(), cmap="gray")
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"{sure:.0%}", fontsize=7, labelpad=1)
    return _save(figure, path)


def _axes(horizontal: str, vertical: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.grid(alpha=0.3)
    return figure, axes


def _finish(figure: Any, axes: Any, path: str | Path) -> Path:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)
    return _save(figure, path)


def _save(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    private_files.make_folder(path.parent)
    private_files.write(path, lambda file: figure.savefig(file, dpi=150, bbox_inches="tight", format="png"))
    return path
