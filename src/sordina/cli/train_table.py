"""`sordina train` and `sordina tune` on a table of the user's own: FILE --schema ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordina.cli.output import number, say, say_json
from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger
    from sordina.estimators.table_run import TableRun


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
    from sordina.types import Budget

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
    from sordina.types import Budget

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
def _stages(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """What is being done, on standard error, while it is."""
    if not shown:
        yield lambda stage: None
        return
    from rich.console import Console

    status = Console(stderr=True).status("")

    def tell(stage: str) -> None:
        status.update(stage)
        status.start()

    try:
        yield tell
    finally:
        status.stop()
