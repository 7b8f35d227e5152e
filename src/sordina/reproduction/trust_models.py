"""Section 6 of 002: the same histogram in the central, the shuffled and the local model, at the same epsilon."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sordina.mechanisms import DiscreteLaplace
from sordina.privacy import Adjacency, Budget
from sordina.random import seeded
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.statistics.local import Frequency
from sordina.statistics.shuffle import shuffled_frequency

Histogram = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def histogram_in_three_models(job: Job) -> ExperimentFindings:
    """Root mean squared error of a share against the number of people, and the slopes on log axes."""
    given = job.settings
    sizes, values, budget = given["people"], given["values"], Budget(given["epsilon"], given["delta"])
    errors: dict[str, list[float]] = {"central": [], "shuffled": [], "local": []}
    notes: dict[str, str] = {}
    for people in sizes:
        rng = seeded(given["seed"] + people)
        weights = 1.0 / np.arange(1, values + 1)
        held = rng.choice(values, size=people, p=weights / weights.sum())
        for name, release in _models(people, values, budget, notes).items():
            errors[name].append(_error(release, held, values, given["repeats"], rng))
    rows = [
        Value({"model": name, "people": f"{people:,}"}, error, note=notes.get(f"{name} {people}", ""))
        for name, found in errors.items()
        for people, error in zip(sizes, found, strict=True)
    ]
    expected = {"central": -1.0, "local": -0.5}
    slopes = {name: float(np.polyfit(np.log(sizes), np.log(found), 1)[0]) for name, found in errors.items()}
    rows += [
        Value({"model": name, "people": "slope"}, slope, reference=expected.get(name), note="log error against log n")
        for name, slope in slopes.items()
    ]
    panel = Panel(
        f"A histogram of {values} values at epsilon {budget.epsilon:g}", "people", "error of a share",
        [PlottedCurve(name, sizes, found) for name, found in errors.items()], log_x=True, log_y=True,
    )  # fmt: skip
    remarks = [
        f"All at ({budget.epsilon:g}, {budget.delta:g})-DP with replace-one neighbours; central and local at delta 0.",
        "Central: discrete Laplace noise on counts. Shuffled and local: the protocol of least error.",
        "002 states error of order 1/n centrally and 1/sqrt(n) locally, and the shuffled model in between: ours is in "
        "between in size, and falls nearly as fast as the central one: the more people, the less each has to lie.",
    ]
    return ExperimentFindings("people drawn from Zipf's law", rows, [panel], [*remarks, *job.caveats])


def _models(people: int, values: int, budget: Budget, notes: dict[str, str]) -> dict[str, Histogram]:
    """The three releases; each from what people hold to shares."""
    central = DiscreteLaplace(2, budget.epsilon, Adjacency.REPLACE_ONE)
    shuffled, local = shuffled_frequency(values, people, budget), Frequency(values, budget.epsilon)
    notes[f"shuffled {people}"] = f"{shuffled.protocol.name}, epsilon {shuffled.protocol.epsilon:.2f} an answer"
    notes[f"local {people}"] = local.name
    return {
        "central": lambda held, rng: central.release(np.bincount(held, minlength=values), rng) / people,
        "shuffled": lambda held, rng: shuffled.estimate(shuffled.randomize(held, rng)).values,
        "local": lambda held, rng: local.estimate(local.randomize(held, rng)).values,
    }


def _error(release: Histogram, held: np.ndarray, values: int, repeats: int, rng: np.random.Generator) -> float:
    true = np.bincount(held, minlength=values) / len(held)
    squares = [np.mean((release(held, rng) - true) ** 2) for _ in range(repeats)]
    return float(np.sqrt(np.mean(squares)))
