"""The promise of the product: Online with nothing tuned, from thresholds far apart, against a grid of Fixed runs.

Every run has the budget of a single run and is judged by the model it ends with: the grid gets its search for free.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sordina.clipping import Fixed, Online
from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Curve, Findings, Panel, Value
from sordina.training import AutomaticRate
from sordina.training.own_loop import make_schedule
from sordina.tuning.run import Brief, Order, Result, finished
from sordina.tuning.scheme import Schedule, make_scheme
from sordina.tuning.selection import Kind, Selection
from sordina.tuning.space import Configuration
from sordina.tuning.strategies import named
from sordina.tuning.task import Named
from sordina.tuning.workers import carry_out
from sordina.types import Budget


def fields(configuration: Configuration) -> dict[str, Any]:
    """``C0`` starts Online with nothing else to say; rho and C are a Fixed run, rho alone is Online as printed."""
    if "C0" in configuration:
        return {"clipping": Online(configuration["C0"]), "learning_rate": AutomaticRate()}
    if "C" in configuration:
        return {"clipping": Fixed(configuration["C"]), "lr": configuration["rho"]}
    return named("online-as-in-thesis").fields(configuration)


def table(job: Job) -> Findings:
    """Test accuracy at the end of every run, the best Fixed run of the grid, and what Online lacks of it."""
    given = job.settings
    task = Named(
        given["dataset"], given.get("model"), given["batch_size"], given["epochs"],
        rows=given.get("rows"), test_rows=given.get("test_rows"),
    )  # fmt: skip
    grid = given.get("cells") or named("fixed-threshold").grid(given["granularity"]).configurations()
    asked = [{"C0": start} for start in given["starts"]] + [{"rho": rate} for rate in given["printed"]] + grid
    noise, steps = _noise(task, Budget(given["epsilon"], given["delta"]))
    brief = Brief(
        task.trainer, fields, Budget(given["epsilon"], given["delta"]), noise, "pld", Selection(Kind.TEST_SET),
        job.folder / "runs", validate_every=steps,
    )  # fmt: skip
    orders = [Order(number, one, seed=given["seed"]) for number, one in enumerate(asked)]
    left = [[order] for order in orders if finished(brief.place(order)) is None]
    carry_out(brief, left, task.source, job.workers)
    results = [result for order in orders if (result := finished(brief.place(order)))]
    return Findings(
        task.data().source, _values(brief, orders, results), [_panel(results)], _remarks(job, noise, steps, results)
    )


def _noise(task: Named, budget: Budget) -> tuple[float, int]:
    one = task.trainer(0)
    sampler, steps = make_schedule(
        len(task.data().train), batch_size=one.batch_size, epochs=one.epochs, steps=one.steps,
        sampling=one.sampling, population=one.population,
    )  # fmt: skip
    scheme = make_scheme([Schedule(sampler, steps)], budget, Selection(Kind.TEST_SET), method="composition")
    return scheme.noise_multiplier, steps


def _values(brief: Brief, orders: list[Order], results: list[Result]) -> list[Value]:
    best = max((result.score or 0.0 for result in results if "C" in result.configuration), default=0.0)
    values = [Value({"run": "Fixed, the best of the grid"}, 100 * best)]
    for order, result in zip(orders, results, strict=True):
        kind = "Online" if "C0" in order.configuration else "Fixed" if "C" in order.configuration else "Online, printed"
        setting = ", ".join(f"{name} = {value:.4g}" for name, value in order.configuration.items())
        note = f"{100 * ((result.score or 0.0) - best):+.2f} points from the best Fixed run"
        if kind != "Fixed":
            note += f"; the threshold ends at {_last_threshold(brief.place(order)):.3g}"
        score = None if result.score is None else 100 * result.score
        values.append(Value({"run": f"{kind}: {setting}"}, score, note=result.stopped or note))
    return values


def _last_threshold(folder: Path) -> float:
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return float(next(entry["threshold"] for entry in reversed(entries) if "threshold" in entry))


def _panel(results: list[Result]) -> Panel:
    curves = []
    for rate in sorted({result.configuration["rho"] for result in results if "C" in result.configuration}):
        mine = [one for one in results if one.configuration.get("rho") == rate and "C" in one.configuration]
        points = [(one.configuration["C"], 100 * (one.score or 0.0)) for one in mine]
        curves.append(Curve(f"Fixed, rate {rate:.3g}", [x for x, _ in points], [y for _, y in points]))
    online = [(one.configuration["C0"], 100 * (one.score or 0.0)) for one in results if "C0" in one.configuration]
    curves.append(Curve("Online, from C0", [x for x, _ in sorted(online)], [y for _, y in sorted(online)]))
    return Panel("One run at one budget", "threshold C, or C0", "test accuracy, %", curves, log_x=True)


def _remarks(job: Job, noise: float, steps: int, results: list[Result]) -> list[str]:
    given = job.settings
    stopped = sum(result.stopped is not None for result in results)
    return [
        f"Every run by itself at epsilon {given['epsilon']:g}, delta {given['delta']:g}: {steps} steps of batch "
        f"{given['batch_size']}, noise multiplier {noise:.4f}, seed {given['seed']}; the choice is not paid for.",
        f"{stopped} runs ended early because their weights diverged." if stopped else "No run diverged.",
    ]
