"""`sordina demo`: everything in a few minutes, on data that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json


def demo(
    out: Annotated[Path | None, typer.Option(help="New folder for everything the demo makes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller demo: fewer steps, weaker attacks.")] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and no progress.")] = False,
) -> None:
    """Train with and without privacy, federate, attack, keep the books, and write one report.

    Example: `sordina demo --out demo --open`
    """
    from rich.console import Console

    from sordina.cli import _demo

    console = Console(stderr=True, quiet=as_json)
    outcome = _demo.run(out or _demo.fresh_folder(), size=_demo.QUICK if quick else _demo.FULL, console=console)
    if as_json:
        say_json(outcome.to_dict())
    else:
        say(f"Report: {outcome.page}")
    if open_it:
        typer.launch(outcome.page.resolve().as_uri())
