"""Private estimators on tables: test scores against epsilon, beside scikit-learn and, where it is, diffprivlib.

    python -m benchmarks.tables adult --models LogisticRegression,BoostedClassifier
    python -m benchmarks.tables regression
    python -m benchmarks.tables more
    python -m benchmarks.tables pca

``SORDINA_DIFFPRIVLIB`` names a Python in which diffprivlib 0.6.6 is installed (it does not import with scikit-learn
1.9); it then runs on the very same rows, from `benchmarks/diffprivlib_peer.py`. Five seeds; mean and standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from sordina import estimators
from sordina.privacy import Budget
from sordina.tables import Prepare, Schema

NUMBERS = {
    "age": (17, 90, "linear"),
    "education_num": (1, 16, "linear"),
    "capital_gain": (0, 100_000, "log"),
    "capital_loss": (0, 5_000, "log"),
    "hours_per_week": (1, 99, "linear"),
}
CATEGORIES = (
    "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "native_country",
)  # fmt: skip
MODELS = ("LogisticRegression", "LinearSVC", "RandomForestClassifier", "BoostedClassifier", "GaussianNB")
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
DELTA = 1e-5
Rows = dict[str, Any]


def adult() -> Rows:
    """Adult from its CSV with a schema; the categories are those of the data set's documentation."""
    import pandas

    from sordina.datasets.adult import CATEGORIES as DOCUMENTED

    folder = Path(os.environ["SORDINA_DATA"]) / "adult"
    parts = {name: pandas.read_csv(folder / f"{name}.csv.gz", keep_default_na=False) for name in ("train", "test")}
    columns = {
        name: {"kind": "number", "low": low, "high": high, "scale": scale, "optional": False}
        for name, (low, high, scale) in NUMBERS.items()
    } | {name: {"kind": "category", "values": [one for one in DOCUMENTED[name] if one != "?"]} for name in CATEGORIES}
    prepare = Prepare(Schema.load({"columns": columns})).set_output(transform="pandas")
    rows = {name: prepare.fit_transform(part) for name, part in parts.items()}
    labels = {name: (part["income"] == ">50K").to_numpy(int) for name, part in parts.items()}
    return {"x": rows["train"], "y": labels["train"], "x_test": rows["test"], "y_test": labels["test"]}


def small(name: str) -> Rows:
    """A data set of scikit-learn, scaled by round public bounds above its documented ranges; a third of it tests."""
    import pandas
    from sklearn import datasets

    loaded = getattr(datasets, f"load_{name}")()
    x, y = np.asarray(loaded.data, float), np.asarray(loaded.target)
    high = 10.0 ** np.ceil(np.log10(np.abs(x).max(axis=0)))  # powers of ten stand for what is known of each column
    low = np.where(x.min(axis=0) < 0, -high, 0.0)
    frame = pandas.DataFrame((x - low) / (high - low), columns=[f"c{place}" for place in range(x.shape[1])])
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[: len(y) // 3], order[len(y) // 3 :]
    return {"x": frame.iloc[train], "y": y[train], "x_test": frame.iloc[test], "y_test": y[test]}


def hospital() -> Rows:
    """Payments of hospitals (000 section 2.5.1): condition, longitude and latitude, by public bounds."""
    import pandas

    from sordina import datasets

    data = datasets.load("hospital")
    low, high = np.array([0, -12.5, 2.4]), np.array([3, -6.6, 5.0])
    found: Rows = {}
    for part, rows in (("", data.train), ("_test", data.test)):
        x, y = (tensor.numpy().astype(float) for tensor in rows.tensors)
        scaled = np.clip((x.reshape(len(x), -1) - low) / (high - low), 0, 1)
        found[f"x{part}"] = pandas.DataFrame(scaled, columns=["condition", "longitude", "latitude"])
        found[f"y{part}"] = y.ravel()
    return found


def show(title: str, rows: dict[str, list[list[float]]], scale: float = 100.0) -> None:
    """A table of means and standard errors, one column per epsilon, and the same as JSON."""
    digits = 2 if scale == 100.0 else 4
    table = Table("model", *(f"{epsilon:g}" for epsilon in EPSILONS), title=title)
    for name, found in rows.items():
        cells = [
            f"{scale * np.mean(one):.{digits}f} ± {scale * np.std(one, ddof=1) / math.sqrt(len(one)):.{digits}f}"
            if len(one) > 1
            else f"{scale * one[0]:.{digits}f}"
            for one in found
        ]
        table.add_row(name, *cells)
    Console(width=140).print(table)
    print(json.dumps({"title": title, "epsilons": EPSILONS, "scores": rows}), flush=True)


def ours(models: Sequence[str], rows: Rows, score: Callable[[Any], float], seeds: int, **options: Any) -> Any:
    """Scores by model, epsilon and seed; ``Name:method`` takes a method of that name."""
    found: dict[str, list[list[float]]] = {}
    for model in models:
        name, _, method = model.partition(":")
        extra = options | ({"method": method} if method else {})
        found[model] = [
            [
                score(
                    getattr(estimators, name)(Budget(epsilon, DELTA), bounds=(0, 1), random_state=seed, **extra).fit(
                        rows["x"], rows["y"]
                    )
                )
                for seed in range(seeds)
            ]
            for epsilon in EPSILONS
        ]
        print(json.dumps({"model": model, "scores": found[model]}), flush=True)
    return found


def peer(what: str, rows: Rows, seeds: int, **options: Any) -> dict[str, list[list[float]]]:
    """What diffprivlib makes of the same rows, in its own environment; nothing where there is none."""
    python = os.environ.get("SORDINA_DIFFPRIVLIB")
    if not python:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, **{name: np.asarray(value) for name, value in rows.items()})
        task = {"what": what, "epsilons": EPSILONS, "seeds": seeds, **options}
        script = str(Path(__file__).with_name("diffprivlib_peer.py"))
        done = subprocess.run([python, script, str(path), json.dumps(task)], capture_output=True, text=True, check=True)
    return {f"diffprivlib {name}": found for name, found in json.loads(done.stdout.splitlines()[-1]).items()}


