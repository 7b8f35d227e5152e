"""`sordina predict`: answers of a model that was trained on a table, for new rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.output import say, say_json


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
