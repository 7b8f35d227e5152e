"""Pieces of HTML that several sections use; everything that comes from outside passes through `escape`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from sordina.reports.charts import Bars, Chart, draw, draw_bars, swatch


def section(name: str, title: str, *parts: str) -> str:
    """A headed section; empty if nothing is in it."""
    inside = "".join(parts)
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{inside}</section>' if inside else ""


def paragraph(words: str, kind: str = "") -> str:
    """One paragraph."""
    return f"<p{_class(kind)}>{escape(words)}</p>"


def cards(parts: Iterable[str], kind: str = "cards") -> str:
    """Parts side by side where there is room; empty if there are none."""
    inside = "".join(parts)
    return f'<div class="{kind}">{inside}</div>' if inside else ""


def bullets(items: Iterable[str]) -> str:
    """A plain list."""
    inside = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="plain">{inside}</ul>' if inside else ""


def keys(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Names and values; a value that is None is left out."""
    inside = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value is not None)
    return f'<dl class="key">{inside}</dl>' if inside else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, kind: str = "") -> str:
    """A table that scrolls sideways by itself when it is too wide; a ``tight`` one does not break lines."""
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + _cells(row) + "</tr>" for row in rows)
    label = escape(caption)
    return (
        f'<div class="wide" role="region" aria-label="{label}" tabindex="0"><table{_class(kind)} aria-label="{label}">'
        f"<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(chart: Chart | Bars | None) -> str:
    """A chart with its title, what it shows in words, its legend and its values as a table."""
    if chart is None:
        return ""
    drawn = draw_bars(chart) if isinstance(chart, Bars) else draw(chart)
    return (
        f"<figure><figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.summary)}</p></figcaption>"
        f'{_legend(chart)}{drawn}<div class="tip" role="status"></div>{_values(chart)}</figure>'
    )


def _legend(chart: Chart | Bars) -> str:
    if isinstance(chart, Bars):
        return ""
    entries = "".join(f"<li>{swatch(series)}{escape(series.name)}</li>" for series in chart.series)
    return f'<ul class="legend" aria-label="Legend">{entries}</ul>'


def _values(chart: Chart | Bars) -> str:
    if isinstance(chart, Bars):
        rows = [(bar.label, chart.axis.text(bar.value)) for bar in chart.bars]
        inside = table(("what", chart.axis.label), rows, f"Values of {chart.title}")
    else:
        lines = [
            (series.name, chart.x.text(x), chart.y.text(y))
            for series in chart.series
            if not series.reference
            for x, y in series.points
        ]
        inside = table(("series", chart.x.label, chart.y.label), lines, f"Values of {chart.title}")
    return f"<details><summary>Values as a table</summary>{inside}</details>"


def _cells(row: Sequence[str]) -> str:
    first, *rest = row
    return f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
