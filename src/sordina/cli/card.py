"""`sordina card`: what a run guarantees, as a page for whoever gets the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json


def card(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Write the card here, as Markdown; printed if left out.")] = None,
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
