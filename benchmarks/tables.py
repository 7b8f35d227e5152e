"""Private estimators on Adult, from its CSV with a schema: test accuracy against epsilon."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sordina import estimators
from sordina.tables import Prepare, Schema
from sordina.types import Budget

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
SEEDS = 2


def run() -> None:
    import pandas

    folder = Path(os.environ["SORDINA_DATA"]) / "adult"
    parts = {name: pandas.read_csv(folder / f"{name}.csv.gz") for name in ("train", "test")}
    columns = {
        name: {"kind": "number", "low": low, "high": high, "scale": scale, "optional": False}
        for name, (low, high, scale) in NUMBERS.items()
    } | {name: {"kind": "category", "values": sorted(set(parts["train"][name]) - {"?"})} for name in CATEGORIES}
    prepare = Prepare(Schema.load({"columns": columns})).set_output(transform="pandas")
    rows = {name: prepare.fit_transform(part) for name, part in parts.items()}
    labels = {name: (part["income"] == ">50K").to_numpy(int) for name, part in parts.items()}
    table = Table("model", *(f"{epsilon:g}" for epsilon in EPSILONS))
    warnings.simplefilter("ignore", estimators.UnbookedFits)
    for name in MODELS:
        found = []
        for epsilon in EPSILONS:
            scores = [
                getattr(estimators, name)(Budget(epsilon, 1e-5), bounds=(0, 1), random_state=seed)
                .fit(rows["train"], labels["train"])
                .score(rows["test"], labels["test"])
                for seed in range(SEEDS)
            ]
            found.append(f"{100 * np.mean(scores):.1f}")
        table.add_row(name, *found)
    Console().print(table)


if __name__ == "__main__":
    run()
