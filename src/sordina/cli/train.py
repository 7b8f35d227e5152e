"""`sordina train`: a model on a table of your own or a named data set, under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import booked_on
from sordina.cli.output import number, say, say_json
from sordina.errors import InvalidInput
from sordina.progress import Progress, StagedProgress, silent, silent_stages

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger
    from sordina.estimators.table_run import TableRun


# `sordina train` and `sordina tune` on a table of the user's own: FILE --schema ...


def is_table(name: str) -> bool:
    """Whether ``name`` is a file rather than the name of a data set.

    Args:
        name: What `sordina train` was given.
    """
    endings = (".csv", ".csv.gz", ".parquet", ".pq", ".tsv", ".txt")
    return name.lower().endswith(endings) or Path(name).is_file()


def train_file(
    source: str,
    schema: Path | None,
    *,
    epsilon: float,
    delta: float,
    model: str | None,
    test: Path | None,
    test_share: float | None,
    out: Path | None,
    resume: bool,
    ledger: Ledger | None,
    dataset_budget: str | None,
    seed: int | None,
    encoding: str,
    separator: str,
    refused: dict[str, bool],
    as_json: bool,
) -> None:
    """Train on the file ``source`` and say what came out; ``refused`` names options that do not go with tables."""
    from sordina.estimators.table_run import train_table
    from sordina.privacy import Budget

    stated = _schema(source, schema, "train", refused)
    with _stages(shown=not as_json) as progress:
        run = train_table(
            source, stated, Budget(epsilon, delta), model=model or "auto", test=test, test_share=test_share, folder=out,
            resume=resume, ledger=ledger, dataset_budget=dataset_budget, seed=seed, encoding=encoding,
            separator=separator, progress=progress,
        )  # fmt: skip
    _say(run, out, as_json=as_json)


def tune_file(
    source: str,
    schema: Path | None,
    *,
    epsilons: list[float],
    delta: float,
    models: str | None,
    hold_out: float,
    test_share: float | None,
    out: Path,
    ledger: Ledger | None,
    dataset_budget: str | None,
    seed: int | None,
    encoding: str,
    separator: str,
    refused: dict[str, bool],
    as_json: bool,
) -> None:
    """Choose among kinds of model for the file ``source`` and say what came out."""
    from sordina.estimators.table_search import tune_table
    from sordina.privacy import Budget

    stated = _schema(source, schema, "tune", refused)
    if len(epsilons) != 1:
        raise InvalidInput("a search over models of a table has one --epsilon.")
    names = [] if models is None else [name.strip() for name in models.split(",") if name.strip()]
    with _stages(shown=not as_json) as progress:
        run = tune_table(
            source, stated, Budget(epsilons[0], delta), models=names, hold_out=hold_out, test_share=test_share,
            folder=out, ledger=ledger, dataset_budget=dataset_budget, seed=seed, encoding=encoding,
            separator=separator, progress=progress,
        )  # fmt: skip
    _say(run, out, as_json=as_json)


def _schema(source: str, schema: Path | None, command: str, refused: dict[str, bool]) -> Path:
    if schema is None:
        raise InvalidInput(
            f"a table needs a schema that says what is public: draft one with `sordina schema {source} --target COLUMN "
            "--out schema.toml`, complete it, and pass --schema schema.toml."
        )
    given = [name for name, is_given in refused.items() if is_given]
    if given:
        raise InvalidInput(f"{', '.join(given)} do not go with `sordina {command}` on a table.")
    return schema


def _say(run: TableRun, out: Path | None, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "model": run.name, "why": run.why, **run.scores, "epsilon": run.model.facts["epsilon"],
        "delta": run.model.facts["delta"], "unit": run.model.facts["unit"], "releasable": run.model.facts["releasable"],
    }  # fmt: skip
    if as_json:
        say_json(facts | {"statement": run.model.facts["statement"]})
        return
    for name, value in facts.items():
        say(f"{name:>20}  {number(name, value) if isinstance(value, float) else value}")
    say(run.model.facts["statement"])
    if out is not None:
        say(f"Saved in {out}. Next: sordina predict {out} NEW.csv --out answers.csv; sordina card {out}")


@contextmanager
def _stages(*, shown: bool) -> Iterator[StagedProgress]:
    """What is being done, on standard error, while it is."""
    if not shown:
        yield silent_stages
        return
    from rich.console import Console

    status = Console(stderr=True).status("")

    def tell(stage: str) -> Progress:
        status.update(stage)
        status.start()
        return silent

    try:
        yield tell
    finally:
        status.stop()


# `sordina train` on texts of the user's own: FILE --model FOLDER


def are_texts(dataset: str, model: str | None, task: str | None, lora: int | None) -> bool:
    """Whether a model of `transformers` is wanted: it is named by a folder or a package, not by a kind of estimator.

    Args:
        dataset: The file.
        model: What ``--model`` says.
        task: What ``--task`` says.
        lora: What ``--lora`` says.
    """
    if model is None:
        if task is not None or lora is not None:
            raise InvalidInput("--task and --lora go with --model FOLDER, a model of transformers.")
        return False
    return task is not None or lora is not None or Path(model).is_dir() or dataset.lower().endswith(".txt")


def train_on_texts(
    source: str,
    schema: Path | None,
    model: str,
    *,
    task: str | None,
    test: Path | None,
    out: Path | None,
    resume: bool,
    ledger: Ledger | None,
    dataset_budget: str | None,
    refused: dict[str, bool],
    as_json: bool,
    **wanted: Any,
) -> None:
    """Fine-tune ``model`` on the texts of ``source`` and say what came out."""
    from sordina.integrations.text_run import CAUSAL, CLASSIFICATION, TextRecipe, train_texts

    if given := [name for name, is_given in refused.items() if is_given]:
        raise InvalidInput(f"{', '.join(given)} do not go with `sordina train` on texts.")
    if out is None:
        raise InvalidInput("a language model goes into a folder: say --out FOLDER.")
    recipe = TextRecipe(
        source, model, None if schema is None else str(schema), task or (CAUSAL if schema is None else CLASSIFICATION),
        test=None if test is None else str(test), **wanted,
    )  # fmt: skip
    with _stages(shown=not as_json) as progress:
        done = train_texts(
            recipe, out, resume=resume, ledger=ledger, dataset_budget=dataset_budget, progress=progress
        )  # fmt: skip
    claim = done.run.privacy()
    facts = {"model": model, "task": recipe.task, **done.scores}
    facts |= {name: claim[name] for name in ("epsilon", "delta", "unit", "noise_multiplier", "steps", "releasable")}
    if as_json:
        say_json(facts | {"statement": claim["statement"]})
        return
    for name, value in facts.items():
        say(f"{name:>20}  {number(name, value) if isinstance(value, float) else value}")
    say(claim["statement"])
    say(f"Saved in {out}, for transformers and peft. Next: sordina predict {out} NEW; sordina card {out}")


# `sordina train`: a model on a table of your own or a named data set, under a budget.


def train(
    dataset: Annotated[
        str, typer.Argument(help="A CSV, Parquet or text file, or digits, adult, mnist, fashion-mnist, ag-news.")
    ],
    schema: Annotated[Path | None, typer.Option(help="For a file: what is public about it (sordina schema).")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="For a table: auto, logistic, network, linear, svm, forest or boosted. For texts: the folder (or the "
            "installed package) of a model of transformers. For a data set: a model by name."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="For texts: classification or causal-lm. For fashion-mnist: classes.")
    ] = None,
    lora: Annotated[int | None, typer.Option(help="For texts: train LoRA adapters of this rank only.")] = None,
    max_tokens: Annotated[int, typer.Option(help="For texts: longer ones are cut here.")] = 128,
    test: Annotated[Path | None, typer.Option(help="For a file: another one to score the model on.")] = None,
    test_share: Annotated[
        float | None, typer.Option(help="For a file: part of the rows (persons) kept for scoring.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="For a file: how a CSV file is written.")] = "utf-8",
    separator: Annotated[str, typer.Option(help="For a file: between the fields of a CSV file.")] = ",",
    activation: Annotated[str | None, typer.Option(help="relu or tanh, for models that have the choice.")] = None,
    epsilon: Annotated[float, typer.Option(help="Budget epsilon; inf trains without privacy.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Budget delta.")] = 1e-5,
    clipping: Annotated[
        str | None,
        typer.Option(
            help="typical-norm (the default), online, fixed (the default on scattering features), quantile, automatic, "
            "trailing or sector."
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Clipping threshold, or the first one.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Expected batch size; left out, chosen from public facts (texts: 512).")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data; left out, chosen from public facts (texts: 10).")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="For a data set: sgd, momentum, adam, adam-bc or adam-wosm.")
    ] = None,
    averaging: Annotated[
        str | None, typer.Option(help="For a data set: tail or ema (averages of the weights are kept), or none.")
    ] = None,
    views: Annotated[int, typer.Option(help="For images by name: so many shifted views of each in a step.")] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate; from public facts if left out.")] = None,
    sampling: Annotated[str | None, typer.Option(help="poisson (add-remove) or fixed-size (replace-one).")] = None,
    microbatch: Annotated[int | None, typer.Option(help="Rows held in memory at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeatable noise; such a model must not be released.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Train on this many rows, drawn at random; the others are left for an audit.")
    ] = None,
    random_labels: Annotated[
        float, typer.Option(help="Share of rows under a random label: canaries that an audit can look for.")
    ] = 0.0,
    features: Annotated[str | None, typer.Option(help="For mnist, fashion-mnist: scattering (fixed wavelets).")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what the budget can buy, and spend nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for model, metrics and guarantee.")] = None,
    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None,
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model on a data set, or on a table of your own, under a privacy budget.

    For a table: `sordina train patients.csv --schema patients.toml --epsilon 2 --test-share 0.2 --out runs/patients`

    For texts: `sordina train notes.csv --schema notes.toml --model models/minilm --lora 8 --epochs 3 --out runs/notes`

    Example: `sordina train digits --epsilon 3 --delta 1e-5 --epochs 20 --batch-size 128 --out runs/digits`
    """
    only_named = {"--optimizer": optimizer is not None, "--averaging": averaging is not None, "--views": views != 1}
    if is_table(dataset) and are_texts(dataset, model, task, lora) and model is not None:
        train_on_texts(
            dataset, schema, model, task=task, test=test, out=out, resume=resume,
            ledger=booked_on(ledger, dataset_budget), dataset_budget=dataset_budget, as_json=as_json, lora=lora,
            epsilon=epsilon, delta=delta, epochs=epochs or 10.0, batch_size=batch_size or 512, microbatch=microbatch,
            learning_rate=learning_rate, clipping=clipping or "typical-norm", threshold=threshold,
            max_tokens=max_tokens, test_share=test_share, seed=seed, encoding=encoding, separator=separator,
            refused={
                "--activation": activation is not None, "--sampling": sampling is not None, "--rows": rows is not None,
                "--random-labels": random_labels != 0, "--features": features is not None, "--plan": plan,
                **only_named,
            },
        )  # fmt: skip
        return
    if is_table(dataset):
        train_file(
            dataset, schema, epsilon=epsilon, delta=delta, model=model, test=test, test_share=test_share, out=out,
            resume=resume, ledger=booked_on(ledger, dataset_budget), dataset_budget=dataset_budget, seed=seed,
            encoding=encoding, separator=separator, as_json=as_json,
            refused={
                "--activation": activation is not None, "--threshold": threshold is not None,
                "--learning-rate": learning_rate is not None, "--clipping": clipping is not None,
                "--sampling": sampling is not None, "--rows": rows is not None,
                "--microbatch": microbatch is not None, "--random-labels": random_labels != 0,
                "--batch-size": batch_size is not None, "--epochs": epochs is not None, "--task": task is not None,
                "--max-tokens": max_tokens != 128, "--features": features is not None, "--plan": plan, **only_named,
            },
        )  # fmt: skip
        return
    if lora is not None or max_tokens != 128 or (task is not None and dataset != "fashion-mnist"):
        raise InvalidInput("--task, --lora and --max-tokens go with a file of texts and --model FOLDER.")
    if schema is not None or test is not None or test_share is not None or (encoding, separator) != ("utf-8", ","):
        raise InvalidInput(
            "--schema, --test, --test-share, --encoding and --separator go with a file of your own, not with a named "
            "data set."
        )
    from sordina.training import recipe as recipes

    if model == recipes.SCATTERING:
        model, features = None, recipes.SCATTERING
    recipe = recipes.TrainingRecipe(
        dataset, model, activation, epsilon, delta, clipping, threshold,
        batch_size, epochs, learning_rate, sampling, microbatch, seed, rows, random_labels, task, features, optimizer,
        averaging, views,
    )  # fmt: skip
    if plan:
        data = recipe.load()
        report = recipe.trainer(data).plan_report(data.train)
        if as_json:
            say_json(report.to_dict())
        else:
            say(str(report))
        return
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
    if batch_size is None or epochs is None:
        sampler = run.plan.sampler
        say(f"Chosen from public facts: {run.plan.steps} steps of about {sampler.expected_batch_size:g} rows.")
    for name, value in facts.items():
        say(f"{name:>18}  {number(name, value) if isinstance(value, float) else value}")
    say(run.statement())
    if out is not None:
        say(f"Saved in {out}.")
