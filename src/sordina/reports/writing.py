"""Write a report: the page, and its facts as JSON beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from sordina.errors import InvalidInput
from sordina.reports import sections
from sordina.reports.facts import Report
from sordina.reports.page import render


def write(report: Report, where: str | Path, order: Sequence[Callable[[Report], str]] = sections.ORDER) -> Path:
    """Write ``where`` (a name ending in .html, or a folder for ``report.html``) and the JSON; returns the page."""
    page = Path(where)
    if page.suffix.lower() not in (".html", ".htm"):
        page = page / "report.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        _atomically(page.with_suffix(".json"), json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")
        _atomically(page, render(report, order))
    except OSError as error:
        raise InvalidInput(f"cannot write the report to {page}: {error.strerror}. Choose another --out.") from error
    return page


def _atomically(path: Path, text: str) -> None:
    """Old or new, never half: an interrupt must not leave a torn report."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
