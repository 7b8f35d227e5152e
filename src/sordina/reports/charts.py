"""Charts as SVG text: axes, series, bars, small images, and which charts the facts give."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

from sordina.auditing.scores import lower_rate, upper_rate
from sordina.privacy import format_down, format_up, most_found
from sordina.reports import words
from sordina.reports.facts import AttackFacts, Image, RunFacts

# Charts as SVG text: axes with units, series told apart by colour, dash and marker, values on every point.

WIDTH, HEIGHT = 440, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 428, 30, 238
_MARKED = 40
"""A series with more points than this has markers on a part of them only."""
_LIMITS = ("4 4", "1 3")
_DASHES = ("", "6 4", "2 3", "9 3 2 3", "1 4", "12 4")
STYLES = 6
"""How many series can be told apart."""


@dataclass(frozen=True)
class Axis:
    """What is on an axis. ``percent`` shows shares as per cent, ``up`` rounds up; bounds not given are the data's."""

    label: str
    log: bool = False
    percent: bool = False
    low: float | None = None
    high: float | None = None
    up: bool = False

    def text(self, value: float) -> str:
        """A value the way people read it.

        >>> Axis("x", percent=True).text(0.001), Axis("x").text(1234.5678)
        ('0.1 %', '1235')
        """
        if self.up:
            return format_up(value)
        return f"{value * 100:.4g} %" if self.percent else f"{value:.4g}"


@dataclass(frozen=True)
class Series:
    """Points in order of x, perhaps with a band ``(x, low, high)`` around them.

    ``style`` chooses colour, dash and marker; a ``reference`` is a grey line without markers, such as a limit.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    style: int = 0
    band: tuple[tuple[float, float, float], ...] = ()
    reference: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over two axes. ``summary`` says in words what is to be seen."""

    title: str
    summary: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]

    @property
    def empty(self) -> bool:
        """Whether no series but references has a point."""
        return not any(series.points for series in self.series if not series.reference)


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels, linearly or by logarithm; what lies outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of ``value``."""
        low, high = self._place(self.low), self._place(self.high)
        share = (self._place(value) - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def _place(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.log else value

    def ticks(self) -> list[float]:
        """Round numbers inside the scale."""
        return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten.

    >>> nice_ticks(0, 3.1)
    [0.0, 1.0, 2.0, 3.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; between few of them also 2 and 5.

    >>> log_ticks(0.001, 1)
    [0.001, 0.01, 0.1, 1.0]
    """
    powers = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    steps = (1,) if len(powers) > 3 else (1, 2, 5)
    inside = [10.0**power * step for power in powers for step in steps]
    return [value for value in inside if low * 0.999 <= value <= high * 1.001]


def draw(chart: Chart) -> str:
    """The chart as one ``<svg>``; every marked point carries its values as title and data."""
    across = _scale(chart.x, [point[0] for series in chart.series for point in series.points], _LEFT, _RIGHT)
    heights = [point[1] for series in chart.series for point in series.points]
    heights += [edge for series in chart.series for band in series.band for edge in band[1:]]
    up = _scale(chart.y, heights, _BOTTOM, _TOP)
    parts = [*_frame(chart, across, up)]
    for series in sorted(chart.series, key=lambda series: not series.reference):
        parts += _series(series, chart, across, up)
    return svg("".join(parts), f"{chart.title}. {chart.summary}")


def svg(inside: str, label: str, height: int = HEIGHT) -> str:
    """A focusable drawing with its description."""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" tabindex="0" '
        f'aria-label="{escape(label)}">{inside}</svg>'
    )


def point(x: float, y: float, style: int, words: str) -> str:
    """A marker that tells ``words`` when hovered or reached by the arrow keys."""
    said = escape(words)
    return (
        f'<g class="pt s{style}" data-x="{x:.1f}" data-y="{y:.1f}" data-says="{said}">'
        f"<title>{said}</title>{_marker(x, y, style)}</g>"
    )


