"""A fitted estimator as one safetensors file: arrays as they are, everything else as JSON in the file's own header.

The header holds the claim too, so that a lost folder does not lose it. Nothing is unpickled on the way: a reader knows
the kinds of estimator by name and refuses whatever it does not know.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordina.errors import InvalidInput
from sordina.estimators._base import PrivateEstimator
from sordina.estimators._features import BinnedFeature
from sordina.estimators._trees import GrownTree
from sordina.estimators.boosted import BoostedClassifier, BoostedRegressor
from sordina.estimators.forest import RandomForestClassifier, RandomForestRegressor
from sordina.estimators.gradient import MLPClassifier, MLPRegressor
from sordina.estimators.linear import LinearRegression, Ridge
from sordina.estimators.linear_classifiers import SVC, LinearSVC, LogisticRegression
from sordina.estimators.moments import PCA, GaussianNB, KMeans
from sordina.privacy_claim import PrivacyClaim
from sordina.tables import Schema

FORMAT = "sordina-table-model-1"
KINDS: dict[str, type[PrivateEstimator]] = {
    kind.__name__: kind
    for kind in (
        BoostedClassifier, BoostedRegressor, GaussianNB, KMeans, LinearRegression, LinearSVC, LogisticRegression,
        MLPClassifier, MLPRegressor, PCA, RandomForestClassifier, RandomForestRegressor, Ridge, SVC,
    )
}  # fmt: skip
_PLAIN = ("bounds", "target_bounds", "gamma", "n_components", "hidden_layer_sizes", "n_clusters", "row_norm", "center")
_NUMBERS = ("middle_", "width_", "intercept_", "n_features_in_", "knots_")
_WHOLE = ("n_features_in_", "knots_")
_ARRAYS = (
    "coef_", "intercept_", "theta_", "var_", "class_prior_", "components_", "singular_values_", "mean_",
    "cluster_centers_",
)  # fmt: skip

_DAMAGE = (
    KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RuntimeError, MemoryError,
)  # fmt: skip
"""What a hostile file can make of reading it; a RecursionError is a RuntimeError."""

Arrays = dict[str, NDArray[Any]]


def pack(estimator: PrivateEstimator, schema: Schema | None, facts: dict[str, Any]) -> bytes:
    """The bytes of the model file.

    Args:
        estimator: A fitted estimator, one of `KINDS`.
        schema: What is public about the table it was fitted on; None if it was fitted on prepared rows.
        facts: The claim, as in ``privacy.json``.
    """
    from safetensors.numpy import save

    name = type(estimator).__name__
    if name not in KINDS:
        raise InvalidInput(f"a {name} cannot be kept in a model file.")
    arrays, plain = _state(estimator)
    options = {key: _listed(value) for key, value in estimator.get_params().items() if key in _PLAIN}
    if "bounds" in options:
        options["bounds"] = _listed(estimator.bounds_)
    header = {
        "format": FORMAT,
        "kind": name,
        "options": json.dumps(options),
        "plain": json.dumps(plain),
        "schema": json.dumps(None if schema is None else schema.to_dict()),
        "privacy": json.dumps(facts),
    }
    return bytes(save({key: np.ascontiguousarray(value) for key, value in arrays.items()}, metadata=header))


def unpack(content: bytes) -> tuple[PrivateEstimator, Schema | None, dict[str, Any]]:
    """Estimator, schema and claim from the bytes of a model file.

    Args:
        content: What `pack` made.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])["__metadata__"]
        if header["format"] != FORMAT:
            raise InvalidInput("the model file was written by another version of Sordina.")
        estimator = KINDS[header["kind"]](**_options(json.loads(header["options"])))
        estimator.bounds_ = getattr(estimator, "bounds", None)
        _restore(estimator, load(content), json.loads(header["plain"]))
        facts = json.loads(header["privacy"])
        _claim(estimator, facts)
        _try(estimator)
        schema = json.loads(header["schema"])
        return estimator, None if schema is None else Schema.load(schema), facts
    except (*_DAMAGE, SafetensorError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("the model file is damaged, or not one of Sordina's.") from error


def _options(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - set(_PLAIN)
    if unknown:
        raise InvalidInput("the model file holds options nobody knows.")
    return {key: tuple(value) if key == "hidden_layer_sizes" else value for key, value in options.items()}


def _claim(estimator: PrivateEstimator, facts: dict[str, Any]) -> None:
    claim = PrivacyClaim.from_dict(facts, "the model file")
    estimator.guarantee_ = replace(claim, private=claim.epsilon is not None).guarantee
    estimator.cost_, estimator.releasable_ = estimator.guarantee_.epsilon, claim.releasable is True


def _try(estimator: Any) -> None:
    """Answer for one row of zeros: what cannot is refused here, not where somebody predicts."""
    for tree in getattr(estimator, "trees_", []):
        for feature, right in zip(tree.feature, tree.right, strict=True):
            if feature >= 0 and estimator.features_[feature].cells > len(right):
                raise ValueError("a split knows fewer cells than its feature has")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row has no names of columns
        answer = getattr(estimator, "predict", None) or estimator.transform
        answer(np.zeros((1, estimator.n_features_in_)))


def _state(estimator: Any) -> tuple[Arrays, dict[str, Any]]:
    arrays: Arrays = {}
    plain: dict[str, Any] = {}
    for name in _ARRAYS:
        value = getattr(estimator, name, None) if name not in ("coef_", "intercept_") else vars(estimator).get(name)
        if isinstance(value, np.ndarray):
            arrays[name] = value
    for name in _NUMBERS:
        value = vars(estimator).get(name)
        if isinstance(value, (int, float, np.integer, np.floating)):
            plain[name] = float(value)
    if hasattr(estimator, "classes_"):
        plain["classes_"] = estimator.classes_.tolist()
    if hasattr(estimator, "feature_names_in_"):
        plain["feature_names_in_"] = [str(name) for name in estimator.feature_names_in_]
    for place, table in enumerate(getattr(estimator, "tables_", [])):
        arrays[f"tables_.{place}"] = table
    for name, weight in getattr(estimator, "weights_", {}).items():
        arrays[f"weights_.{name}"] = weight
    if hasattr(estimator, "features_"):
        plain["features_"] = [[list(one.columns), one.cells, one.ordered] for one in estimator.features_]
    for place, tree in enumerate(getattr(estimator, "trees_", [])):
        for name, value in tree.arrays().items():
            arrays[f"trees_.{place}.{name}"] = value
    return arrays, plain


def _restore(estimator: Any, arrays: Arrays, plain: dict[str, Any]) -> None:
    for name, value in arrays.items():
        if name in _ARRAYS:
            setattr(estimator, name, value)
    for name in _NUMBERS:
        if name in plain:
            setattr(estimator, name, int(plain[name]) if name in _WHOLE else float(plain[name]))
    for name in ("classes_", "feature_names_in_"):
        if name in plain:
            setattr(estimator, name, np.asarray(plain[name], dtype=object if name != "classes_" else None))
    if "features_" in plain:
        estimator.features_ = tuple(BinnedFeature(tuple(c), int(n), bool(o)) for c, n, o in plain["features_"])
    tables = [name for name in arrays if name.startswith("tables_.")]
    if tables or isinstance(estimator, GaussianNB):  # which has none where all columns are numbers
        estimator.tables_ = [arrays[f"tables_.{place}"] for place in range(len(tables))]
    weights = {name[len("weights_.") :]: value for name, value in arrays.items() if name.startswith("weights_.")}
    if weights:
        estimator.weights_ = weights
    trees = 1 + max((int(name.split(".")[1]) for name in arrays if name.startswith("trees_.")), default=-1)
    if trees:
        estimator.trees_ = [
            GrownTree.of({name.split(".")[2]: arrays[name] for name in arrays if name.startswith(f"trees_.{place}.")})
            for place in range(trees)
        ]


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_listed(one) for one in value]
    return value
