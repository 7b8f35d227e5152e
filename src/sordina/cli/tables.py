"""`sordina schema`, `sordina release`, `sordina predict`: what is public about a table, its numbers, new rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import booked_on
from sordina.cli.output import number, say, say_json, say_table
from sordina.errors import InvalidInput
from sordina.privacy import format_up

if TYPE_CHECKING:
    from sordina.statistics import Answer, Table, TableQuery


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
    delta: Annotated[float, typer.Option(help="With --epsilon: needed to find unlisted categories.")] = 1e-6,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of CSV files.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="Field separator of CSV files.")] = ",",
    out: Annotated[Path | None, typer.Option(help="Write the schema here; printed by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Draft what is public about a table, for you to complete; with --epsilon, find the missing parts privately.

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
    out: Annotated[Path | None, typer.Option(help="Write the predictions here, as CSV; printed by default.")] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of CSV files.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="Field separator of CSV files.")] = ",",
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


# `sordina release`: counts, means, quantiles and tables of a file's persons, under a budget.


def release(
    table: Annotated[Path, typer.Argument(help="A CSV (also gzip) or Parquet file.")],
    schema: Annotated[Path, typer.Option(help="What is public about it; see `sordina schema`.")],
    query: Annotated[list[str], typer.Option(help='A question, such as "mean(age) by ward"; may be repeated.')],
    epsilon: Annotated[float, typer.Option(help="Epsilon of all questions together.")],
    delta: Annotated[float, typer.Option(help="Delta of all questions together; 0 for pure privacy.")] = 1e-6,
    person: Annotated[
        str | None, typer.Option(help="The column that says whose row it is; by default the schema's.")
    ] = None,
    rows_per_person: Annotated[int | None, typer.Option(help="How many rows of one person count at most.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Approximate number of rows, if public; used to state errors.")
    ] = None,
    weight: Annotated[list[float] | None, typer.Option(help="How much each question's squared error counts.")] = None,
    equal_error: Annotated[bool, typer.Option(help="All questions get the same error, counted in rows.")] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of each interval.")] = 0.95,
    plan: Annotated[bool, typer.Option("--plan", help="Show errors and costs; read and spend nothing.")] = False,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes the noise repeatable, for tests; not to be published.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of CSV files.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="Field separator of CSV files.")] = ",",
    out: Annotated[Path | None, typer.Option(help="A new folder for the record of the release.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Answer questions about a table privately; with --plan, say how good and how costly the answers would be.

    Example: `sordina release patients.csv --schema patients.toml --query "mean(age) by ward" --epsilon 0.5 --plan`
    """
    from sordina.cli.audit import bar
    from sordina.privacy import Budget
    from sordina.statistics import Table
    from sordina.statistics.release import ask, check_folder, release_record, write_release

    asked = Table(
        table, schema=schema, budget=Budget(epsilon, delta), ledger=booked_on(ledger, dataset_budget),
        dataset_budget=dataset_budget, person=person, rows_per_person=rows_per_person, rows=rows, seed=seed,
        encoding=encoding, separator=separator,
    )  # fmt: skip
    questions = [ask(asked, text) for text in query]
    if plan:
        _say_plan(asked, questions, weight, equal_error, confidence, as_json)
        return
    if out is not None:
        check_folder(out)
    with bar("table and questions", shown=not as_json) as progress:
        answers = asked.release(
            *questions, weights=weight, equal_error=equal_error, confidence=confidence, progress=progress
        )
    record = release_record(asked, answers) if out is None else write_release(out, asked, answers)
    if as_json:
        say_json(record)
        return
    _say_answers(answers, record)
    if out is not None:
        say(f"Saved in {out}. Next: sordina report {out}")


def _say_plan(
    table: Table,
    questions: list[TableQuery],
    weights: list[float] | None,
    equal_error: bool,
    confidence: float,
    as_json: bool,
) -> None:
    choices = table.choices(questions, weights=weights, equal_error=equal_error)
    events = tuple(one.statistic.event(choice, table.terms) for one, choice in zip(questions, choices, strict=True))
    lines: list[dict[str, Any]] = []
    for one, choice, event in zip(questions, choices, events, strict=True):
        try:
            error: float | None = table.error(one, choice, confidence)
        except InvalidInput:
            error = None
        lines.append({
            "query": one.text, "error": error, "noise": str(choice.family),
            "noise_multiplier": choice.multiplier, "epsilon": table.guarantee((event,)).epsilon,
        })  # fmt: skip
    together = table.guarantee(events)
    if as_json:
        say_json({"plan": lines, "epsilon": together.epsilon, "delta": together.delta, "confidence": confidence})
        return
    cells = [
        (one["query"], "depends on --rows" if one["error"] is None else f"{one['error']:.4g}", one["noise"],
         format_up(one["epsilon"]))
        for one in lines
    ]  # fmt: skip
    say_table(("question", f"error, {100 * confidence:g} %", "noise", "epsilon alone"), cells, right=("epsilon alone",))
    say(f"Together: {together}. Nothing was read or spent.")


def _say_answers(answers: tuple[Answer, ...], record: dict[str, Any]) -> None:
    for answer in answers:
        cells = []
        for cell in answer.to_dict()["answers"]:
            group = cell["group"]
            name = ", ".join(map(str, group)) if isinstance(group, list) else "" if group is None else group
            pair = cell["interval"]
            shown = "" if pair is None else f"{number('', pair[0])} to {number('', pair[1])}"
            cells.append((name, number("", cell["value"]), shown))
        columns = ("group", "value", f"{100 * answer.confidence:g} % interval")
        say_table(columns, cells, title=answer.query, right=("value",))
        for note in answer.notes:
            say(f"  {note}")
    say(f"Together: {record['statement'].rstrip('.')}.")
    if not record["releasable"]:
        say("NOT TO BE PUBLISHED: the noise came from a seed.", alarm=True)