def swatch(series: Series) -> str:
    """A short piece of the series' line, for the legend."""
    name = "ref" if series.reference else f"s{series.style}"
    marker = "" if series.reference else f'<g class="pt s{series.style}">{_marker(14, 7, series.style)}</g>'
    line = f'<path class="line {name}" stroke-dasharray="{_dash(series)}" d="M1 7H27"/>'
    return f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">{line}{marker}</svg>'


def _scale(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)] or [0.1, 1.0]
    low = min(finite) if axis.low is None else axis.low
    high = max(finite) if axis.high is None else axis.high
    if axis.log:
        low, high = (low, high) if high / low > 3 else (low / 2, high * 2)
    elif high <= low:
        low, high = low - 0.5, high + 0.5
    else:
        margin = (high - low) * 0.05
        low, high = low - margin * (axis.low is None), high + margin * (axis.high is None)
    return Scale(low, high, start, end, axis.log)


def _frame(chart: Chart, across: Scale, up: Scale) -> Iterable[str]:
    for value in up.ticks():
        y = up(value)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield f'<text class="tick" x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{chart.y.text(value)}</text>'
    for value in across.ticks():
        x = across(value)
        yield f'<path class="notch" d="M{x:.1f} {_BOTTOM}v5"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{_BOTTOM + 19}" text-anchor="middle">{chart.x.text(value)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>'
    yield f'<text class="label" x="4" y="14">{escape(chart.y.label)}</text>'
    yield f'<text class="label" x="{_RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(chart.x.label)}</text>'


