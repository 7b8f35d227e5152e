"""`sordina report`: one self-contained page from any runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders that train, federate, audit or release wrote.", metavar="RUN...")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page or folder to write; the first run's folder if left out.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Headline of the page.")] = None,
    ledger: Annotated[str | None, typer.Option(help="Ledger file or URL to show the budgets of.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Write one HTML page, and its facts as JSON beside it, from one or more runs.

    Example: `sordina report runs/digits --open`
    """
    import json

    from sordina.reports.rendering import report as write_report

    page = write_report(runs, folder=out, title=title, ledger=ledger)
    if as_json:
        say_json({"report": str(page), **json.loads(page.with_suffix(".json").read_bytes())})
    else:
        say(f"Report: {page}")
    if open_it:
        typer.launch(page.resolve().as_uri())
