"""`sordina demo` and `sordina reproduce`: what needs no data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordina.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from sordina.reproduction.experiment import Reproduction


def demo(
    out: Annotated[Path | None, typer.Option(help="New folder for everything the demo makes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller demo: fewer steps, weaker attacks.")] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and no progress.")] = False,
) -> None:
    """Train with and without privacy, federate, attack, keep a ledger, and write one report.

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


# `sordina reproduce`: tables and figures of the founding documents, ours beside theirs.


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure, as --list names it.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    scale: Annotated[str, typer.Option(help="smoke (a minute), short (an hour on two cores) or full.")] = "smoke",
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for Markdown, JSON and figures.")] = Path("runs/reproduce"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue what is in --out.")] = False,
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
    from sordina.reproduction.experiment import plain
    from sordina.reproduction.experiment import reproduce as run
    from sordina.tuning.parallel_runs import cores

    made = run(name, scale, out, workers=cores() if workers is None else workers, resume=resume, show=not as_json)
    if as_json:
        say_json(plain(made.facts()))
    else:
        _show(made, out)


def _list(as_json: bool) -> None:
    from sordina.reproduction import experiment

    known = [experiment.load(name) for name in experiment.names()]
    if as_json:
        say_json([{"name": one.name, "title": one.title, "source": one.source} for one in known])
        return
    say_table(("name", "what", "source"), [(one.name, one.title, one.source) for one in known])


def _show(made: Reproduction, out: Path) -> None:
    from sordina.reproduction.experiment import cells, columns

    names = columns(made.findings.values)
    rows = [cells(value, names) for value in made.findings.values]
    say_table((*names, "ours", "reference", "difference", "note"), rows, title=made.experiment.title)
    for remark in made.findings.remarks:
        say(f"- {remark}")
    say(f"Data: {made.findings.data}. Took {made.seconds:.0f} s.")
    say(f"Saved in {out / made.experiment.name / made.scale}.")
