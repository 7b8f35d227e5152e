"""A model of a table that somebody can use: which kinds there are, its claim, loading it, predicting with it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sordina
from sordina import private_files
from sordina.accounting import to_dict
from sordina.accounting.ledger import Ledger
from sordina.datasets import Task
from sordina.errors import InvalidInput, Unsupported
from sordina.estimators._base import PrivateEstimator
from sordina.estimators.boosted import BoostedClassifier, BoostedRegressor
from sordina.estimators.forest import RandomForestClassifier, RandomForestRegressor
from sordina.estimators.gradient import MLPClassifier, MLPRegressor
from sordina.estimators.linear import Ridge
from sordina.estimators.linear_classifiers import LinearSVC, LogisticRegression
from sordina.estimators.model_file import pack, unpack
from sordina.privacy import Budget, delta_warning
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import MODELS as FEDERATED_MODELS
from sordina.run_folder import RECIPE, TABLE_MODEL, read_claim, read_json
from sordina.tables import ColumnKind, PreparedTable, Schema, feature_names, pieces
from sordina.tables.prepare import features

MODELS: dict[str, dict[Task, type[PrivateEstimator]]] = {
    "logistic": {Task.CLASSIFICATION: LogisticRegression},
    "network": {Task.CLASSIFICATION: MLPClassifier, Task.REGRESSION: MLPRegressor},
    "linear": {Task.REGRESSION: Ridge},
    "svm": {Task.CLASSIFICATION: LinearSVC},
    "forest": {Task.CLASSIFICATION: RandomForestClassifier, Task.REGRESSION: RandomForestRegressor},
    "boosted": {Task.CLASSIFICATION: BoostedClassifier, Task.REGRESSION: BoostedRegressor},
}
ENOUGH = {Task.CLASSIFICATION: 40_000, Task.REGRESSION: 10_000}
"""Rows times epsilon from which boosting pays, measured on a part of Adult's training rows (for numbers, on made-up
tables too): below, a linear model (with hats, for classes) is better or as good."""
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
        for piece in pieces(table, wanted, schema=self.schema, **reading):
            rows = frame_of(features(piece, self.schema), self.schema)
            part: dict[str, NDArray[Any]] = {}
            if person is not None and person in piece.columns:
                part[person] = np.asarray(piece.columns[person])
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


def choose_model(task: Task, rows: int, epsilon: float) -> tuple[str, str]:
    """A kind of model from public facts alone, and why.

    Args:
        task: Classification or regression.
        rows: The public number of rows, or of persons.
        epsilon: Of the budget.
    """
    enough = ENOUGH[task]
    if rows * epsilon >= enough:
        return "boosted", f"{rows} units at epsilon {epsilon:g} are enough for boosting (units x epsilon >= {enough})"
    name = "logistic" if task is Task.CLASSIFICATION else "linear"
    return name, f"{rows} units at epsilon {epsilon:g} are few: a linear model is steadier (units x epsilon < {enough})"


def load(folder: str | Path) -> TableModel:
    """The model of a finished run on a table, verified: file, claim and model must speak of one another.

    Args:
        folder: The folder of the run, or the model file itself.
    """
    path = Path(folder)
    if (path / FEDERATED_MODELS).exists():
        from sordina.estimators.table_model import load_federation

        return load_federation(path)
    if path.is_dir():
        claim = read_claim(path)
        if not (path / TABLE_MODEL).is_file():
            raise InvalidInput(f"{path} is not the folder of a run on a table: it has no {TABLE_MODEL}.")
        path = path / TABLE_MODEL
    else:
        claim = None
    estimator, schema, facts = unpack(private_files.read(path))
    if schema is None:
        raise InvalidInput(
            f"{path} holds an estimator without a table's schema: sordina.estimators.load_estimator reads it."
        )
    inside = PrivacyClaim.from_dict(facts, str(path))
    if claim is not None and (claim.epsilon, claim.delta, claim.unit) != (inside.epsilon, inside.delta, inside.unit):
        raise InvalidInput(f"the claim beside {path} is not the one inside it.")
    return TableModel(estimator, schema, facts)


def save_estimator(estimator: PrivateEstimator, path: str | Path, schema: Schema | None = None) -> None:
    """Keep a fitted estimator in one safetensors file, with its claim inside; nothing is pickled.

    Args:
        estimator: Fitted.
        path: A new file.
        schema: What is public about the table it was fitted on, if `sordina.load` is to answer for such tables.
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator, "guarantee_")
    if Path(path).exists():
        raise InvalidInput(f"{path} is there already: an estimator is kept in a new file.")
    private_files.write(Path(path), pack(estimator, schema, facts_of(estimator)))


