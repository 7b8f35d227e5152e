"""From a table to a model somebody can use: train under a budget, keep, load, predict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sordina
from sordina import private_files
from sordina.accounting import to_dict
from sordina.accounting.ledger import Ledger
from sordina.datasets import Task
from sordina.errors import BudgetRefused, InvalidInput
from sordina.estimators._base import PrivateEstimator
from sordina.estimators.boosted import BoostedClassifier, BoostedRegressor
from sordina.estimators.forest import RandomForestClassifier, RandomForestRegressor
from sordina.estimators.gradient import MLPClassifier, MLPRegressor
from sordina.estimators.linear import Ridge
from sordina.estimators.linear_classifiers import LinearSVC, LogisticRegression
from sordina.estimators.model_file import pack, unpack
from sordina.run_folder import TABLE_MODEL, RunFolder, read_claim
from sordina.tables import PreparedTable, Schema, feature_names, pieces, read_table
from sordina.tables.prepare import features
from sordina.types import Budget, check_seed, delta_warning

MODELS: dict[str, dict[Task, type[PrivateEstimator]]] = {
    "logistic": {Task.CLASSIFICATION: LogisticRegression},
    "network": {Task.CLASSIFICATION: MLPClassifier, Task.REGRESSION: MLPRegressor},
    "linear": {Task.REGRESSION: Ridge},
    "svm": {Task.CLASSIFICATION: LinearSVC},
    "forest": {Task.CLASSIFICATION: RandomForestClassifier, Task.REGRESSION: RandomForestRegressor},
    "boosted": {Task.CLASSIFICATION: BoostedClassifier, Task.REGRESSION: BoostedRegressor},
}
ENOUGH = 10_000
"""Rows times epsilon from which boosting pays, measured on Adult: below, a linear model is steadier."""
CAVEATS = (
    "The number of rows and of persons, the schema and the list of classes are treated as public.",
    "Rows kept for testing are not covered by the guarantee: their scores are computed without noise.",
)


@dataclass(frozen=True)
class TableModel:
    """A fitted model with the schema of its table and its claim.

    Args:
        estimator: The fitted estimator.
        schema: What is public about the table.
        facts: The claim, as in ``privacy.json``.
    """

    estimator: PrivateEstimator
    schema: Schema
    facts: dict[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for regression."""
        return self.schema[self.schema.target].values if self.schema.target and self._classifies else ()

    @property
    def _classifies(self) -> bool:
        return hasattr(self.estimator, "classes_")

    def predict(self, table: Any, **reading: Any) -> dict[str, NDArray[Any]]:
        """Answers for the rows of ``table``, by column: person, prediction, and the probability of each class.

        Args:
            table: Path of a CSV or Parquet file, or a frame, with the schema's feature columns.
            reading: ``encoding`` and ``separator`` of a CSV file.
        """
        parts = list(self._parts(table, reading))
        if not parts:
            raise InvalidInput("the table has no rows.")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _parts(self, table: Any, reading: dict[str, Any]) -> Iterator[dict[str, NDArray[Any]]]:
        from sordina.tables import header

        wanted = [column.name for column in self.schema.features]
        person = self.schema.person
        if person is not None and person in header(table, **reading):
            wanted.append(person)
        for piece in pieces(table, wanted, **reading):
            rows = _frame(features(piece, self.schema), self.schema)
            part: dict[str, NDArray[Any]] = {}
            if person is not None and person in piece.columns:
                part[person] = piece.columns[person]
            yield {**part, **self._answers(rows)}

    def _answers(self, rows: Any) -> dict[str, NDArray[Any]]:
        if not self._classifies:
            column = self.schema[self.schema.target or ""]
            low, high = column.low or 0.0, column.high or 0.0
            return {"prediction": low + (high - low) * np.asarray(self.estimator.predict(rows))}
        names = np.asarray(self.classes, dtype=object)
        answers = {"prediction": names[np.asarray(self.estimator.predict(rows), np.int64)]}
        if hasattr(self.estimator, "predict_proba"):
            chances = self.estimator.predict_proba(rows)
            answers |= {f"probability of {name}": chances[:, place] for place, name in enumerate(self.classes)}
        return answers


@dataclass(frozen=True)
class TableRun:
    """What training on a table gave.

    Args:
        model: The model.
        name: Which kind it is.
        why: Why this kind was taken.
        scores: On the test rows, if there were any; with those of the constant predictor.
    """

    model: TableModel
    name: str
    why: str
    scores: dict[str, float] = field(default_factory=dict)


