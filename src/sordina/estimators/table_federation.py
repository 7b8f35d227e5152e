"""The linear model of a federation of tables, as a model of a table: `sordina predict` and `sordina.load` take it."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordina import private_files
from sordina.errors import InvalidInput, Unsupported
from sordina.estimators.linear import Ridge
from sordina.estimators.linear_classifiers import LogisticRegression
from sordina.estimators.table_model import TableModel
from sordina.run_folder import MODELS, RECIPE, read_claim, read_json
from sordina.tables import ColumnKind, Schema, feature_names


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
        with np.load(io.BytesIO(private_files.read(folder / MODELS)), allow_pickle=False) as arrays:
            models = np.asarray(arrays["models"], np.float64)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{folder / MODELS} does not hold the models of a federation.") from error
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
