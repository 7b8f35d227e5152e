"""Chapter 5 of 000: figure 5.4, and the experiment it leaves open, sector against ball clipping."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from sordina.clipping import Policy
from sordina.federated.experiments import bounded
from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Curve, Findings, Panel, Value
from sordina.types import Budget


def figure_5_4(job: Job) -> Findings:
    """Figure 5.4: clients' updates agree more than samples' gradients."""
    given = job.settings
    found = bounded.figure_5_4(**given["options"])
    steps = given["options"].get("steps", 5)
    curves = [
        Curve(
            "updates of 20 clients", [steps * (place + 1) for place in range(len(found["updates"]))], found["updates"]
        ),
        Curve("gradients of 20 samples", list(range(1, len(found["gradients"]) + 1)), found["gradients"]),
    ]
    values = []
    for name, cosines in found.items():
        parts = np.array_split(np.array(cosines), 3)
        for part, mean in zip(("first", "middle", "last"), map(np.mean, parts), strict=True):
            values.append(Value({"vectors": name, "third of training": part}, float(mean)))
    panel = Panel("Figure 5.4", "local steps", "mean cosine", curves)
    remarks = ["The thesis finds updates well above gradients, and falling late in training."]
    return Findings("MNIST", values, [panel], [*remarks, *job.caveats])


def sector_against_ball(job: Job) -> Findings:
    """Test accuracy at equal user-level (epsilon, delta); every arm gets the best C and rate of the same lists."""
    given = job.settings
    budget = Budget(given["epsilon"], given["delta"])
    best: dict[str, dict[str, Any]] = {}
    for threshold, rate in itertools.product(given["thresholds"], given["rates"]):
        arms: dict[str, Policy[Any]] = bounded.arms(threshold, given["angles"], given["lows"])
        options = {"server_rate": rate, **given["options"]}
        for row in bounded.utility(arms, range(given["seeds"]), budget=budget, **options):
            if row["arm"] not in best or row["mean"] > best[row["arm"]]["mean"]:
                best[row["arm"]] = row | {"threshold": threshold, "rate": rate}
    values = []
    for name, row in best.items():
        spread = float(np.std(row["accuracy"], ddof=1)) if len(row["accuracy"]) > 1 else None
        note = f"C = {row['threshold']:g}, server rate {row['rate']:g}, epsilon {row['epsilon']:.4g} per client"
        values.append(Value({"clipping": name, "quantity": "accuracy"}, row["mean"], spread, note=note))
    remarks = [
        f"All arms: ({given['epsilon']:g}, {given['delta']:g})-DP for each client; the best C of {given['thresholds']} "
        f"and server rate of {given['rates']}, chosen on the test set for every arm alike.",
        "Unbounded: Poisson samples of clients, add/remove neighbours. Bounded: samples of fixed size, replace-one.",
        "The thesis conjectures that sectors pay, and leaves it open; nothing to compare with.",
    ]
    return Findings("MNIST, dealt out to clients at random", values, (), [*remarks, *job.caveats])
