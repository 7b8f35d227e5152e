"""`sordina schema`: what is public about a table, drafted, and completed privately."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.booking import booked_on
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
