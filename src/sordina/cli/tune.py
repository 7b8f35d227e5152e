"""`sordina tune`: search for good settings under one budget for the whole search."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordina.cli._options import booked_on, grouped, stated
from sordina.cli.output import say, say_json, say_table
from sordina.cli.train import BookOptions, FileOptions, is_table, say_table_run, stages, stated_schema
from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.tuning.comparison import SearchComparison


@dataclass(frozen=True)
class SearchOptions:
    """The search."""

    strategy: Annotated[
        list[str],
        typer.Option(
            help="online, fixed-threshold, fixed-quantile, adam-wosm, online-as-in-thesis, automatic; repeat."
        ),
    ] = field(default_factory=lambda: ["online"])
    epsilon: Annotated[list[float], typer.Option(help="Budget of each whole search; repeat to compare.")] = field(
        default_factory=lambda: [3.0]
    )
    delta: Annotated[float, typer.Option(help="Budget delta.")] = 1e-5
    granularity: Annotated[int, typer.Option(help="Values per range of the grid, k of the thesis.")] = 5
    runs: Annotated[int | None, typer.Option(help="Random search with this many runs instead of the grid.")] = None
    seeds: Annotated[int, typer.Option(help="Runs per configuration; each is paid for.")] = 1
    selection: Annotated[str, typer.Option(help="private, public or thesis-test-set.")] = "private"
    metric: Annotated[
        str | None,
        typer.Option(
            help="Chooses the best run: accuracy, log_loss, loss, rmse, r2; auc, balanced_accuracy (public only). "
            "For a file: accuracy, log_loss; rmse, r2."
        ),
    ] = None
    method: Annotated[str | None, typer.Option(help="composition or random-stopping; else the cheaper one.")] = None
    hold_out: Annotated[float, typer.Option(help="Share of training rows that private selection validates on.")] = 0.1
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations, where they are exact.")] = None
    patience: Annotated[int | None, typer.Option(help="End runs after this many validations without improvement.")] = (
        None
    )
    prune: Annotated[
        float | None,
        typer.Option(help="End runs that are behind this share of the others at the same step (0.5: the median)."),
    ] = None
    workers: Annotated[int | None, typer.Option(help="Processes; by default one per core.")] = None


@dataclass(frozen=True)
class TunedOptions:
    """What is trained."""

    model: Annotated[
        str | None,
        typer.Option(
            help="Model by name; by default the data set's own. For a file: kinds to choose among: logistic,boosted."
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(help="Expected batch size.")] = 512
    epochs: Annotated[float, typer.Option(help="Passes over the data, on average.")] = 10.0
    rows: Annotated[int | None, typer.Option(help="Train on this many first rows only, to try things out.")] = None
    task: Annotated[str | None, typer.Option(help="For fashion-mnist: classes or reconstruction.")] = None
    features: Annotated[str | None, typer.Option(help="For mnist, fashion-mnist: scattering (fixed wavelets).")] = None
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, momentum, adam or adam-bc, where the strategy has none.")
    ] = None
    averaging: Annotated[str | None, typer.Option(help="tail or ema: averages of the weights are kept.")] = None
    views: Annotated[int, typer.Option(help="Of image data sets: shifted views of each image in a step.")] = 1
    noise: Annotated[
        str | None, typer.Option(help="independent, banded, toeplitz or lambda-cgd (as `sordina train`).")
    ] = None
    bands: Annotated[int | None, typer.Option(help="Of banded noise.")] = None
    decay: Annotated[float | None, typer.Option(help="The lambda of lambda-cgd.")] = None
    components_noise: Annotated[
        float | None, typer.Option(help="For pca-mlp: noise multiplier of the components that each run pays for.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Makes the noise repeatable; the model must not be released.")] = None


@dataclass(frozen=True)
class SearchRunOptions:
    """The run."""

    out: Annotated[Path, typer.Option(help="Folder for models, results and the plot.")] = Path("runs/tune")
    resume: Annotated[bool, typer.Option("--resume", help="Continue the searches in --out.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


@grouped
def tune(
    dataset: Annotated[
        str, typer.Argument(help="A CSV or Parquet file, or digits, adult, mnist, fashion-mnist or ag-news.")
    ],
    search: SearchOptions,
    tuned: TunedOptions,
    file: FileOptions,
    book: BookOptions,
    run: SearchRunOptions,
) -> None:
    """Search for good settings; epsilon covers the whole search, including the choice of the best.

    For a table, among kinds of model: `sordina tune patients.csv --schema patients.toml --model logistic,boosted`

    Example: `sordina tune digits --strategy online --granularity 5 --epsilon 3 --batch-size 128 --out runs/tune`
    """
    if is_table(dataset):
        _tune_file(dataset, search, tuned, file, book, run)
        return
    if stated(file):
        raise InvalidInput("--schema, --test-share, --encoding and --separator go with a file of your own.")
    from sordina.tuning.comparison import ComparisonPlan, NamedTask, compare, live_table
    from sordina.tuning.parallel_runs import cores
    from sordina.tuning.selection import Selection

    chosen = Selection(search.selection, metric=search.metric)
    task = NamedTask(
        dataset, tuned.model, tuned.batch_size, tuned.epochs, 0.0 if chosen.exact else search.hold_out,
        0 if tuned.seed is None else tuned.seed, tuned.rows, options=_techniques(tuned),
    )  # fmt: skip
    plan = ComparisonPlan(
        task, search.strategy or ["online"], search.epsilon or [3.0], search.delta, search.granularity, search.runs,
        selection=chosen, method=search.method, seeds=search.seeds, seed=tuned.seed,
        validate_every=search.validate_every, patience=search.patience, prune=search.prune,
        workers=cores() if search.workers is None else search.workers,
    )  # fmt: skip
    found = compare(
        plan, run.out, resume=run.resume, ledger=booked_on(book.ledger, book.dataset_budget),
        dataset_budget=book.dataset_budget, watch=None if run.as_json else live_table,
    )  # fmt: skip
    if run.as_json:
        say_json(found.facts())
    else:
        _show(found, run.out)


_TECHNIQUES = ("task", "features", "optimizer", "averaging", "views", "noise", "bands", "decay", "components_noise")


def _techniques(tuned: TunedOptions) -> tuple[tuple[str, Any], ...]:
    """Those that were asked for."""
    blank = TunedOptions()
    return tuple((name, value) for name in _TECHNIQUES if (value := getattr(tuned, name)) != getattr(blank, name))


def _tune_file(
    source: str, search: SearchOptions, tuned: TunedOptions, file: FileOptions, book: BookOptions, run: SearchRunOptions
) -> None:
    """Choose among kinds of model for the file ``source`` and say what came out."""
    from sordina.estimators.table_search import tune_table
    from sordina.privacy import Budget

    refused = stated(
        search, "strategy", "granularity", "runs", "seeds", "selection", "method", "validate_every", "patience",
        "prune", "workers",
    )  # fmt: skip
    refused += stated(tuned, "batch_size", "epochs", "rows", *_TECHNIQUES) + stated(run, "resume")
    schema = stated_schema(source, file.schema, "tune", refused)
    if len(search.epsilon) != 1:
        raise InvalidInput("a search over models of a table has one --epsilon.")
    names = [] if tuned.model is None else [name.strip() for name in tuned.model.split(",") if name.strip()]
    with stages(shown=not run.as_json) as progress:
        found = tune_table(
            source, schema, Budget(search.epsilon[0], search.delta), models=names, hold_out=search.hold_out,
            metric=search.metric, test_share=file.test_share, folder=run.out,
            ledger=booked_on(book.ledger, book.dataset_budget), dataset_budget=book.dataset_budget, seed=tuned.seed,
            encoding=file.encoding, separator=file.separator,
            progress=progress,
        )  # fmt: skip
    say_table_run(found, run.out, as_json=run.as_json)


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
