"""Findings for people (Markdown, a figure) and for programs (JSON)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordina.reproduction.findings import Curve, Findings, Panel, Value


def write(facts: dict[str, Any], findings: Findings, folder: Path) -> None:
    """Leave ``result.json``, ``figure.png`` and ``result.md`` in ``folder``."""
    (folder / "result.json").write_text(json.dumps(plain(facts), indent=2, allow_nan=False) + "\n")
    if findings.panels:
        draw(findings.panels, folder / "figure.png")
    (folder / "result.md").write_text(markdown(facts, findings))


def plain(value: Any) -> Any:
    """JSON knows neither infinity nor NaN: they become text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None, spread: float | None = None) -> str:
    """A value as tables show it.

    >>> number(91.194, 0.5), number(1.5374), number(0.00316), number(20), number(None)
    ('91.19 (0.50)', '1.537', '0.00316', '20', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    digits = 2 if abs(value) >= 10 else 3 if abs(value) >= 1 else 4
    text = f"{value:.{digits}f}" if abs(value) >= 0.01 or value == 0 else f"{value:.3g}"
    return text if spread is None else f"{text} ({spread:.{digits}f})"


def columns(values: Sequence[Value]) -> list[str]:
    """The words by which the values are told apart, in order of appearance."""
    return list(dict.fromkeys(name for value in values for name in value.what))


def cells(value: Value, names: Sequence[str]) -> list[str]:
    """One row of the table."""
    difference = (
        f"{value.ours - value.reference:+.2f}" if value.ours is not None and value.reference is not None else ""
    )
    return [
        *(value.what.get(name, "") for name in names),
        number(value.ours, value.spread),
        number(value.reference, value.reference_spread),
        difference,
        value.note,
    ]


def markdown(facts: dict[str, Any], findings: Findings) -> str:
    """The report of an experiment."""
    names = columns(findings.values)
    header = [*names, "ours", "reference", "difference", "note"]
    rows = [cells(value, names) for value in findings.values]
    lines = [
        f"# {facts['name']}: {facts['title']}",
        "",
        f"Source: {facts['source']}. Scale: **{facts['scale']}**. Data: {findings.data}. "
        f"Took {facts['seconds']:.0f} s.",
        "",
        *(f"- {remark}" for remark in findings.remarks),
        "",
        _line(header),
        _line(["---"] * len(header)),
        *(_line(row) for row in rows),
        "",
    ]
    lines += ["![figure](figure.png)", ""] if findings.panels else []
    lines += [f"![{file}]({file})\n" for file in findings.files]
    return "\n".join(lines)


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"


def draw(panels: Sequence[Panel], path: Path) -> None:
    """All panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2 * len(panels), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        colours: dict[str, Any] = {}
        for curve in panel.curves:
            _line_of(axes, curve, colours)
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        axes.set_xscale("log" if panel.log_x else "linear")
        axes.set_yscale("log" if panel.log_y else "linear")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _line_of(axes: Any, curve: Curve, colours: dict[str, Any]) -> None:
    """Ours and the reference of one label share a colour."""
    style = {"linestyle": "--", "alpha": 0.6} if curve.reference else {"linestyle": "-"}
    label = f"{curve.label}, reference" if curve.reference else curve.label
    mark = "o" if len(curve.x) <= 12 else ""
    colour = colours.get(curve.label)
    drawn = axes.errorbar(curve.x, curve.y, curve.spread, marker=mark, capsize=3, label=label, color=colour, **style)
    colours.setdefault(curve.label, drawn[0].get_color())
