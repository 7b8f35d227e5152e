"""`sordina schema` and `sordina predict`: what is public about a table, and a model's answers for new rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from sordina.cli._options import booked_on
from sordina.cli.output import say, say_json


def schema(
    table: Annotated[Path, typer.Argument(help="A CSV (also gzip) or Parquet file.")],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    person: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    rows_per_person: Annotated[int | None, typer.Option(help="How many rows of one person count at most.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A protected attribute; may be repeated.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Complete this schema instead of drafting one from the header.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Find open ranges and categories privately, at this cost.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon: needed for categories nobody listed.")] = 1e-6,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    encoding: Annotated[str, typer.Option(help="How a CSV file is written.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="Between the fields of a CSV file.")] = ",",
    out: Annotated[Path | None, typer.Option(help="Write the schema here; printed if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Draft what is public about a table, for you to complete; with --epsilon, find what is open privately.

    Example: `sordina schema patients.csv --target outcome --person patient_id --out patients.toml`
    """
    from sordina import private_files
    from sordina.privacy import Budget, delta_limit
    from sordina.tables import Schema, complete_privately, draft_schema
    from sordina.tables.discover import advice

    found = (
        Schema.load(schema)
        if schema is not None
        else draft_schema(
            table,
            target=target,
            person=person,
            groups=group or (),
            rows_per_person=rows_per_person,
            encoding=encoding,
            separator=separator,
        )
    )
    guarantee = None
    if epsilon is not None:
        found, guarantee = complete_privately(
            found, table, budget=Budget(epsilon, delta), ledger=booked_on(ledger, dataset_budget),
            dataset_budget=dataset_budget, encoding=encoding, separator=separator,
        )  # fmt: skip
    if out is not None:
        private_files.write(out, found.to_toml().encode())
    if as_json:
        claim = None if guarantee is None else str(guarantee)
        limit = None if guarantee is None else delta_limit(guarantee.delta, str(guarantee.unit))
        say_json({"schema": found.to_dict(), "open": found.unfilled, "guarantee": claim, "delta": limit})
        return
    for text in [f"Written to {out}."] if out is not None else found.to_toml().splitlines():
        say(text)
    for line in advice(found, guarantee, drafted=schema is None):
        say(line)


# `sordina predict`: answers of a model that was trained on a table, for new rows.


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a run on a table or on texts, or a table's model file.")],
    table: Annotated[Path, typer.Argument(help="A CSV (also gzip) or Parquet file with the columns of the schema.")],
    out: Annotated[Path | None, typer.Option(help="Write the answers here, as CSV; printed if left out.")] = None,
    encoding: Annotated[str, typer.Option(help="How a CSV file is written.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="Between the fields of a CSV file.")] = ",",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Probabilities, classes or numbers for new rows, with the person column carried over.

    Example: `sordina predict runs/patients new.csv --out answers.csv`
    """
    from sordina import private_files
    from sordina.integrations.text_run import is_text_model, predict_texts

    if is_text_model(run):
        answers = predict_texts(run, table, encoding=encoding, separator=separator)
    else:
        from sordina.estimators.table_model import load

        answers = load(run).predict(table, encoding=encoding, separator=separator)
    rows = list(zip(*(column.tolist() for column in answers.values()), strict=True))
    if as_json and out is None:
        say_json({"columns": list(answers), "rows": [list(row) for row in rows]})
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answers)
    writer.writerows(rows)
    if out is None:
        for line in text.getvalue().splitlines():
            say(line)
        return
    private_files.write(out, text.getvalue().encode())
    if as_json:
        say_json({"rows": len(rows), "out": str(out)})
    else:
        say(f"{len(rows)} answers written to {out}.")
