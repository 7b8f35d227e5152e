"""`sordina reproduce`: tables and figures of the founding documents, ours beside theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sordina.reproduction.reproduce import Reproduction


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure, as --list names it.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    scale: Annotated[str, typer.Option(help="smoke (a minute), short (an hour on two cores) or full.")] = "smoke",
    workers: Annotated[int | None, typer.Option(help="Processes; as many as there are cores if left out.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for Markdown, JSON and figures.")] = Path("runs/reproduce"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run an experiment of the founding documents and print our value beside the reference.

    Example: `sordina reproduce table-3.8 --scale smoke`
    """
    from sordina.errors import InvalidInput
    from sordina.reproduction import experiment

    if list_all:
        _list(as_json)
        return
    if name is None:
        raise InvalidInput("say what to reproduce, or --list.")
    experiment.load(name)
    from sordina.reproduction.reproduce import reproduce as run
    from sordina.reproduction.write import plain
    from sordina.tuning.workers import cores

    made = run(name, scale, out, workers=workers or cores(), resume=resume, show=not as_json)
    if as_json:
        typer.echo(json.dumps(plain(made.facts())))
    else:
        _show(made, out)


def _list(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordina.reproduction import experiment

    known = [experiment.load(name) for name in experiment.names()]
    if as_json:
        typer.echo(json.dumps([{"name": one.name, "title": one.title, "source": one.source} for one in known]))
        return
    table = Table("name", "what", "source")
    for one in known:
        table.add_row(one.name, one.title, one.source)
    Console().print(table)


def _show(made: Reproduction, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordina.reproduction.write import cells, columns

    names = columns(made.findings.values)
    table = Table(*names, "ours", "reference", "difference", "note", title=made.experiment.title, title_justify="left")
    for value in made.findings.values:
        table.add_row(*cells(value, names))
    Console().print(table)
    for remark in made.findings.remarks:
        typer.echo(f"- {remark}")
    typer.echo(f"Data: {made.findings.data}. Took {made.seconds:.0f} s.")
    typer.echo(f"Saved in {out / made.experiment.name / made.scale}.")
