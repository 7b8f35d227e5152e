"""Charts as SVG text: axes with units, series told apart by colour, dash and marker, values on every point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from sordina.types import format_up

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
