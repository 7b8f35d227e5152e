"""Write a report: the page, and its facts as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sordina import private_files
from sordina.reports import reading, sections
from sordina.reports.facts import Report
from sordina.reports.page import render


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    folder: str | Path | None = None,
    title: str | None = None,
    ledger: str | Path | None = None,
) -> Path:
    """Write one HTML page, and its facts as JSON beside it, from one or more runs; returns the page.

    Args:
        runs: Folders that training, federations, audits or a Flower app wrote.
        folder: A page's name or a folder; the first run's own if left out.
        title: Headline of the page.
        ledger: Ledger file or URL to show the budgets of.
    """
    folders = [runs] if isinstance(runs, (str, Path)) else list(runs)
    facts = reading.report(folders, title=title, ledger=ledger)
    return write(facts, folder or folders[0])


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
