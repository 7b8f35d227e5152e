"""What an experiment found: values beside their references, curves, and remarks. Frozen data; `write` renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Value:
    """One number of a table: which, ours, theirs."""

    what: dict[str, str]
    ours: float | None
    spread: float | None = None
    reference: float | None = None
    reference_spread: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """Points to draw as a line; ``reference`` ones are dashed."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    reference: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over common axes."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Findings:
    """Everything one experiment has to show. ``data`` says what it ran on, ``remarks`` what a reader must know."""

    data: str
    values: Sequence[Value]
    panels: Sequence[Panel] = ()
    remarks: Sequence[str] = ()
    files: Sequence[str] = field(default_factory=tuple)
    """Figures the experiment drew itself, relative to its folder."""

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)
