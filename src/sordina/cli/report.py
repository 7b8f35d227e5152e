"""`sordina report`, `sordina compare` and `sordina card`: runs as a page, side by side, and as a privacy card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json, say_table


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders written by train, federate, audit or release.", metavar="RUN...")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page or folder to write; by default the first run's folder.")
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


# `sordina compare`: several runs side by side.


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two or more runs.", metavar="RUN...")],
    out: Annotated[Path | None, typer.Option(help="Also write a page with all runs in the same charts.")] = None,
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


# `sordina card`: what a run guarantees, as a page for whoever gets the model.


def card(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Write the card here, as Markdown; printed by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """The privacy card of a run: who is protected, against what, how it was accounted, what is not covered.

    Example: `sordina card runs/patients --out CARD.md`
    """
    from sordina import private_files
    from sordina.reports.card import as_markdown, privacy_card

    facts = privacy_card(run)
    if out is not None:
        private_files.write(out, as_markdown(facts).encode())
    if as_json:
        say_json(facts)
        return
    for line in [f"Written to {out}."] if out is not None else as_markdown(facts).splitlines():
        say(line)