def classify(title: str, rows: Rows, models: Sequence[str], seeds: int, *, alone: bool = False) -> None:
    """Accuracy on test rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    def score(model: Any) -> float:
        return float(model.score(rows["x_test"], rows["y_test"]))

    found = ours(models, rows, score, seeds)
    if alone:
        return
    found |= peer("classification", rows, seeds)
    plain = [
        LogisticRegression(max_iter=5000),
        RandomForestClassifier(random_state=0),
        HistGradientBoostingClassifier(),
    ]
    for one in plain:
        found[f"without privacy: {type(one).__name__}"] = [[score(one.fit(rows["x"], rows["y"]))]] * len(EPSILONS)
    show(f"{title}: accuracy, %", found)


def regress(title: str, rows: Rows, bounds: tuple[float, float], models: Sequence[str], seeds: int) -> None:
    """Root mean squared error on test rows in excess of the least squares fit without privacy."""
    from sklearn.linear_model import LinearRegression

    def rmse(model: Any) -> float:
        return float(np.sqrt(np.mean((model.predict(rows["x_test"]) - rows["y_test"]) ** 2)))

    plain = rmse(LinearRegression().fit(rows["x"], rows["y"]))
    found = ours(models, rows, lambda model: rmse(model) - plain, seeds, target_bounds=bounds)
    found |= peer("regression", rows, seeds, target_bounds=bounds, plain=plain)
    spread = float(np.std(rows["y_test"]))
    show(f"{title}: excess RMSE over least squares without privacy ({plain:.4g}; constant {spread:.4g})", found, 1.0)


def subspaces(seeds: int, components: int = 2) -> None:
    """Distance of the private principal subspace of Adult's numbers from the true one, beside its expectation."""
    x = adult()["x"][list(NUMBERS)].to_numpy(float) - 0.5
    x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    values, vectors = np.linalg.eigh(x.T @ x)
    order = np.argsort(values)[::-1]
    values, true = values[order], vectors[:, order[:components]]

    def distance(found: Any) -> float:
        return float(np.linalg.norm(found.T @ found - true @ true.T) / math.sqrt(2 * components))

    models, formula = [], []
    for epsilon in EPSILONS:
        fitted = [
            estimators.PCA(components, Budget(epsilon, DELTA), row_norm=1.0, random_state=seed).fit(x)
            for seed in range(seeds)
        ]
        models.append([distance(one.components_) for one in fitted])
        noise = fitted[0].event_.noise_multiplier
        gaps = (values[:components, None] - values[None, components:]) ** 2
        formula.append([min(1.0, math.sqrt(float((noise**2 / 2 / gaps).sum()) / components))])
    found = {"PCA": models, "first order: sqrt(sum sigma^2 / 2 gap^2 / k)": formula}
    found |= peer("pca", {"x": x, "true": true}, seeds, components=components)
    show("Adult's 5 numbers, 2 components: distance of subspaces, in [0, 1]", found, 1.0)


def run(words: Sequence[str] | None = None) -> None:
    """Measure what ``words`` ask for.

    Args:
        words: Of the command line; the usual if None.
    """
    global EPSILONS
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", default="adult", choices=["adult", "regression", "more", "pca"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument("--alone", action="store_true", help="leave the peer and scikit-learn out")
    chosen = parser.parse_args([] if words is None else words)
    warnings.simplefilter("ignore")
    EPSILONS = tuple(float(one) for one in chosen.epsilons.split(","))
    if chosen.what == "adult":
        classify("Adult", adult(), chosen.models.split(","), chosen.seeds, alone=chosen.alone)
    elif chosen.what == "regression":
        models = ("LinearRegression", "LinearRegression:functional", "Ridge", "BoostedRegressor")
        regress("Hospital payments, thousands of dollars", hospital(), (0, 20), models, chosen.seeds)
    elif chosen.what == "more":
        for name in ("breast_cancer", "wine"):
            classify(name, small(name), chosen.models.split(","), chosen.seeds)
        regress("diabetes", small("diabetes"), (0, 400), ("LinearRegression", "BoostedRegressor"), chosen.seeds)
    else:
        subspaces(chosen.seeds)


if __name__ == "__main__":
    import sys

    run(sys.argv[1:])
