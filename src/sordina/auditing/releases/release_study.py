"""What an attack on a release found, as plain facts: lines that compare, curves to draw, one sentence."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordina import private_files

FILE = "release.json"
"""How a study is called in its folder; reports read it by this name."""


@dataclass(frozen=True)
class StudyLine:
    """One measure: on the naive release, on ours, and what guessing gives where that is known."""

    measure: str
    naive: float | None
    ours: float | None
    chance: float | None = None


@dataclass(frozen=True)
class StudyCurve:
    """Points to draw as a line."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class ReleaseStudy:
    """One attack, on the naive release and on ours.

    Args:
        attack: linkage, differencing, reconstruction, aggregates or averaging.
        title: What is shown, in a few words.
        data: What was attacked.
        private: What our release guarantees.
        verdict: What was found, in a sentence or two.
        lines: The measures.
        x: Of the figure.
        y: Of the figure.
        curves: Of the figure.
        log_x: Whether the figure's x is logarithmic.
        releasable: Whether our release's noise came from a secure generator; a seeded study's did not.
    """

    attack: str
    title: str
    data: str
    private: str
    verdict: str
    lines: tuple[StudyLine, ...]
    x: str
    y: str
    curves: tuple[StudyCurve, ...] = ()
    log_x: bool = False
    releasable: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data; numbers that JSON does not know are left out as None."""
        facts: dict[str, Any] = _finite(asdict(self))
        return facts

    def line(self, measure: str) -> StudyLine:
        """The line of that name."""
        return next(line for line in self.lines if line.measure == measure)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_study(study: ReleaseStudy, folder: str | Path) -> Path:
    """Leave ``release.json`` and ``release.png`` in ``folder``.

    Args:
        study: What was found.
        folder: Made if it is not there.
    """
    folder = Path(folder)
    private_files.make_folder(folder)
    private_files.write(folder / FILE, (json.dumps(study.to_dict()) + "\n").encode())
    if study.curves:
        draw_study(study, folder / "release.png")
    return folder


def draw_study(study: ReleaseStudy, path: Path) -> None:
    """The curves of a study, as PNG.

    Args:
        study: What was found.
        path: Where.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4), layout="constrained")
    axes = figure.subplots()
    for curve in study.curves:
        axes.plot(curve.x, curve.y, marker="o" if len(curve.x) <= 15 else "", label=curve.label)
    axes.set(xlabel=study.x, ylabel=study.y, title=study.title, xscale="log" if study.log_x else "linear")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    private_files.write(path, lambda file: figure.savefig(file, dpi=150, format="png"))
