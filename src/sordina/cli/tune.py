"""`sordina tune`: search for good settings under one budget for the whole search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordina.cli._options import booked_on
from sordina.cli.output import say, say_json, say_table
from sordina.cli.train import is_table, tune_file
from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.tuning.comparison import SearchComparison


def tune(
    dataset: Annotated[
        str, typer.Argument(help="A CSV or Parquet file, or digits, adult, mnist, fashion-mnist or ag-news.")
    ],
    schema: Annotated[Path | None, typer.Option(help="For a file: what is public about it (sordina schema).")] = None,
    strategy: Annotated[
        list[str],
        typer.Option(
            help="online, fixed-threshold, fixed-quantile, adam-wosm, online-as-in-thesis, automatic; repeat."
        ),
    ] = ["online"],  # noqa: B006 - Typer's way to say a default list
    epsilon: Annotated[list[float], typer.Option(help="Budget of each whole search; repeat to compare.")] = [3.0],  # noqa: B006
    delta: Annotated[float, typer.Option(help="Budget delta.")] = 1e-5,
    granularity: Annotated[int, typer.Option(help="Values per range of the grid, k of the thesis.")] = 5,
    runs: Annotated[int | None, typer.Option(help="Random search with this many runs instead of the grid.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per configuration; each is paid for.")] = 1,
    selection: Annotated[str, typer.Option(help="private, public or thesis-test-set.")] = "private",
    method: Annotated[str | None, typer.Option(help="composition or random-stopping; the cheaper one.")] = None,
    hold_out: Annotated[float, typer.Option(help="Share of training rows that private selection validates on.")] = 0.1,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model by name; the data set's own if left out. For a file: kinds to choose among: logistic,boosted."
        ),
    ] = None,
    test_share: Annotated[
        float | None, typer.Option(help="For a file: part of the rows (persons) kept for scoring.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="For a file: how a CSV file is written.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="For a file: between the fields of a CSV file.")] = ",",
    batch_size: Annotated[int, typer.Option(help="Expected batch size.")] = 512,
    epochs: Annotated[float, typer.Option(help="Passes over the data, on average.")] = 10.0,
    rows: Annotated[int | None, typer.Option(help="Train on this many first rows only, to try things out.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations, where they are exact.")] = None,
    patience: Annotated[int | None, typer.Option(help="End runs after so many validations without gain.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable noise; the model must not be released.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; as many as there are cores if left out.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for models, results and the plot.")] = Path("runs/tune"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the searches in --out.")] = False,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Search for good settings; epsilon is spent by the whole search, the choice of the best included.

    For a table, among kinds of model: `sordina tune patients.csv --schema patients.toml --model logistic,boosted`

    Example: `sordina tune digits --strategy online --granularity 5 --epsilon 3 --batch-size 128 --out runs/tune`
    """
    if is_table(dataset):
        tune_file(
            dataset, schema, epsilons=epsilon, delta=delta, models=model, hold_out=hold_out, test_share=test_share,
            out=out, ledger=booked_on(ledger, dataset_budget), dataset_budget=dataset_budget, seed=seed,
            encoding=encoding, separator=separator, as_json=as_json,
            refused={
                "--strategy": strategy != ["online"], "--granularity": granularity != 5, "--runs": runs is not None,
                "--seeds": seeds != 1, "--selection": selection != "private", "--method": method is not None,
                "--batch-size": batch_size != 512, "--epochs": epochs != 10, "--rows": rows is not None,
                "--validate-every": validate_every is not None, "--patience": patience is not None,
                "--workers": workers is not None, "--resume": resume,
            },
        )  # fmt: skip
        return
    if schema is not None or test_share is not None or (encoding, separator) != ("utf-8", ","):
        raise InvalidInput("--schema, --test-share, --encoding and --separator go with a file of your own.")
    from sordina.tuning.comparison import ComparisonPlan, NamedTask, compare, live_table
    from sordina.tuning.parallel_runs import cores
    from sordina.tuning.selection import Selection

    chosen = Selection(selection)
    task = NamedTask(
        dataset, model, batch_size, epochs, 0.0 if chosen.exact else hold_out, 0 if seed is None else seed, rows
    )
    plan = ComparisonPlan(
        task, strategy or ["online"], epsilon or [3.0], delta, granularity, runs, selection=chosen, method=method,
        seeds=seeds, seed=seed, validate_every=validate_every, patience=patience,
        workers=cores() if workers is None else workers,
    )  # fmt: skip
    found = compare(
        plan, out, resume=resume, ledger=booked_on(ledger, dataset_budget),
        dataset_budget=dataset_budget, watch=None if as_json else live_table,
    )  # fmt: skip
    if as_json:
        say_json(found.facts())
    else:
        _show(found, out)


def _show(found: SearchComparison, out: Path) -> None:
    from sordina.privacy import format_up

    rows = []
    for entry in found.entries:
        outcome = entry.outcome
        values = " ".join(f"{name}={value:.4g}" for name, value in outcome.configuration.items()) or "nothing to tune"
        utility = f"{entry.metric} {entry.utility:.4f}" + (f" ({outcome.spread:.4f})" if outcome.spread else "")
        rows.append((
            entry.strategy, format_up(outcome.guarantee.epsilon), values, utility,
            f"{outcome.scheme.noise_multiplier:.4g}", outcome.scheme.method, str(outcome.candidates),
        ))  # fmt: skip
    columns = ("strategy", "epsilon", "configuration", "utility", "noise", "method", "runs")
    say_table(columns, rows, title=found.selection.label)
    for entry in found.entries:
        say(f"{entry.strategy}: {entry.outcome.scheme.reason}")
        say(f"{entry.strategy}: {entry.outcome.statement()}")
    if len(found.entries) > 1 and found.together is not None:
        say(f"All searches together cost epsilon {format_up(found.together)}.")
    say(f"Saved in {out}.")
