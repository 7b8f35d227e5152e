"""`sordina train FILE --schema ...`: the part of `sordina train` that is about a table of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordina.cli.output import number, say, say_json
from sordina.errors import InvalidInput

if TYPE_CHECKING:
    from sordina.accounting.ledger import Ledger


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
    ledger: Ledger | None,
    dataset_budget: str | None,
    seed: int | None,
    refused: dict[str, bool],
    as_json: bool,
) -> None:
    """Train on the file ``source`` and say what came out; ``refused`` names options that do not go with tables."""
    from sordina.estimators.table_model import train_table
    from sordina.types import Budget

    if schema is None:
        raise InvalidInput(
            f"a table needs a schema that says what is public: draft one with `sordina schema {source} --target COLUMN "
            "--out schema.toml`, complete it, and pass --schema schema.toml."
        )
    given = [name for name, is_given in refused.items() if is_given]
    if given:
        raise InvalidInput(f"{', '.join(given)} do not go with a table: nothing has to be tuned there.")
    run = train_table(
        source, schema, Budget(epsilon, delta), model=model or "auto", test=test, test_share=test_share, folder=out,
        ledger=ledger, dataset_budget=dataset_budget, seed=seed,
    )  # fmt: skip
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