def load_estimator(path: str | Path) -> PrivateEstimator:
    """The estimator that `save_estimator` kept; refuses what it does not know.

    Args:
        path: The file.
    """
    return unpack(private_files.read(Path(path)))[0]


def kind_of(estimator: PrivateEstimator) -> str:
    """The name under which `MODELS` has the kind of ``estimator``.

    Args:
        estimator: Any of them.
    """
    return next(name for name, kinds in MODELS.items() if type(estimator) in kinds.values())


def make_estimator(
    name: str, table: PreparedTable, budget: Budget, ledger: Ledger | None, dataset_budget: str | None, seed: int | None
) -> PrivateEstimator:
    """An estimator of the kind ``name`` for ``table``.

    Args:
        name: One of `MODELS`.
        table: What it will be fitted on.
        budget: (epsilon, delta) of the fit.
        ledger: Where it is booked.
        dataset_budget: The ledger's name of the data set.
        seed: Makes the fit repeatable, and not releasable.
    """
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


def facts_of(estimator: Any, units: int | None = None) -> dict[str, Any]:
    """The claim of a fitted estimator, as ``privacy.json`` has it.

    Args:
        estimator: Fitted.
        units: The public number of rows, or of persons; None if it is not known any more.
    """
    guarantee = estimator.guarantee_
    warning = None if units is None else delta_warning(guarantee.delta, units, str(guarantee.unit))
    seeded = "" if estimator.releasable_ else ", IF the noise were secret: this run was seeded, so do not release it"
    return PrivacyClaim.of(
        guarantee,
        statement=f"{guarantee}{seeded}.{f' {warning}' if warning else ''}",
        accountant="pld",
        event=to_dict(estimator.event_),
        releasable=estimator.releasable_,
        caveats=(*CAVEATS, *([warning] if warning else [])),
        versions={"sordina": sordina.__version__, "numpy": np.__version__},
        more={"estimator": type(estimator).__name__},
    ).to_dict()


def frame_of(rows: NDArray[Any], schema: Schema) -> Any:
    """Prepared rows with the names of their columns.

    Args:
        rows: Prepared rows.
        schema: What is public about their table.
    """
    import pandas

    return pandas.DataFrame(rows, columns=feature_names(schema), copy=False)


# The linear model of a federation of tables, as a model of a table: `sordina predict` and `sordina.load` take it.


def load_federation(folder: Path) -> TableModel:
    """The one linear model of a finished federated run on tables.

    Args:
        folder: The folder of the run.
    """
    claim, asked = read_claim(folder), read_json(folder / RECIPE)
    options = asked.get("options")
    if asked.get("data") != "table" or not isinstance(options, dict):
        raise InvalidInput(f"{folder} is not the folder of a run on tables: its models take no table.")
    schema = _trained_on(Schema.load(options["schema"]), options.get("client_column"))
    try:
        with np.load(io.BytesIO(private_files.read(folder / FEDERATED_MODELS)), allow_pickle=False) as arrays:
            models = np.asarray(arrays["models"], np.float64)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{folder / FEDERATED_MODELS} does not hold the models of a federation.") from error
    if len(models) != 1 or options.get("model", "linear") != "linear":
        raise Unsupported("predictions from a federation need one linear model: one that every client shares.")
    return TableModel(_estimator(models[0], schema), schema, claim.to_dict())


def _trained_on(schema: Schema, client_column: Any) -> Schema:
    """The schema of the features: the column that names the client is none."""
    if all(one.name != client_column for one in schema.columns):
        return schema
    return schema.with_column(replace(schema[client_column], kind=ColumnKind.IGNORED))


def _estimator(flat: Any, schema: Schema) -> Any:
    names = feature_names(schema)
    width, classes = len(names), len(schema[schema.target or ""].values)
    outputs = classes or 1
    if flat.shape != (outputs * (width + 1),) or not np.isfinite(flat).all():
        raise InvalidInput("the model of the federation does not fit its schema.")
    weights, bias = flat[: outputs * width].reshape(outputs, width), flat[outputs * width :]
    estimator: Any
    if classes:
        estimator = LogisticRegression(bounds=(0, 1), knots=0)
        estimator.classes_, estimator.knots_ = np.arange(classes), 0
        estimator.weights_ = {"weight": weights.astype(np.float32), "bias": bias.astype(np.float32)}
    else:
        estimator = Ridge(bounds=(0, 1), target_bounds=(0, 1))
        estimator.coef_, estimator.intercept_ = weights[0], float(bias[0])
    estimator.bounds_ = (0.0, 1.0)
    estimator.n_features_in_, estimator.feature_names_in_ = width, np.asarray(names, dtype=object)
    estimator.guarantee_ = None  # the claim is the federation's, in `TableModel.facts`
    return estimator
