"""`sordina audit attribute` and `sordina audit classes`: what a run's model tells of people, and of its classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def attribute(
    run: Annotated[Path, typer.Argument(help="Folder of a `sordina train FILE` run that kept rows out.")],
    column: Annotated[str, typer.Option(help="The attribute to guess: a category of the schema.")],
    rows: Annotated[int, typer.Option(help="Members and non-members to look at, at most.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Does the model tell an attribute of those it was trained on? Guesses it for members and for others.

    Example: `sordina audit attribute runs/p --column smoker`
    """
    from sordina.auditing.attributes import infer_table_attribute

    found = infer_table_attribute(run, column, rows=rows, confidence=confidence, seed=seed)
    if as_json:
        say_json(found.to_dict())
        return
    say(found.verdict, alarm=found.leaks)


def classes(
    run: Annotated[Path, typer.Argument(help="Folder of a `sordina train` run on images.")],
    steps: Annotated[int, typer.Option(help="Steps to move each image.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the first images.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for classes.png; the run's own if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What does the model think its classes look like? Model inversion, as a picture.

    Example: `sordina audit classes runs/digits`
    """
    from sordina.auditing.reconstruction.model_inversion import invert_run

    found, picture = invert_run(run, out or run, steps=steps, seed=seed)
    if as_json:
        say_json(found.to_dict() | {"picture": str(picture)})
        return
    sure = ", ".join(f"{value:.0%}" for value in found.confidences)
    say(f"The model is sure of its own pictures to {sure}. See {picture}.")