def _series(series: Series, chart: Chart, across: Scale, up: Scale) -> Iterable[str]:
    points = [(x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return
    name = "ref" if series.reference else f"s{series.style}"
    if series.band:
        upper = [(x, high) for x, _, high in series.band]
        lower = [(x, low) for x, low, _ in reversed(series.band)]
        yield f'<path class="band {name}" d="{_path([*upper, *lower], across, up)}Z"/>'
    yield f'<path class="line {name}" stroke-dasharray="{_dash(series)}" d="{_path(points, across, up)}"/>'
    if series.reference:
        return
    bands = {x: (low, high) for x, low, high in series.band}
    faint = " faint" if len(points) > _MARKED else ""
    yield f'<g class="points{faint}">'
    for x, y in thinned(points, _MARKED):
        words = f"{series.name}: {chart.x.label} {chart.x.text(x)}, {chart.y.label} {chart.y.text(y)}"
        if x in bands:
            words += f" (95 % between {chart.y.text(bands[x][0])} and {chart.y.text(bands[x][1])})"
        yield point(across(x), up(y), series.style, words)
    yield "</g>"


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most ``most`` of the points, evenly taken, first and last among them.

    >>> thinned([(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], 3)
    [(0, 0), (2, 2), (4, 4)]
    """
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def _path(points: Iterable[tuple[float, float]], across: Scale, up: Callable[[float], float]) -> str:
    return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)


def _dash(series: Series) -> str:
    return _LIMITS[series.style % len(_LIMITS)] if series.reference else _DASHES[series.style % STYLES]


def _marker(x: float, y: float, style: int) -> str:
    shape = style % 3
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    if shape == 1:
        return f'<rect x="{x - 2.7:.1f}" y="{y - 2.7:.1f}" width="5.4" height="5.4"/>'
    return f'<path d="M{x:.1f} {y - 3.6:.1f}l3.4 6h-6.8z"/>'


# Bar charts as SVG text: horizontal bars with a label above each, so that long names fit a phone.

_EDGE, _BARS_RIGHT, _ROW, _BARS_TOP, _FOOT = 6, 424, 34, 4, 40


@dataclass(frozen=True)
class Bar:
    """A value, what it is called, and perhaps a limit it is to be held against (infinite: there is none)."""

    label: str
    value: float
    style: int = 0
    limit: float | None = None
    words: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars over one axis."""

    title: str
    summary: str
    axis: Axis
    bars: tuple[Bar, ...]


def draw_bars(chart: Bars) -> str:
    """One ``<svg>`` with a row per bar."""
    height = _BARS_TOP + _ROW * len(chart.bars) + _FOOT
    bottom = height - _FOOT + 4
    finite = [value for bar in chart.bars for value in (bar.value, bar.limit or 0.0) if math.isfinite(value)]
    high = chart.axis.high or max(finite, default=0.0) * 1.08 or 1.0
    across = Scale(0.0, high, _EDGE, _BARS_RIGHT)
    parts = []
    for value in nice_ticks(0.0, high):
        x = across(value)
        anchor = "start" if value == 0 else "end" if x > _BARS_RIGHT - 12 else "middle"
        parts.append(f'<path class="grid" d="M{x:.1f} {_BARS_TOP}V{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="{anchor}">{chart.axis.text(value)}</text>'
        )
    for index, bar in enumerate(chart.bars):
        parts += _row(bar, _BARS_TOP + _ROW * index, across, chart.axis)
    parts.append(
        f'<text class="label" x="{WIDTH - 12}" y="{height - 4}" text-anchor="end">{escape(chart.axis.label)}</text>'
    )
    return svg("".join(parts), f"{chart.title}. {chart.summary}", height)


def _row(bar: Bar, top: float, across: Scale, axis: Axis) -> list[str]:
    end = across(bar.value)
    words = bar.words or f"{bar.label}: {axis.text(bar.value)}"
    value = "∞" if math.isinf(bar.value) else axis.text(bar.value)
    parts = [
        f'<text class="name" x="{_EDGE}" y="{top + 13}">{escape(bar.label)}'
        f'<tspan class="value" dx="8">{value}</tspan></text>',
        f'<rect class="bar s{bar.style}" x="{_EDGE}" y="{top + 19}" width="{max(1.5, end - _EDGE):.1f}" height="9" '
        'rx="2"/>',
    ]
    if bar.limit is not None and math.isfinite(bar.limit):
        parts.append(f'<path class="limit" d="M{across(bar.limit):.1f} {top + 15}v17"/>')
    return [*parts, f'<g class="points faint">{point(end, top + 23.5, bar.style, words)}</g>']


# Small grey images as data addresses, so that a page needs no other file.

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_8_BIT = struct.pack(">BBBBB", 8, 0, 0, 0, 0)


def png(image: Image) -> bytes:
    """The image as an 8-bit grey PNG (ISO/IEC 15948), every row unfiltered.

    >>> png(((0.0, 1.0),))[:4]
    b'\\x89PNG'
    """
    rows = b"".join(b"\0" + bytes(round(255 * value) for value in row) for row in image)
    size = struct.pack(">II", len(image[0]), len(image))
    return (
        _SIGNATURE
        + _chunk(b"IHDR", size + _GREY_8_BIT)
        + _chunk(b"IDAT", zlib.compress(rows, 9))
        + _chunk(b"IEND", b"")
    )


def data_address(image: Image) -> str:
    """``data:image/png;base64,...``."""
    return png_address(png(image))


def png_address(content: bytes) -> str:
    """The address of a PNG file that is its whole content."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


# Which charts the facts give: a function takes runs and returns a chart, or nothing where there are no facts.

_DENSE = 160
_RISK = 0.025


def budget(runs: Sequence[RunFacts]) -> Chart | None:
    """Epsilon spent, step by step."""
    series = _lines([run for run in runs if run.private], "epsilon", among=runs)
    ends = ", ".join(f"{line.name} ends at {format_up(line.points[-1][1])}" for line in series)
    return _chart(
        "Budget over time", f"The epsilon spent grows with every step: {ends}.",
        Axis(_unit(runs)), Axis("ε spent", low=0.0, up=True), series,
    )  # fmt: skip


def accuracy(runs: Sequence[RunFacts]) -> Chart | None:
    """Share of right answers on validation data."""
    series = _lines(runs, "accuracy")
    ends = ", ".join(f"{line.name} {line.points[-1][1]:.1%}" for line in series)
    axes = Axis(_unit(runs)), Axis("accuracy on validation data", percent=True, low=0.0, high=1.0)
    return _chart("Utility: accuracy", f"Right answers at the end: {ends}.", *axes, series)


def loss(runs: Sequence[RunFacts]) -> Chart | None:
    """Validation loss, for runs that have no accuracy."""
    series = _lines([run for run in runs if run.accuracy is None], "loss", among=runs)
    ends = ", ".join(f"{run.name} {run.loss:.3g}" for run in runs if run.accuracy is None and run.loss is not None)
    log = bool(series) and all(y > 0 for line in series for _, y in line.points)
    axes = Axis(_unit(runs)), Axis("loss on validation data (lower is better)", log=log)
    return _chart("Utility: loss", f"Loss of the models that were kept: {ends}.", *axes, series)


def threshold(runs: Sequence[RunFacts]) -> Chart | None:
    """The clipping threshold, where clipping happened."""
    series = _lines([run for run in runs if run.private], "threshold", among=runs)
    moves = ", ".join(f"{line.name} {_move(line)}" for line in series)
    axes = Axis(_unit(runs)), Axis("clipping threshold C (gradient norm)", log=True)
    return _chart("Clipping threshold", f"What is clipped, and hence how much noise there is: {moves}.", *axes, series)


def roc(run: RunFacts) -> Chart | None:
    """The attacks' ROC curves on log axes, with chance and what the claim allows at most."""
    curves = [attack for attack in run.attacks if attack.fpr]
    if not curves:
        return None
    floor = 10.0 ** math.floor(math.log10(1 / max(attack.non_members for attack in curves)) + 1e-9)
    grid = [floor ** (1 - index / 60) for index in range(61)]
    series = [_curve(attack, index % STYLES, floor) for index, attack in enumerate(curves)]
    series.append(Series("guessing", tuple((x, x) for x in grid), reference=True))
    claim = run.claim
    if run.private and claim.epsilon is not None and claim.trust == "central":
        allowed = tuple((x, most_found(claim.epsilon, claim.delta or 0.0, x)) for x in grid)
        series.append(Series(f"most that ε = {format_up(claim.epsilon)} allows", allowed, 1, reference=True))
    axes = [Axis(f"{which} positive rate", log=True, percent=True, low=floor, high=1.0) for which in ("false", "true")]
    best = max(curves, key=lambda attack: attack.auc.value if attack.auc else 0.0)
    area = f" Area under the curve of {best.name}: {best.auc.value:.3f}." if best.auc else ""
    summary = f"Right against wrong accusations of membership; bands are pointwise 95 % intervals.{area}"
    return Chart(f"Membership attacks on {run.name}", summary, axes[0], axes[1], tuple(series))


def measured(runs: Sequence[RunFacts]) -> Bars | None:
    """The epsilon that attacks prove, against the one that was claimed."""
    bars = []
    for index, run in enumerate(runs):
        claimed = run.claim.epsilon if run.private and run.claim.epsilon is not None else math.inf
        for attack in run.attacks:
            says = "no privacy claimed" if math.isinf(claimed) else f"claimed ε = {format_up(claimed)}"
            told = f"{run.name}, {attack.name}: measured ε ≥ {format_down(attack.measured)}; {says}"
            bars.append(Bar(f"{run.name} · {attack.name}", attack.measured, index % STYLES, claimed, told))
    if not bars:
        return None
    found = [f"{run.name} {words.proven(run.measured)}" for run in runs if run.measured is not None]
    summary = f"The most that attacks prove: {'; '.join(found)}."
    return Bars("Measured against claimed ε", summary, Axis("ε: bar = measured at least, mark = claimed"), tuple(bars))


def release(run: RunFacts) -> Chart | None:
    """The curves of an attack on a release."""
    found = run.release
    if found is None or not found.curves:
        return None
    series = [
        Series(label, tuple(zip(x, y, strict=True)), index % STYLES, reference=label == "guessing")
        for index, (label, x, y) in enumerate(found.curves)
    ]
    return _chart(found.title, found.verdict, Axis(found.x, log=found.log_x), Axis(found.y), series)


def leakage(run: RunFacts, bins: int = 8) -> Bars | None:
    """How many clients leaked how much."""
    if not run.leakage:
        return None
    low, high = min(run.leakage), max(run.leakage)
    edges = sorted(set(run.leakage))
    if len(edges) > bins:
        counts = [0] * bins
        for value in run.leakage:
            counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
        width = (high - low) / bins
        labels = [
            f"{format_down(low + width * index)} to {format_up(low + width * (index + 1))}" for index in range(bins)
        ]
    else:
        counts = [run.leakage.count(edge) for edge in edges]
        labels = [format_up(edge) for edge in edges]
    total = len(run.leakage)
    bars = tuple(
        Bar(f"leaked {label}", count, 0, words=f"{count} of {total} clients leaked {label}")
        for label, count in zip(labels, counts, strict=True)
    )
    summary = f"{total} clients; the most leaked by one is {format_up(high)}."
    return Bars(f"Clients' leakage in {run.name}", summary, Axis("number of clients"), bars)


def fairness(run: RunFacts) -> Bars | None:
    """Rates, group by group."""
    if run.fairness is None:
        return None
    rates = (
        ("gets the positive decision", "selection_rate"),
        ("right when positive is due", "true_positive_rate"),
        ("positive by mistake", "false_positive_rate"),
        ("decided rightly", "accuracy"),
    )
    bars = tuple(
        Bar(f"{group.name}: {rate}", value, index % STYLES)
        for rate, name in rates
        for index, group in enumerate(run.fairness.groups)
        if (value := getattr(group, name)) is not None
    )
    axis = Axis("share of the group", percent=True, high=1.0)
    return Bars(f"Fairness of {run.name}", "Rates of decisions by group.", axis, bars) if bars else None


def _lines(runs: Sequence[RunFacts], fact: str, *, among: Sequence[RunFacts] | None = None) -> list[Series]:
    """One line per run that knows ``fact``; a run keeps its style in every chart."""
    everybody = list(among or runs)
    series = []
    for run in runs:
        values = [(moment.step, getattr(moment, fact)) for moment in run.history]
        points = [(float(step), value) for step, value in values if value is not None]
        if points:
            series.append(Series(run.name, tuple(points), everybody.index(run) % STYLES))
    return series


def _move(line: Series) -> str:
    first, last = line.points[0][1], line.points[-1][1]
    return f"stays at {last:.3g}" if first == last else f"goes from {first:.3g} to {last:.3g}"


def _chart(title: str, summary: str, x: Axis, y: Axis, series: list[Series]) -> Chart | None:
    return Chart(title, summary, x, y, tuple(series)) if series else None


def _unit(runs: Sequence[RunFacts]) -> str:
    kinds = {run.kind for run in runs if run.history}
    return "round" if kinds == {"federate"} else "step" if "federate" not in kinds else "step or round"


def _curve(attack: AttackFacts, style: int, floor: float) -> Series:
    """The curve from its first point at or above ``floor``, with Clopper-Pearson intervals of the TPR."""
    pairs = list(zip(attack.fpr, attack.tpr, strict=True))
    below = max((tpr for fpr, tpr in pairs if fpr <= floor), default=0.0)
    points = thinned([(floor, below), *((fpr, tpr) for fpr, tpr in pairs if fpr > floor)], _DENSE)
    hits = [round(tpr * attack.members) for _, tpr in points]
    band = [
        (fpr, _lower(hit, attack.members), _upper(hit, attack.members))
        for (fpr, _), hit in zip(points, hits, strict=True)
    ]
    return Series(attack.name, tuple(points), style, tuple(band))


@lru_cache(maxsize=4096)
def _lower(hits: int, trials: int) -> float:
    return lower_rate(hits, trials, _RISK)


@lru_cache(maxsize=4096)
def _upper(hits: int, trials: int) -> float:
    return upper_rate(hits, trials, _RISK)
