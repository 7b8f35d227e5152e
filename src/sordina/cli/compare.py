"""`sordina compare`: several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json, say_table


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two or more runs.", metavar="RUN...")],
    out: Annotated[Path | None, typer.Option(help="Also write a page with the charts laid over each other.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Put runs side by side.

    Example: `sordina compare runs/plain runs/private --out compare.html`
    """
    from sordina.reports import reading, rendering

    facts = reading.report(runs, title="Runs side by side")
    page = rendering.write(facts, out, rendering.COMPARISON_SECTIONS) if out else None
    rows = rendering.rows(facts.runs)
    if as_json:
        names = [run.name for run in facts.runs]
        table = {name: dict(zip(names, values, strict=True)) for name, *values in rows}
        say_json({"runs": names, "facts": table, "report": str(page) if page else None})
        return
    say_table(["", *(run.name for run in facts.runs)], rows)
    if page:
        say(f"Report: {page}")