def choose_model(task: Task, rows: int, epsilon: float) -> tuple[str, str]:
    """A kind of model from public facts alone, and why.

    Args:
        task: Classification or regression.
        rows: The public number of rows, or of persons.
        epsilon: Of the budget.
    """
    if rows * epsilon >= ENOUGH:
        return "boosted", f"{rows} units at epsilon {epsilon:g} are enough for boosting (units x epsilon >= {ENOUGH})"
    name = "logistic" if task is Task.CLASSIFICATION else "linear"
    return name, f"{rows} units at epsilon {epsilon:g} are few: a linear model is steadier (units x epsilon < {ENOUGH})"


def train_table(
    source: Any,
    schema: Schema | str | Path | dict[str, Any],
    budget: Budget,
    *,
    model: str = "auto",
    test: Any = None,
    test_share: float | None = None,
    folder: Path | str | None = None,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    seed: int | None = None,
    encoding: str = "utf-8",
    separator: str = ",",
) -> TableRun:
    """Train a model on a table under a budget.

    Args:
        source: Path of a CSV or Parquet file, or a frame.
        schema: What is public about it.
        budget: (epsilon, delta).
        model: "auto", or one of `MODELS`.
        test: Another table to score the model on.
        test_share: Part of the rows (of the persons) kept for scoring instead.
        folder: Where model and claim are kept; must be new.
        ledger: Where the run is booked.
        dataset_budget: The ledger's name of the data set.
        seed: Makes the run repeatable, and not releasable.
        encoding: Of CSV files.
        separator: Between the fields of CSV files.
    """
    if (ledger is None) != (dataset_budget is None):
        raise InvalidInput("a ledger and the name of its data set go together: state both, or neither.")
    if test is not None and test_share is not None:
        raise InvalidInput("state a test table or a test share, not both.")
    if test_share is not None and not 0 < test_share < 1:
        raise InvalidInput(f"the test share must lie between 0 and 1, got {test_share}.")
    if seed is not None:
        check_seed(seed)
    schema = Schema.load(schema).complete()
    table = read_table(source, schema, encoding=encoding, separator=separator)
    held = None if test is None else read_table(test, schema, encoding=encoding, separator=separator)
    kept = np.arange(len(table))
    if test_share is not None:
        kept, left = _split(table, test_share, seed)
        held = _rows(table, left)
    owners = None if table.owners is None else table.owners.numpy()[kept]
    units = len(kept) if owners is None else len(np.unique(owners))
    why = "as asked for"
    if model == "auto":
        model, why = choose_model(table.task, units, budget.epsilon)
    estimator = _estimator(model, table, budget, ledger, dataset_budget, seed)
    settings = {
        "schema": schema.to_dict(), "epsilon": budget.epsilon, "delta": budget.delta, "model": model, "units": units,
        "seeded": seed is not None, "dataset_budget": dataset_budget, "test_share": test_share,
    }  # fmt: skip
    if folder is None:
        return _scored(_fit(estimator, table, kept, owners, units), held, model, why)
    with RunFolder.begin(folder, "table", settings, resumable=False) as kept_folder:
        try:
            fitted = _fit(estimator, table, kept, owners, units)
        except (InvalidInput, BudgetRefused):
            kept_folder.forget()
            raise
        except BaseException:
            kept_folder.close_failed(
                f"the run in {folder} was stopped and cannot be resumed: what it reserved counts as spent (`sordina "
                "ledger show`). Begin a new one in another folder."
            )
            raise
        kept_folder.finish(pack(estimator, schema, fitted.facts), fitted.facts, name=TABLE_MODEL)
        run = _scored(fitted, held, model, why)
        kept_folder.write_json("scores.json", {"model": model, "why": why, **run.scores})
    return run


def load(folder: str | Path) -> TableModel:
    """The model of a finished run on a table, verified: file, claim and model must speak of one another.

    Args:
        folder: The folder of the run, or the model file itself.
    """
    path = Path(folder)
    if path.is_dir():
        claim = read_claim(path)
        if not (path / TABLE_MODEL).is_file():
            raise InvalidInput(f"{path} is not the folder of a run on a table: it has no {TABLE_MODEL}.")
        path = path / TABLE_MODEL
    else:
        claim = None
    estimator, schema, facts = unpack(private_files.read(path))
    if claim is not None and any(claim.get(name) != facts.get(name) for name in ("epsilon", "delta", "unit")):
        raise InvalidInput(f"the claim beside {path} is not the one inside it.")
    return TableModel(estimator, schema, facts)


def _estimator(
    name: str, table: PreparedTable, budget: Budget, ledger: Ledger | None, dataset_budget: str | None, seed: int | None
) -> PrivateEstimator:
    if name not in MODELS:
        raise InvalidInput(f"unknown model {name!r}: choose auto, {', '.join(MODELS)}.")
    if table.task not in MODELS[name]:
        fits = [one for one, tasks in MODELS.items() if table.task in tasks]
        raise InvalidInput(f"a {name} model does not do {table.task}: choose {', '.join(fits)}.")
    options: dict[str, Any] = {
        "bounds": (0, 1), "ledger": ledger, "dataset_budget": dataset_budget, "random_state": seed,
        "rows_per_person": None if table.owners is None else table.schema.rows_per_person or 1,
    }  # fmt: skip
    if table.task is Task.REGRESSION:
        options["target_bounds"] = (0, 1)
    return MODELS[name][table.task](budget, **options)


