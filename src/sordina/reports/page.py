"""One self-contained page: it may ask the network for nothing, and says so to the browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape
from importlib import resources

import sordina
from sordina.reports import sections
from sordina.reports.facts import Report

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(report: Report, order: Sequence[Callable[[Report], str]] = sections.ORDER) -> str:
    """The whole page."""
    parts = [part for part in (one(report) for one in order) if part]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(report.title)} · Sordina report</title><link rel="icon" href="data:,">'
        f"<style>{_asset('style.css')}</style></head><body>"
        '<a class="skip" href="#main">Skip to the answer</a>'
        f"<header><h1>{escape(report.title)}</h1>"
        f'<p class="meta">Privacy report by Sordina {sordina.__version__}, '
        f'<time datetime="{escape(report.created)}">{escape(_day(report.created))}</time></p>'
        f"{_contents(parts)}</header>"
        f'<main id="main">{"".join(parts)}</main>'
        "<footer><p>Numbers after “at most” are rounded up. The facts of this page are in the JSON file beside it.</p>"
        '<p class="screen">In a chart: hover, or focus it and use the arrow keys.</p></footer>'
        f"<script>{_asset('hover.js')}</script></body></html>\n"
    )


def _contents(parts: Sequence[str]) -> str:
    heads = [re.search(r'<h2 id="([\w-]+)">(.*?)</h2>', part) for part in parts]
    links = "".join(f'<li><a href="#{head[1]}">{head[2]}</a></li>' for head in heads if head)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _day(time: str) -> str:
    return time[:16].replace("T", " ") + " UTC"


@lru_cache
def _asset(name: str) -> str:
    return resources.files("sordina.reports").joinpath(name).read_text(encoding="utf-8").strip()
