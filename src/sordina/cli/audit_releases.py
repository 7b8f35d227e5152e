"""`sordina audit releases`: attacks on what people release today, on the naive release and on ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordina.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from sordina.auditing.releases import ReleaseStudy

app = typer.Typer(
    help="Attack releases: linkage, differencing, reconstruction, membership in aggregates, averaging.",
    no_args_is_help=True,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the findings as JSON, and a figure; for `sordina report`.")]
Seed = Annotated[int | None, typer.Option(help="Makes the study repeatable.")]
Epsilon = Annotated[float, typer.Option(help="Epsilon of our release.")]
Delta = Annotated[float, typer.Option(help="Delta of our release.")]


@app.command()
def linkage(
    table: Annotated[Path | None, typer.Option(help="A CSV or Parquet file; by default UCI Adult.")] = None,
    columns: Annotated[
        str, typer.Option(help="Columns that the public list also has, comma-separated.")
    ] = "age,education,occupation,relationship,hours_per_week",
    secret: Annotated[str, typer.Option(help="The sensitive column.")] = "income",
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-6,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Join a table without names to a public list: how many rows match one name, there and in our release.

    Example: `sordina audit releases linkage --out runs/linkage`
    """
    from sordina.auditing.releases import linkage_study

    names = [name.strip() for name in columns.split(",") if name.strip()]
    data = None if table is None else _read(table, [*names, secret])
    _show(linkage_study(data, columns=names, secret=secret, epsilon=epsilon, delta=delta, seed=seed), out, as_json)


@app.command()
def differencing(
    people: Annotated[int, typer.Option(help="How many people were in it before.")] = 1000,
    targets: Annotated[int, typer.Option(help="How many people join, one at a time.")] = 500,
    epsilon: Epsilon = 1.0,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Subtract the mean before from the mean after one person joined.

    Example: `sordina audit releases differencing --people 1000`
    """
    from sordina.auditing.releases import differencing_study

    _show(differencing_study(people=people, targets=targets, epsilon=epsilon, seed=seed), out, as_json)


@app.command()
def reconstruction(
    people: Annotated[int, typer.Option(help="Each with a secret bit.")] = 1000,
    questions: Annotated[int, typer.Option(help="Random halves of the people.")] = 4000,
    method: Annotated[str, typer.Option(help="least-squares or linear-program.")] = "least-squares",
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-6,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Recover secret bits from the answers to many counting questions (Dinur and Nissim).

    Example: `sordina audit releases reconstruction --people 500 --questions 2000`
    """
    from sordina.auditing.releases import reconstruct_bits_study
    from sordina.cli.audit import bar

    with bar("attacks", shown=not as_json) as tick:
        study = reconstruct_bits_study(
            people=people, questions=questions, method=method, epsilon=epsilon, delta=delta, seed=seed, progress=tick
        )
    _show(study, out, as_json)


@app.command()
def aggregates(
    members: Annotated[int, typer.Option(help="Of the study.")] = 200,
    others: Annotated[int, typer.Option(help="People who were not in it.")] = 1000,
    attributes: Annotated[int, typer.Option(help="Whose means are published.")] = 5000,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-6,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tell who was in a study from its published means (Homer et al.).

    Example: `sordina audit releases aggregates --attributes 2000`
    """
    from sordina.auditing.releases import aggregates_study

    study = aggregates_study(
        members=members, others=others, attributes=attributes, epsilon=epsilon, delta=delta, seed=seed
    )
    _show(study, out, as_json)


@app.command()
def averaging(
    asked: Annotated[int, typer.Option(help="How often the same question is asked.")] = 10_000,
    epsilon: Annotated[float, typer.Option(help="Of each answer.")] = 0.1,
    budget: Annotated[float, typer.Option(help="The epsilon of the data set in the ledger.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The delta of the data set in the ledger.")] = 1e-6,
    seed: Seed = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Ask the same noisy question until the noise averages out; a ledger refuses.

    Example: `sordina audit releases averaging --asked 500`
    """
    from sordina.auditing.releases import averaging_study

    _show(averaging_study(asked=asked, epsilon=epsilon, budget=budget, delta=delta, seed=seed), out, as_json)


def _read(table: Path, names: list[str]) -> dict[str, list[str]]:
    from sordina.tables.readers import pieces

    found: dict[str, list[str]] = {name: [] for name in names}
    for piece in pieces(table, names):
        for name in names:
            found[name] += map(str, piece.columns[name].tolist())
    return found


def _show(study: ReleaseStudy, out: Path | None, as_json: bool) -> None:
    from sordina.auditing.releases import write_study

    folder = None if out is None else write_study(study, out)
    if as_json:
        say_json(study.to_dict())
        return
    say(f"{study.title}. {study.data}.")
    rows = [(line.measure, *map(_cell, (line.naive, line.ours, line.chance))) for line in study.lines]
    say_table(("measure", "naive release", "ours", "guessing"), rows, right=("naive release", "ours", "guessing"))
    say(f"Ours: {study.private}.")
    say(study.verdict)
    if folder is not None:
        say(f"Saved in {folder}.")


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
