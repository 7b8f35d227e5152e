"""`sordina train`: a model on a table of your own or a named data set, under a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import booked_on, grouped, stated
from sordina.cli.output import counted_bar, number, say, say_json
from sordina.errors import InvalidInput
from sordina.progress import Progress, StagedProgress, silent, silent_stages

if TYPE_CHECKING:
    from sordina.estimators.table_run import TableRun


@dataclass(frozen=True)
class FileOptions:
    """For a file of your own."""

    schema: Annotated[Path | None, typer.Option(help="What is public about the file (see sordina schema).")] = None
    test_share: Annotated[float | None, typer.Option(help="Part of the rows (persons) kept for scoring.")] = None
    encoding: Annotated[str, typer.Option(help="Encoding of CSV files.")] = "utf-8"
    separator: Annotated[str, typer.Option(help="Field separator of CSV files.")] = ","


@dataclass(frozen=True)
class ScoredFileOptions(FileOptions):
    """For a file of your own."""

    test: Annotated[Path | None, typer.Option(help="Another file to score the model on.")] = None


@dataclass(frozen=True)
class TextOptions:
    """For texts."""

    task: Annotated[str | None, typer.Option(help="classification or causal-lm. For fashion-mnist: classes.")] = None
    lora: Annotated[int | None, typer.Option(help="Train LoRA adapters of this rank only.")] = None
    max_tokens: Annotated[int, typer.Option(help="Longer texts are truncated to this length.")] = 128


@dataclass(frozen=True)
class BookOptions:
    """The ledger."""

    ledger: Annotated[str | None, typer.Option(envvar="SORDINA_LEDGER", help="Ledger file or URL.")] = None
    dataset_budget: Annotated[str | None, typer.Option(help="The ledger's data set to book on.")] = None


@dataclass(frozen=True)
class TrainingOptions:
    """How to train."""

    model: Annotated[
        str | None,
        typer.Option(
            help="For a table: auto, logistic, network, linear, svm, forest or boosted. For texts: the folder (or the "
            "installed package) of a model of transformers. For a data set: a model by name."
        ),
    ] = None
    epsilon: Annotated[float, typer.Option(help="Budget epsilon; inf trains without privacy.")] = 3.0
    delta: Annotated[float, typer.Option(help="Budget delta.")] = 1e-5
    activation: Annotated[str | None, typer.Option(help="relu or tanh, for models that offer both.")] = None
    clipping: Annotated[
        str | None,
        typer.Option(
            help="typical-norm (the default), falling-norm (where pictures are given back), fixed (on scattering "
            "features), online, quantile, automatic, trailing or sector."
        ),
    ] = None
    threshold: Annotated[float | None, typer.Option(help="Clipping threshold, or the first one.")] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Expected batch size; by default chosen from public facts (texts: at most 512).")
    ] = None
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data; by default chosen from public facts (texts: 10).")
    ] = None
    optimizer: Annotated[
        str | None, typer.Option(help="For a data set: sgd, momentum, adam, adam-bc or adam-wosm.")
    ] = None
    averaging: Annotated[
        str | None, typer.Option(help="For a data set: tail or ema (averages of the weights are kept), or none.")
    ] = None
    views: Annotated[
        int | None,
        typer.Option(help="For image data sets by name: shifted views of each image in a step; by default one or two."),
    ] = None
    centred: Annotated[
        bool,
        typer.Option(
            "--centred", help="For small-cnn, group-norm-cnn: pixels from -1 to 1 (so by itself without a schedule)."
        ),
    ] = False
    noise: Annotated[
        str | None,
        typer.Option(help="For a data set: independent, or correlated over the steps: banded, toeplitz or lambda-cgd."),
    ] = None
    bands: Annotated[int | None, typer.Option(help="Of banded noise; by default chosen from public facts.")] = None
    decay: Annotated[float | None, typer.Option(help="The lambda of lambda-cgd; 0.9 by default.")] = None
    components_noise: Annotated[
        float | None,
        typer.Option(help="For pca-mlp: noise multiplier of its components; by default a tenth of the budget pays."),
    ] = None
    whitened: Annotated[
        bool | None,
        typer.Option(
            "--whitened/--no-whitened",
            help="For scattering features: shorten what all images share, found within the budget (so by itself).",
        ),
    ] = None
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate; by default chosen from public facts.")] = (
        None
    )
    sampling: Annotated[str | None, typer.Option(help="poisson (add-remove) or fixed-size (replace-one).")] = None
    microbatch: Annotated[int | None, typer.Option(help="Rows held in memory at once.")] = None
    seed: Annotated[int | None, typer.Option(help="Makes the noise repeatable; such a model must not be released.")] = (
        None
    )
    rows: Annotated[
        int | None,
        typer.Option(
            help="Train on this many rows, drawn at random; the others are left for an audit. With --plan, of a file: "
            "about how many rows (persons) it has."
        ),
    ] = None
    random_labels: Annotated[
        float, typer.Option(help="Share of rows with a random label: canaries for an audit to find.")
    ] = 0.0
    features: Annotated[str | None, typer.Option(help="For mnist, fashion-mnist: scattering (fixed wavelets).")] = None


@dataclass(frozen=True)
class RunOptions:
    """The run."""

    plan: Annotated[bool, typer.Option("--plan", help="Show what the budget allows, and spend nothing.")] = False
    out: Annotated[Path | None, typer.Option(help="Folder for model, metrics and guarantee.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


# `sordina train` and `sordina tune` on a table of the user's own: FILE --schema ...


def is_table(name: str) -> bool:
    """Whether ``name`` is a file rather than the name of a data set.

    Args:
        name: What `sordina train` was given.
    """
    endings = (".csv", ".csv.gz", ".parquet", ".pq", ".tsv", ".txt")
    return name.lower().endswith(endings) or Path(name).is_file()


def _train_file(
    source: str,
    training: TrainingOptions,
    file: ScoredFileOptions,
    texts: TextOptions,
    book: BookOptions,
    run: RunOptions,
) -> None:
    """Train on the file ``source`` and say what came out."""
    from sordina.estimators.table_run import plan_table, train_table
    from sordina.privacy import Budget

    refused = stated(
        training, "activation", "threshold", "learning_rate", "clipping", "sampling", "microbatch",
        "random_labels", "batch_size", "epochs", "features", "optimizer", "averaging", "views", "centred", "noise",
        "bands", "decay", "components_noise", "whitened",
    )  # fmt: skip
    refused += stated(texts) + ([] if run.plan else stated(training, "rows"))
    schema = stated_schema(source, file.schema, "train", refused)
    budget = Budget(training.epsilon, training.delta)
    if run.plan:
        told = plan_table(
            schema, budget, model=training.model or "auto", units=training.rows, test_share=file.test_share
        )
        say_json(told.to_dict()) if run.as_json else say(told)
        return
    with stages(shown=not run.as_json) as progress:
        trained = train_table(
            source, schema, budget, model=training.model or "auto", test=file.test,
            test_share=file.test_share, folder=run.out, resume=run.resume,
            ledger=booked_on(book.ledger, book.dataset_budget), dataset_budget=book.dataset_budget, seed=training.seed,
            encoding=file.encoding, separator=file.separator, progress=progress,
        )  # fmt: skip
    say_table_run(trained, run.out, as_json=run.as_json)


def stated_schema(source: str, schema: Path | None, command: str, refused: Sequence[str]) -> Path:
    """The schema that a table needs.

    Args:
        source: The table's file.
        schema: What ``--schema`` says.
        command: Which command was given it.
        refused: Options that were given and do not go with a table.
    """
    if schema is None:
        raise InvalidInput(
            f"a table needs a schema that says what is public: draft one with `sordina schema {source} --target COLUMN "
            "--out schema.toml`, complete it, and pass --schema schema.toml."
        )
    if refused:
        raise InvalidInput(f"{not_with(refused)} `sordina {command}` on a table.")
    return schema


def not_with(refused: Sequence[str]) -> str:
    """The beginning of a refusal: these options do not go with ...

    Args:
        refused: What was given.

    >>> not_with(["--plan"])
    '--plan does not go with'
    """
    return f"{', '.join(refused)} {'does' if len(refused) == 1 else 'do'} not go with"


def say_table_run(run: TableRun, out: Path | None, *, as_json: bool) -> None:
    """Say what a run on a table came to.

    Args:
        run: What was trained.
        out: The folder it is in.
        as_json: Whether to print JSON and nothing else.
    """
    told = run.model.facts
    facts: dict[str, Any] = {
        "model": run.name, "why": run.why, **run.scores, "epsilon": told["epsilon"], "delta": told["delta"],
        "unit": told["unit"], "releasable": told["releasable"] and told["epsilon"] is not None,
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
def stages(*, shown: bool) -> Iterator[StagedProgress]:
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


def _train_texts(
    source: str,
    training: TrainingOptions,
    file: ScoredFileOptions,
    texts: TextOptions,
    book: BookOptions,
    run: RunOptions,
) -> None:
    """Fine-tune a model on the texts of ``source`` and say what came out."""
    from sordina.integrations.text_run import CAUSAL, CLASSIFICATION, TextRecipe, train_texts

    model = str(training.model)
    ledger = booked_on(book.ledger, book.dataset_budget)
    refused = stated(
        training, "activation", "sampling", "rows", "random_labels", "features", "optimizer", "averaging", "views",
        "centred", "noise", "bands", "decay", "components_noise", "whitened",
    )  # fmt: skip
    if refused := refused + stated(run, "plan"):
        raise InvalidInput(f"{not_with(refused)} `sordina train` on texts.")
    if run.out is None:
        raise InvalidInput("a language model goes into a folder: say --out FOLDER.")
    recipe = TextRecipe(
        source, model, None if file.schema is None else str(file.schema),
        texts.task or (CAUSAL if file.schema is None else CLASSIFICATION),
        test=None if file.test is None else str(file.test), lora=texts.lora, epsilon=training.epsilon,
        delta=training.delta, epochs=training.epochs or 10.0, batch_size=training.batch_size,
        microbatch=training.microbatch, learning_rate=training.learning_rate,
        clipping=training.clipping or "typical-norm", threshold=training.threshold,
        max_tokens=texts.max_tokens, test_share=file.test_share, seed=training.seed,
        encoding=file.encoding, separator=file.separator,
    )  # fmt: skip
    with stages(shown=not run.as_json) as progress:
        done = train_texts(
            recipe, run.out, resume=run.resume, ledger=ledger, dataset_budget=book.dataset_budget, progress=progress
        )
    claim = done.run.privacy()
    facts = {"model": model, "task": recipe.task, **done.scores}
    facts |= {name: claim[name] for name in ("epsilon", "delta", "unit", "noise_multiplier", "steps")}
    facts["releasable"] = claim["releasable"] and claim["epsilon"] is not None
    if run.as_json:
        say_json(facts | {"statement": claim["statement"]})
        return
    for name, value in facts.items():
        say(f"{name:>20}  {number(name, value) if isinstance(value, float) else value}")
    say(claim["statement"])
    say(f"Saved in {run.out}, for transformers and peft. Next: sordina predict {run.out} NEW; sordina card {run.out}")


# `sordina train` on a named data set.


def _train_named(
    dataset: str,
    training: TrainingOptions,
    file: ScoredFileOptions,
    texts: TextOptions,
    book: BookOptions,
    run: RunOptions,
) -> None:
    """Train on the data set called ``dataset``, or only plan it, and say what came out."""
    if stated(texts, "lora", "max_tokens") or (texts.task is not None and dataset != "fashion-mnist"):
        raise InvalidInput("--task, --lora and --max-tokens go with a file of texts and --model FOLDER.")
    if stated(file):
        raise InvalidInput(
            "--schema, --test, --test-share, --encoding and --separator go with a file of your own, not with a named "
            "data set."
        )
    from sordina.training import recipe as recipes

    model, features = training.model, training.features
    if model == recipes.SCATTERING:
        model, features = None, recipes.SCATTERING
    recipe = recipes.TrainingRecipe(
        dataset, model, training.activation, training.epsilon, training.delta, training.clipping, training.threshold,
        training.batch_size, training.epochs, training.learning_rate, training.sampling, training.microbatch,
        training.seed, training.rows, training.random_labels, texts.task, features, training.optimizer,
        training.averaging, training.views, training.noise, training.bands, training.decay,
        training.centred, training.components_noise, training.whitened,
    )  # fmt: skip
    if run.plan:
        data = recipe.outline()
        report = recipe.trainer(data).plan_report(data.train)
        if run.as_json:
            say_json(report.to_dict())
        else:
            say(str(report))
        return
    with counted_bar("features", shown=not run.as_json) as loading:
        done = recipes.train(
            recipe, run.out, resume=run.resume, ledger=booked_on(book.ledger, book.dataset_budget),
            dataset_budget=book.dataset_budget, progress=not run.as_json, loading=loading,
        )  # fmt: skip
    facts = recipes.summary(done)
    if run.as_json:
        say_json(facts)
        return
    if training.batch_size is None or training.epochs is None:
        sampler = done.plan.sampler
        say(f"Chosen from public facts: {done.plan.steps} steps of about {sampler.expected_batch_size:g} rows.")
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"{name:>{width}}  {number(name, value) if isinstance(value, float) else value}")
    say(done.statement())
    if run.out is not None:
        say(f"Saved in {run.out}.")


# `sordina train`: a model on a table of your own or a named data set, under a budget.


@grouped
def train(
    dataset: Annotated[
        str, typer.Argument(help="A CSV, Parquet or text file, or digits, adult, mnist, fashion-mnist, ag-news.")
    ],
    training: TrainingOptions,
    file: ScoredFileOptions,
    texts: TextOptions,
    book: BookOptions,
    run: RunOptions,
) -> None:
    """Train a model on a data set, or on a table of your own, under a privacy budget.

    For a table: `sordina train patients.csv --schema patients.toml --epsilon 2 --test-share 0.2 --out runs/patients`

    For texts: `sordina train notes.csv --schema notes.toml --model models/minilm --lora 8 --epochs 3 --out runs/notes`

    Example: `sordina train digits --epsilon 3 --delta 1e-5 --epochs 20 --batch-size 128 --out runs/digits`
    """
    if not is_table(dataset):
        _train_named(dataset, training, file, texts, book, run)
    elif are_texts(dataset, training.model, texts.task, texts.lora):
        _train_texts(dataset, training, file, texts, book, run)
    else:
        _train_file(dataset, training, file, texts, book, run)
