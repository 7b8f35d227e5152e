"""What an attack says about those that were in and those that were not, and how well it tells them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri
from scipy.stats import rankdata

from sordina.errors import InvalidInput

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Scores:
    """Attack scores of members (``inside``) and of non-members (``outside``): the higher, the more a member."""

    inside: FloatArray
    outside: FloatArray

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            values = np.asarray(getattr(self, name), dtype=np.float64).reshape(-1)
            if not len(values):
                raise InvalidInput(f"no scores {name}: an audit needs members and non-members.")
            if np.isnan(values).any():
                raise InvalidInput(
                    f"{int(np.isnan(values).sum())} scores {name} are not a number: does the model work?"
                )
            object.__setattr__(self, name, values)

    def split(self, fraction: float, rng: np.random.Generator) -> tuple[Scores, Scores]:
        """``fraction`` of each side to tune on, and the rest to report on."""
        if not 0 < fraction < 1:
            raise InvalidInput(f"the part to tune on must lie between 0 and 1, got {fraction}.")
        parts = []
        for values in (self.inside, self.outside):
            order = rng.permutation(len(values))
            cut = min(max(1, round(fraction * len(values))), len(values) - 1)
            if cut < 1:
                raise InvalidInput("at least two members and two non-members are needed to split.")
            parts.append((values[order[:cut]], values[order[cut:]]))
        return Scores(parts[0][0], parts[1][0]), Scores(parts[0][1], parts[1][1])


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """A JSON-ready picture."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Roc:
    """The curve of (FPR, TPR) over all thresholds, from (0, 0) to (1, 1)."""

    fpr: FloatArray
    tpr: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture."""
        return {"fpr": self.fpr.tolist(), "tpr": self.tpr.tolist()}


def lower_rate(successes: int, trials: int, risk: float) -> float:
    """Clopper-Pearson: a rate that the true one is below with probability at most ``risk``.

    >>> round(lower_rate(10, 10, 0.05), 4)
    0.7411
    """
    return float(lower_rates(np.array([successes]), trials, risk)[0])


def upper_rate(successes: int, trials: int, risk: float) -> float:
    """Clopper-Pearson: a rate that the true one is above with probability at most ``risk``.

    >>> round(upper_rate(0, 10, 0.05), 4)
    0.2589
    """
    return float(upper_rates(np.array([successes]), trials, risk)[0])


def lower_rates(successes: NDArray[np.int64], trials: int | NDArray[np.int64], risk: float | FloatArray) -> FloatArray:
    """`lower_rate` of many counts, each with its own number of trials and risk if need be."""
    rates = betaincinv(np.maximum(successes, 1), trials - successes + 1, risk)
    return np.asarray(np.where(successes > 0, rates, 0.0), dtype=np.float64)


def upper_rates(successes: NDArray[np.int64], trials: int, risk: float) -> FloatArray:
    """`upper_rate` of many counts."""
    rates = betaincinv(successes + 1, np.maximum(trials - successes, 1), 1 - risk)
    return np.asarray(np.where(successes < trials, rates, 1.0), dtype=np.float64)


def roc(scores: Scores) -> Roc:
    """The ROC curve; equal scores move together, so that ties are worth a straight line.

    >>> curve = roc(Scores(np.array([2.0, 1.0]), np.array([1.0, 0.0])))
    >>> curve.fpr.tolist(), curve.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    thresholds = np.unique(np.concatenate([scores.inside, scores.outside]))[::-1]
    above = [
        len(values) - np.searchsorted(np.sort(values), thresholds, side="left")
        for values in (scores.inside, scores.outside)
    ]
    tpr, fpr = (np.concatenate([[0], count]) / count[-1] for count in above)
    return Roc(fpr=fpr, tpr=tpr)


def auc(scores: Scores, confidence: float = 0.95) -> Estimate:
    """Probability that a member scores above a non-member, with DeLong's interval (1988).

    >>> auc(Scores(np.array([2.0, 3.0]), np.array([0.0, 1.0]))).value
    1.0
    """
    inside, outside = scores.inside, scores.outside
    n, m = len(inside), len(outside)
    ranks = rankdata(np.concatenate([inside, outside]))
    wins = (ranks[:n] - rankdata(inside)) / m
    losses = 1 - (ranks[n:] - rankdata(outside)) / n
    value = float(wins.mean())
    variance = (wins.var(ddof=1) / n if n > 1 else 0.25) + (losses.var(ddof=1) / m if m > 1 else 0.25)
    margin = float(ndtri((1 + confidence) / 2)) * float(np.sqrt(variance))
    return Estimate(value, max(0.0, value - margin), min(1.0, value + margin))


def tpr_at(scores: Scores, fpr: float, confidence: float = 0.95) -> Estimate:
    """TPR at the lowest threshold whose false positives are at most ``fpr`` of the non-members; Clopper-Pearson.

    With fewer than ``1/fpr`` non-members this is the TPR without any false positive.
    """
    allowed = int(np.floor(fpr * len(scores.outside) + 1e-9))
    threshold = np.sort(scores.outside)[::-1][allowed] if allowed < len(scores.outside) else -np.inf
    hits, trials = int((scores.inside > threshold).sum()), len(scores.inside)
    risk = (1 - confidence) / 2
    return Estimate(hits / trials, lower_rate(hits, trials, risk), upper_rate(hits, trials, risk))
