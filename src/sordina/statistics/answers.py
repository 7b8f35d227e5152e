"""What comes out of a release: values, intervals, cost, and what a reader must know about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordina.accounting import Event
from sordina.accounting.events import to_dict as event_to_dict
from sordina.privacy import Guarantee
from sordina.statistics.groups import Label

Pair = tuple[float, float]


@dataclass(frozen=True)
class Findings:
    """What a statistic found, before anybody says what it cost.

    Args:
        values: One per cell.
        intervals: One per cell; None where none was asked for.
        groups: The cells' labels; empty where the answer is one number.
        notes: What is biased, and how; never a function of a single row.
    """

    values: tuple[Any, ...]
    intervals: tuple[Pair | None, ...]
    groups: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A released answer. All of it may be published if `releasable`.

    Args:
        query: What was asked.
        findings: Values, intervals, cells and notes.
        confidence: Of each interval by itself.
        event: What the answer is to an accountant.
        guarantee: What it cost by itself, at the budget's delta.
        error: What was promised beforehand, if the question could say; see `TableQuery.error`.
        releasable: False if the noise came from a seed.
    """

    query: str
    findings: Findings
    confidence: float
    event: Event
    guarantee: Guarantee
    error: float | None = None
    releasable: bool = True

    @property
    def groups(self) -> tuple[Label, ...]:
        """The cells' labels; empty where the answer is one number."""
        return self.findings.groups

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: what is biased, what was found at a delta."""
        return self.findings.notes

    @property
    def value(self) -> Any:
        """One number, or one for every cell by its label."""
        values = self.findings.values
        return dict(zip(self.groups, values, strict=True)) if self.groups or len(values) != 1 else values[0]

    @property
    def interval(self) -> Any:
        """``(low, high)``, or one for every cell by its label; None where no interval was asked for."""
        pairs = self.findings.intervals
        return dict(zip(self.groups, pairs, strict=True)) if self.groups or len(pairs) != 1 else pairs[0]

    @property
    def cost(self) -> Guarantee:
        """What it cost by itself."""
        return self.guarantee

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = self.findings
        labels = found.groups or (None,) * len(found.values)
        cells = [
            {"group": list(label) if isinstance(label, tuple) else label}
            | {"value": value, "interval": None if pair is None else list(pair)}
            for label, value, pair in zip(labels, found.values, found.intervals, strict=True)
        ]
        return {
            "query": self.query,
            "answers": cells,
            "confidence": self.confidence,
            "error": self.error,
            "epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "unit": str(self.guarantee.unit),
            "adjacency": str(self.guarantee.adjacency),
            "event": event_to_dict(self.event),
            "notes": list(found.notes),
            "releasable": self.releasable,
        }

    def __str__(self) -> str:
        lines = [f"{self.query}  {self.guarantee}"]
        for cell in self.to_dict()["answers"]:
            name = "" if cell["group"] is None else f"{cell['group']}: "
            shown = cell["value"] if isinstance(cell["value"], str) else f"{cell['value']:.6g}"
            pair = cell["interval"]
            lines.append(f"  {name}{shown}" + (f"  [{pair[0]:.6g}, {pair[1]:.6g}]" if pair else ""))
        return "\n".join(lines)
