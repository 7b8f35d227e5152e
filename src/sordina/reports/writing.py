"""Write a report: the page, and its facts as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sordina import private_files
from sordina.reports import sections
from sordina.reports.facts import Report
from sordina.reports.page import render


def write(report: Report, where: str | Path, order: Sequence[Callable[[Report], str]] = sections.ORDER) -> Path:
    """Write ``where`` (a name ending in .html, or a folder for ``report.html``) and the JSON; returns the page."""
    page = Path(where)
    if page.suffix.lower() not in (".html", ".htm"):
        page = page / "report.html"
    facts = json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
    private_files.make_folder(page.parent)
    private_files.write(page.with_suffix(".json"), facts.encode())
    private_files.write(page, render(report, order).encode())
    return page
