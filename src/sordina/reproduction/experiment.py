"""Experiments as files, what they found, and how it is written: Markdown, JSON and a figure."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from sordina.errors import InvalidInput

# What an experiment found: values beside their references, curves, and remarks. Frozen data; `write` renders them.


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
class PlottedCurve:
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
    curves: Sequence[PlottedCurve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class ExperimentFindings:
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


# Experiments as files: what is reproduced, by which function, at which scales, against which numbers.
#
# title     = "MNIST, k = 5"
# source    = "000, table 3.11 and figure 3.10"
# run       = "sordina.reproduction.searches:search_table"     # a function (Job) -> Findings
# [settings]                                            # the same at every scale
# [scales.smoke]  [scales.short]  [scales.full]         # what each scale adds or overrides
# [[reference]]                                         # what the source reports; the function knows the keys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCALES = ("smoke", "short", "full")
"""About a minute; within an hour on two cores; the protocol of the source."""


@dataclass(frozen=True)
class Experiment:
    """One file of ``experiments/``."""

    name: str
    title: str
    source: str
    run: str
    scales: dict[str, dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    reference: tuple[dict[str, Any], ...] = ()
    about: str = ""

    def function(self) -> Callable[[Job], ExperimentFindings]:
        """The function that does it."""
        module, _, name = self.run.partition(":")
        found: Callable[[Job], ExperimentFindings] = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True)
class Job:
    """An experiment at one scale: what its function is given."""

    experiment: Experiment
    scale: str
    folder: Path
    workers: int = 1
    resume: bool = False
    show: bool = False
    """Whether somebody is watching: then progress may be shown on standard error."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the experiment, with those of the scale on top."""
        return self.experiment.settings | self.experiment.scales[self.scale]

    @property
    def caveats(self) -> list[str]:
        """What a reader must know of the scale."""
        return ["Smoke: shows that everything runs; these numbers mean nothing."] if self.scale == "smoke" else []

    @property
    def reference(self) -> tuple[dict[str, Any], ...]:
        """What the source reports."""
        return self.experiment.reference


def _files() -> dict[str, Any]:
    folder = resources.files("sordina.reproduction") / "experiments"
    return {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}


def names() -> tuple[str, ...]:
    """Everything that can be reproduced, in the order of the documents."""
    return tuple(sorted(_files(), key=_order))


def _order(name: str) -> tuple[Any, ...]:
    """Table 3.9 before table 3.10."""
    kind, _, number = name.partition("-")
    return kind, tuple(int(part) if part.isdigit() else part for part in number.split(".")) if number else ()


def load(name: str) -> Experiment:
    """The experiment called ``name``.

    >>> load("table-3.11").title
    'MNIST, k = 5: accuracy at the budget of the whole grid'
    """
    files = _files()
    if name not in files:
        raise InvalidInput(f"nothing is called {name!r} here: see `sordina reproduce --list`.")
    data = tomllib.loads(files[name].read_text())
    try:
        made = Experiment(name, **{**data, "reference": tuple(data.get("reference", ()))})
    except TypeError as error:
        raise InvalidInput(f"experiment {name}: {error}.") from error
    if missing := [scale for scale in SCALES if scale not in made.scales]:
        raise InvalidInput(f"experiment {name} has no scale {missing[0]!r}.")
    return made


# Findings for people (Markdown, a figure) and for programs (JSON).


def write(facts: dict[str, Any], findings: ExperimentFindings, folder: Path) -> None:
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


def markdown(facts: dict[str, Any], findings: ExperimentFindings) -> str:
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


def _line_of(axes: Any, curve: PlottedCurve, colours: dict[str, Any]) -> None:
    """Ours and the reference of one label share a colour."""
    style = {"linestyle": "--", "alpha": 0.6} if curve.reference else {"linestyle": "-"}
    label = f"{curve.label}, reference" if curve.reference else curve.label
    mark = "o" if len(curve.x) <= 12 else ""
    colour = colours.get(curve.label)
    drawn = axes.errorbar(curve.x, curve.y, curve.spread, marker=mark, capsize=3, label=label, color=colour, **style)
    colours.setdefault(curve.label, drawn[0].get_color())


# Run one experiment and leave Markdown, JSON and a figure.


@dataclass(frozen=True)
class Reproduction:
    """An experiment, its scale and what it found."""

    experiment: Experiment
    scale: str
    findings: ExperimentFindings
    seconds: float

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.experiment.name,
            "title": self.experiment.title,
            "source": self.experiment.source,
            "scale": self.scale,
            "seconds": round(self.seconds, 1),
            **self.findings.facts(),
        }


def reproduce(
    name: str, scale: str, folder: Path, *, workers: int = 1, resume: bool = False, show: bool = False
) -> Reproduction:
    """Do the experiment called ``name`` in ``folder``/name/scale."""
    if scale not in SCALES:
        raise InvalidInput(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}.")
    experiment = load(name)
    place = folder / name / scale
    place.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    findings = experiment.function()(Job(experiment, scale, place, workers, resume, show))
    made = Reproduction(experiment, scale, findings, time.perf_counter() - start)
    write(made.facts(), findings, place)
    return made
