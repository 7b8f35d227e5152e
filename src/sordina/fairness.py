"""Measure a decision, group by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sordina.errors import InvalidInput, Unsupported

__all__ = ["Fairness", "Group", "measure"]


@dataclass(frozen=True)
class Group:
    """How one group fares. A rate is None where nobody it speaks of exists.

    Args:
        name: The group.
        count: Its rows.
        positives: Its rows whose label is positive.
        accuracy: The share of right decisions.
        selection_rate: The share of positive decisions.
        true_positive_rate: Of the positive labels, the share decided positive.
        false_positive_rate: Of the negative labels, the share decided positive.
    """

    name: str
    count: int
    positives: int
    accuracy: float
    selection_rate: float
    true_positive_rate: float | None
    false_positive_rate: float | None


@dataclass(frozen=True)
class Fairness:
    """The differences between the groups; None where fewer than two groups have the rate.

    Args:
        demographic_parity_difference: The largest difference of selection rates.
        equalized_odds_difference: The larger difference of the two error rates.
        equal_opportunity_difference: The largest difference of true positive rates.
    """

    demographic_parity_difference: float | None
    equalized_odds_difference: float | None
    equal_opportunity_difference: float | None
    groups: tuple[Group, ...]
    left_out: tuple[str, ...] = ()
    """Groups too small to compare: shown, but in none of the differences."""


def measure(
    y_true: npt.ArrayLike,
    y_pred: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    names: Sequence[str] = (),
    smallest: int = 10,
) -> Fairness:
    """Compare groups on decisions ``y_pred`` in {0, 1}; groups of fewer than ``smallest`` rows are left out.

    ``names[code]`` names a group if ``groups`` holds codes.

    Args:
        y_true: The labels, 0 or 1.

    >>> fair = measure([1, 0, 1, 0] * 5, [1, 0, 0, 0] * 5, [0, 0, 1, 1] * 5, names=("a", "b"))
    >>> fair.demographic_parity_difference, fair.equal_opportunity_difference
    (0.5, 1.0)
    """
    truth, decided, codes = _checked(y_true, y_pred, groups)
    table = _frame(truth, decided, codes)
    rows = tuple(_group(code, table.by_group.loc[code], names) for code in table.by_group.index)
    compared = [row for row in rows if row.count >= smallest]
    opportunity = _spread([row.true_positive_rate for row in compared])
    false_alarm = _spread([row.false_positive_rate for row in compared])
    known = [difference for difference in (opportunity, false_alarm) if difference is not None]
    return Fairness(
        demographic_parity_difference=_spread([row.selection_rate for row in compared]),
        equalized_odds_difference=max(known) if len(known) == 2 else None,
        equal_opportunity_difference=opportunity,
        groups=rows,
        left_out=tuple(row.name for row in rows if row.count < smallest),
    )


def _checked(
    y_true: npt.ArrayLike, y_pred: npt.ArrayLike, groups: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
    truth, decided, codes = (np.asarray(values).reshape(-1) for values in (y_true, y_pred, groups))
    if not len(truth) == len(decided) == len(codes) or not len(truth):
        raise InvalidInput(f"{len(truth)} truths, {len(decided)} decisions and {len(codes)} groups do not match.")
    for name, values in (("y_true", truth), ("y_pred", decided)):
        if not np.isin(values, (0, 1)).all():
            raise InvalidInput(f"{name} must hold only 0 and 1: fairness is measured on a binary decision.")
    return truth.astype(np.int64), decided.astype(np.int64), codes


def _frame(truth: npt.NDArray[np.int64], decided: npt.NDArray[np.int64], codes: npt.NDArray[Any]) -> Any:
    try:
        from fairlearn import metrics
    except ImportError as error:
        raise Unsupported("fairness is measured with fairlearn: pip install 'sordina[federated]'.") from error

    def of_positives(true: Any, predicted: Any) -> float:
        return float(metrics.true_positive_rate(true, predicted, pos_label=1)) if np.any(true == 1) else math.nan

    def of_negatives(true: Any, predicted: Any) -> float:
        return float(metrics.false_positive_rate(true, predicted, pos_label=1)) if np.any(true == 0) else math.nan

    rates = {
        "count": metrics.count,
        "positives": lambda true, predicted: int(np.sum(true)),
        "accuracy": lambda true, predicted: float(np.mean(np.asarray(true) == np.asarray(predicted))),
        "selection_rate": metrics.selection_rate,
        "true_positive_rate": of_positives,
        "false_positive_rate": of_negatives,
    }
    return metrics.MetricFrame(metrics=rates, y_true=truth, y_pred=decided, sensitive_features=codes)


def _group(code: Any, row: Any, names: Sequence[str]) -> Group:
    return Group(
        name=names[int(code)] if names else str(code),
        count=int(row["count"]),
        positives=int(row["positives"]),
        accuracy=float(row["accuracy"]),
        selection_rate=float(row["selection_rate"]),
        true_positive_rate=_or_none(row["true_positive_rate"]),
        false_positive_rate=_or_none(row["false_positive_rate"]),
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _spread(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if len(known) > 1 else None
