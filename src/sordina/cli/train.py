"""`sordina train`: a model on a table of your own or a named data set, under a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordina.cli.booking import booked_on
from sordina.cli.output import number, say, say_json
from sordina.cli.train_table import is_table, train_file
from sordina.errors import InvalidInput


def train(
    dataset: Annotated[
        str, typer.Argument(help="A CSV or Parquet file, or digits, adult, mnist, fashion-mnist, ag-news.")
    ],
    schema: Annotated[Path | None, typer.Option(help="For a file: what is public about it (sordina schema).")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="For a file: auto, logistic, network, linear, svm, forest or boosted. For a data set: a model by name."
        ),
    ] = None,
    test: Annotated[Path | None, typer.Option(help="For a file: another one to score the model on.")] = None,
    test_share: Annotated[
        float | None, typer.Option(help="For a file: part of the rows (persons) kept for scoring.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="For a file: how a CSV file is written.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="For a file: between the fields of a CSV file.")] = ",",
    activation: Annotated[str | None, typer.Option(help="relu or tanh, for models that have the choice.")] = None,
    epsilon: Annotated[float, typer.Option(help="Budget epsilon; inf trains without privacy.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Budget delta.")] = 1e-5,
    clipping: Annotated[str, typer.Option(help="online, fixed, quantile, automatic, trailing or sector.")] = "online",
    threshold: Annotated[float | None, typer.Option(help="Clipping threshold, or the first one.")] = None,
    batch_size: Annotated[int, typer.Option(help="Expected batch size.")] = 512,
    epochs: Annotated[float, typer.Option(help="Passes over the data, on average.")] = 10.0,
    lr: Annotated[float | None, typer.Option(help="Learning rate; from public facts if left out.")] = None,
    sampling: Annotated[str | None, typer.Option(help="poisson (add-remove) or fixed-size (replace-one).")] = None,
    microbatch: Annotated[int | None, typer.Option(help="Rows held in memory at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable noise; such a model must not be released.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Train on so many rows, drawn at random; the others are left for an audit.")
    ] = None,
    random_labels: Annotated[
        float, typer.Option(help="Share of rows under a random label: canaries that an audit can look for.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for model, metrics and guarantee.")] = None,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model on a data set, or on a table of your own, under a privacy budget.

    For a table: `sordina train patients.csv --schema patients.toml --epsilon 2 --test-share 0.2 --out runs/patients`

    Example: `sordina train digits --epsilon 3 --delta 1e-5 --epochs 20 --batch-size 128 --out runs/digits`
    """
    if is_table(dataset):
        train_file(
            dataset, schema, epsilon=epsilon, delta=delta, model=model, test=test, test_share=test_share, out=out,
            resume=resume, ledger=booked_on(ledger, dataset_budget), dataset_budget=dataset_budget, seed=seed,
            encoding=encoding, separator=separator, as_json=as_json,
            refused={
                "--activation": activation is not None, "--threshold": threshold is not None, "--lr": lr is not None,
                "--clipping": clipping != "online", "--sampling": sampling is not None, "--rows": rows is not None,
                "--microbatch": microbatch is not None, "--random-labels": random_labels != 0,
                "--batch-size": batch_size != 512, "--epochs": epochs != 10,
            },
        )  # fmt: skip
        return
    if schema is not None or test is not None or test_share is not None or (encoding, separator) != ("utf-8", ","):
        raise InvalidInput(
            "--schema, --test, --test-share, --encoding and --separator go with a file of your own, not with a named "
            "data set."
        )
    from sordina.training import recipe as recipes

    recipe = recipes.Recipe(
        dataset, model, activation, epsilon, delta, clipping, threshold,
        batch_size, epochs, lr, sampling, microbatch, seed, rows, random_labels,
    )  # fmt: skip
    run = recipes.train(
        recipe,
        out,
        resume=resume,
        ledger=booked_on(ledger, dataset_budget),
        dataset_budget=dataset_budget,
        progress=not as_json,
    )
    facts = recipes.summary(run)
    if as_json:
        say_json(facts)
        return
    for name, value in facts.items():
        say(f"{name:>18}  {number(name, value) if isinstance(value, float) else value}")
    say(run.statement())
    if out is not None:
        say(f"Saved in {out}.")