def _fit(
    estimator: Any,
    table: PreparedTable,
    kept: NDArray[np.int64],
    owners: NDArray[Any] | None,
    units: int,
) -> TableModel:
    targets = table.dataset().tensors[1].numpy()
    targets = targets.astype(np.float64) if table.task is Task.REGRESSION else targets
    rows = _frame(table.inputs.numpy()[kept] if len(kept) < len(table) else table.inputs.numpy(), table.schema)
    options: dict[str, Any] = {} if owners is None else {"persons": owners}
    if table.task is Task.CLASSIFICATION:
        options["classes"] = np.arange(len(table.classes))
    estimator.fit(rows, targets[kept], **options)
    return TableModel(estimator, table.schema, _facts(estimator, units))


def _scored(model: TableModel, held: PreparedTable | None, name: str, why: str) -> TableRun:
    return TableRun(model, name, why, {} if held is None else _scores(model, held))


def _facts(estimator: Any, units: int) -> dict[str, Any]:
    guarantee = estimator.guarantee_
    warning = delta_warning(guarantee.delta, units, str(guarantee.unit))
    seeded = "" if estimator.releasable_ else ", IF the noise were secret: this run was seeded, so do not release it"
    return {
        "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None,
        "delta": guarantee.delta,
        "private": True,
        "statement": f"{guarantee}{seeded}.{f' {warning}' if warning else ''}",
        "adjacency": str(guarantee.adjacency),
        "unit": str(guarantee.unit),
        "model": str(guarantee.trust),
        "accountant": "pld",
        "event": to_dict(estimator.event_),
        "releasable": estimator.releasable_,
        "estimator": type(estimator).__name__,
        "caveats": [*CAVEATS, *([warning] if warning else [])],
        "versions": {"sordina": sordina.__version__, "numpy": np.__version__},
    }


def _frame(rows: NDArray[Any], schema: Schema) -> Any:
    import pandas

    return pandas.DataFrame(rows, columns=feature_names(schema), copy=False)


def _split(table: PreparedTable, share: float, seed: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to test on; all rows of a person fall on one side."""
    from sordina import random

    owners = np.arange(len(table)) if table.owners is None else table.owners.numpy()
    people = np.unique(owners)
    order = random.generator(seed).permutation(len(people))
    tested = np.isin(owners, people[order[: max(1, round(share * len(people)))]])
    if tested.all():
        raise InvalidInput("the test share leaves nobody to train on.")
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _rows(table: PreparedTable, rows: NDArray[np.int64]) -> PreparedTable:
    targets = None if table.targets is None else table.targets[rows]
    return PreparedTable(
        table.schema, table.inputs[rows], targets, groups={k: v[rows] for k, v in table.groups.items()}
    )


def _scores(model: TableModel, held: PreparedTable) -> dict[str, float]:
    """Scores on test rows, beside those of the best constant answer."""
    from sklearn import metrics

    rows, truth = _frame(held.inputs.numpy(), held.schema), held.dataset().tensors[1].numpy()
    estimator: Any = model.estimator
    if held.task is Task.REGRESSION:
        column = held.schema[held.schema.target or ""]
        width = (column.high or 0.0) - (column.low or 0.0)
        errors = width * (np.asarray(estimator.predict(rows)) - truth)
        constant = width * float(np.std(truth))
        rmse = float(np.sqrt(np.mean(errors**2)))
        r2 = 1 - rmse**2 / constant**2 if constant else 0.0
        return {"rows": float(len(truth)), "rmse": rmse, "r2": r2, "constant_rmse": constant}
    found = np.asarray(estimator.predict(rows))
    shares = np.bincount(truth, minlength=len(held.classes)) / len(truth)
    scores = {
        "rows": float(len(truth)),
        "accuracy": float(np.mean(found == truth)),
        "balanced_accuracy": float(metrics.balanced_accuracy_score(truth, found)),
        "constant_accuracy": float(shares.max()),
    }
    if hasattr(estimator, "predict_proba"):
        chances = np.clip(estimator.predict_proba(rows), 1e-12, 1.0)
        scores["log_loss"] = float(-np.mean(np.log(chances[np.arange(len(truth)), truth])))
        scores["constant_log_loss"] = float(-np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
        if len(held.classes) == 2 and 0 < shares[0] < 1:
            scores["auc"] = float(metrics.roc_auc_score(truth, chances[:, 1]))
    return scores
