"""Chapter 3 of 000: four ways to search, each at the budget of its whole grid (tables 3.8 to 3.13 and their figures).

The thesis's protocol, named as such in every output: runs are composed, configurations and checkpoints are chosen on
the test set every 50 steps, and repetitions by seed are not paid for. What is ours is the accountant (PLD instead
of RDP), Poisson sampling (errata 3), and with the strategy `online` the improved rule (`online-as-in-thesis` is the
printed one).
"""

from __future__ import annotations

from typing import Any

from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Curve, Findings, Panel, Value
from sordina.tuning.compare import Comparison, Entry, Plan, compare
from sordina.tuning.live import live_table
from sordina.tuning.selection import Kind, Selection
from sordina.tuning.strategies import named
from sordina.tuning.task import Named


def table(job: Job) -> Findings:
    """All strategies at all epsilons of the scale."""
    given = job.settings
    task = Named(
        given["dataset"], given.get("model"), given["batch_size"], given["epochs"],
        rows=given.get("rows"), test_rows=given.get("test_rows"),
    )  # fmt: skip
    plan = Plan(
        task, given["strategies"], given["epsilons"], given["delta"], given["granularity"],
        cells=given.get("cells", {}), selection=Selection(Kind.TEST_SET), method="composition", seeds=given["seeds"],
        seed=given.get("seed", 0), validate_every=given["validate_every"], workers=job.workers,
    )  # fmt: skip
    found = compare(plan, job.folder, resume=job.resume, watch=live_table if job.show else None)
    scale, unit = (100.0, "accuracy, %") if found.entries[0].metric == "accuracy" else (100.0, "MSE x 100")
    values = [_value(job, entry, scale) for entry in found.entries]
    cut = "" if task.rows is None else f", the first {task.rows} training rows of it"
    return Findings(task.data().source + cut, values, [_panel(job, found, scale, unit)], _remarks(job, found))


def _reference(job: Job, strategy: str, epsilon: float) -> dict[str, Any]:
    """What the thesis reports; the printed rule is what it calls Online, whichever of the two ran."""
    wanted = "online" if strategy == "online-as-in-thesis" else strategy
    rows = [row for row in job.reference if row["strategy"] == wanted and row["epsilon"] == epsilon]
    return rows[0] if rows else {}


def _value(job: Job, entry: Entry, scale: float) -> Value:
    reference = _reference(job, entry.strategy, entry.epsilon)
    found = entry.outcome
    configuration = ", ".join(f"{name} = {value:.4g}" for name, value in found.configuration.items())
    stopped = sum(run.stopped is not None for run in found.runs)
    parts = [configuration, f"noise {found.scheme.noise_multiplier:.3f}, {found.candidates} runs paid for"]
    made = len(found.runs) // found.repetitions
    if made < found.candidates:
        parts.append(f"{made} of them made")
    if found.repetitions > 1:
        parts.append(f"{found.repetitions} seeds")
    if stopped:
        parts.append(f"{stopped} stopped early")
    if "best" in reference:
        parts.append(f"theirs: {reference['best']}")
    return Value(
        {"epsilon": f"{entry.epsilon:g}", "strategy": named(entry.strategy).title},
        scale * entry.utility,
        None if found.spread is None else scale * found.spread,
        reference.get("value"),
        reference.get("spread"),
        "; ".join(part for part in parts if part),
    )


def _panel(job: Job, found: Comparison, scale: float, unit: str) -> Panel:
    curves = []
    for strategy in dict.fromkeys(entry.strategy for entry in found.entries):
        mine = [entry for entry in found.entries if entry.strategy == strategy]
        title = named(strategy).title
        spreads = [scale * (entry.outcome.spread or 0.0) for entry in mine]
        curves.append(
            Curve(title, [entry.epsilon for entry in mine], [scale * entry.utility for entry in mine], spreads)
        )
        theirs = sorted((row["epsilon"], row["value"]) for row in job.reference if row["strategy"] == strategy)
        if theirs:
            x, y = zip(*theirs, strict=True)
            curves.append(Curve(title, x, y, reference=True))
    return Panel(job.experiment.title, "epsilon of the whole search", unit, curves)


def _remarks(job: Job, found: Comparison) -> list[str]:
    given = job.settings
    remarks = [
        f"Selection: {found.selection.label}.",
        f"{given['seeds']} seed(s), {given['epochs']:g} epochs, batch {given['batch_size']}, delta {given['delta']:g}, "
        f"k = {given['granularity']}.",
    ]
    if given.get("cells"):
        remarks.append(
            "Noise is that of the whole grids, but of "
            + ", ".join(named(name).title for name in given["cells"])
            + " only the points that the thesis found best, and neighbours, were trained."
        )
    if job.scale == "smoke":
        remarks.append("Smoke: shows that everything runs; these numbers mean nothing.")
    return [*remarks, *given.get("remarks", [])]
