"""The answers that a release wrote, from plain JSON to facts."""

from __future__ import annotations

import math
from typing import Any

from sordina.errors import InvalidInput
from sordina.reports.facts import ReleasedAnswer, ReleasedCell


def released_answers(found: dict[str, Any]) -> tuple[ReleasedAnswer, ...]:
    """The answers of an ``answers.json``: `sordina.statistics.record.release_record`; none if there is none.

    Args:
        found: What the file says.
    """
    try:
        return tuple(_answer(one) for one in found["answers"]) if found else ()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"answers.json does not read as a release ({type(error).__name__}).") from error


def _answer(one: dict[str, Any]) -> ReleasedAnswer:
    return ReleasedAnswer(
        question=str(one["query"]),
        cells=tuple(_cell(cell) for cell in one["answers"]),
        confidence=_finite(one["confidence"]),
        epsilon=_finite(one["epsilon"]),
        delta=_finite(one["delta"]),
        notes=tuple(str(note) for note in one["notes"]),
        releasable=one["releasable"] is True,
    )


def _cell(cell: dict[str, Any]) -> ReleasedCell:
    group, pair = cell["group"], cell["interval"]
    labels = () if group is None else tuple(map(str, group)) if isinstance(group, list) else (str(group),)
    low, high = (None, None) if pair is None else map(_finite, pair)
    return ReleasedCell(labels, _finite(cell["value"]), low, high)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)
