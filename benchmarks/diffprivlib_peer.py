"""diffprivlib on the rows of `benchmarks.tables`; runs in an environment of its own, without Sordina."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np


def classification(rows: Any, task: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Accuracy of logistic regression, naive Bayes and a forest."""
    from diffprivlib import models

    width, norm = rows["x"].shape[1], float(np.linalg.norm(rows["x"], axis=1).max())
    bounds = (np.zeros(width), np.ones(width))
    makers = {
        "LogisticRegression": lambda e, s: models.LogisticRegression(
            epsilon=e, data_norm=norm, max_iter=1000, random_state=s
        ),
        "GaussianNB": lambda e, s: models.GaussianNB(epsilon=e, bounds=bounds, random_state=s),
        "RandomForestClassifier": lambda e, s: models.RandomForestClassifier(
            epsilon=e, bounds=bounds, classes=np.unique(rows["y"]), random_state=s
        ),
    }
    return {
        name: [
            [
                float(make(e, s).fit(rows["x"], rows["y"]).score(rows["x_test"], rows["y_test"]))
                for s in range(task["seeds"])
            ]
            for e in task["epsilons"]
        ]
        for name, make in makers.items()
    }


def regression(rows: Any, task: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Excess RMSE of linear regression."""
    from diffprivlib.models import LinearRegression

    width = rows["x"].shape[1]
    bounds = (np.zeros(width), np.ones(width))

    def excess(e: float, s: int) -> float:
        model = LinearRegression(epsilon=e, bounds_X=bounds, bounds_y=tuple(task["target_bounds"]), random_state=s)
        model.fit(rows["x"], rows["y"])
        return float(np.sqrt(np.mean((model.predict(rows["x_test"]) - rows["y_test"]) ** 2))) - task["plain"]

    return {"LinearRegression": [[excess(e, s) for s in range(task["seeds"])] for e in task["epsilons"]]}


def pca(rows: Any, task: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Distance of subspaces."""
    from diffprivlib.models import PCA

    true, count = rows["true"], task["components"]

    def distance(e: float, s: int) -> float:
        found = PCA(count, epsilon=e, data_norm=1.0, centered=True, random_state=s).fit(rows["x"]).components_
        return float(np.linalg.norm(found.T @ found - true @ true.T) / np.sqrt(2 * count))

    return {"PCA": [[distance(e, s) for s in range(task["seeds"])] for e in task["epsilons"]]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = json.loads(sys.argv[2])
    todo = {"classification": classification, "regression": regression, "pca": pca}[chosen["what"]]
    print(json.dumps(todo(np.load(sys.argv[1]), chosen)))
