"""Bar charts as SVG text: horizontal bars with a label above each, so that long names fit a phone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from sordina.reports.svg import WIDTH, Axis, Scale, nice_ticks, point, svg

_LEFT, _RIGHT, _ROW, _TOP, _FOOT = 6, 424, 34, 4, 40


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
    height = _TOP + _ROW * len(chart.bars) + _FOOT
    bottom = height - _FOOT + 4
    finite = [value for bar in chart.bars for value in (bar.value, bar.limit or 0.0) if math.isfinite(value)]
    high = chart.axis.high or max(finite, default=0.0) * 1.08 or 1.0
    across = Scale(0.0, high, _LEFT, _RIGHT)
    parts = []
    for value in nice_ticks(0.0, high):
        x = across(value)
        anchor = "start" if value == 0 else "end" if x > _RIGHT - 12 else "middle"
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="{anchor}">{chart.axis.text(value)}</text>'
        )
    for index, bar in enumerate(chart.bars):
        parts += _row(bar, _TOP + _ROW * index, across, chart.axis)
    parts.append(
        f'<text class="label" x="{WIDTH - 12}" y="{height - 4}" text-anchor="end">{escape(chart.axis.label)}</text>'
    )
    return svg("".join(parts), f"{chart.title}. {chart.summary}", height)


def _row(bar: Bar, top: float, across: Scale, axis: Axis) -> list[str]:
    end = across(bar.value)
    words = bar.words or f"{bar.label}: {axis.text(bar.value)}"
    value = "∞" if math.isinf(bar.value) else axis.text(bar.value)
    parts = [
        f'<text class="name" x="{_LEFT}" y="{top + 13}">{escape(bar.label)}'
        f'<tspan class="value" dx="8">{value}</tspan></text>',
        f'<rect class="bar s{bar.style}" x="{_LEFT}" y="{top + 19}" width="{max(1.5, end - _LEFT):.1f}" height="9" '
        'rx="2"/>',
    ]
    if bar.limit is not None and math.isfinite(bar.limit):
        parts.append(f'<path class="limit" d="M{across(bar.limit):.1f} {top + 15}v17"/>')
    return [*parts, f'<g class="points faint">{point(end, top + 23.5, bar.style, words)}</g>']
