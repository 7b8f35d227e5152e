"""Searches: 000 chapter 3 with figures 3.1 and 3.2, the promise that nothing need be tuned, the noise of a grid."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import datasets, models, random
from sordina.accounting import Event, Repeated, noise_multiplier
from sordina.accounting.stopping import stopping
from sordina.clipping import Fixed, Online
from sordina.clipping.policy import side_query
from sordina.gradients import Engine
from sordina.privacy import Budget
from sordina.queries import Tape, VectorQuery
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.sampling import Poisson
from sordina.training import AutomaticRate
from sordina.training.trainer import make_schedule
from sordina.tuning.comparison import ComparisonPlan, ComparisonRow, NamedTask, SearchComparison, compare, live_table
from sordina.tuning.parallel_runs import carry_out
from sordina.tuning.plan import TrainingSchedule, chance_tried, make_scheme
from sordina.tuning.runner import Brief, RunOrder, RunResult, finished
from sordina.tuning.selection import Selection, SelectionKind
from sordina.tuning.space import Configuration, log_spaced, named

# Chapter 3 of 000: four ways to search, each at the budget of its whole grid (tables 3.8 to 3.13 and their figures).
#
# The thesis's protocol, named as such in every output: runs are composed, configurations and checkpoints are chosen on
# the test set every 50 steps, and repetitions by seed are not paid for. What is ours is the accountant (PLD instead
# of RDP), Poisson sampling (errata 3), and with the strategy `online` the improved rule (`online-as-in-thesis` is the
# printed one).


def search_table(job: Job) -> ExperimentFindings:
    """All strategies at all epsilons of the scale."""
    given = job.settings
    task = NamedTask(
        given["dataset"], given.get("model"), given["batch_size"], given["epochs"],
        rows=given.get("rows"), test_rows=given.get("test_rows"),
    )  # fmt: skip
    plan = ComparisonPlan(
        task, given["strategies"], given["epsilons"], given["delta"], given["granularity"],
        cells=given.get("cells", {}), first=given.get("first", {}), selection=Selection(SelectionKind.TEST_SET),
        method="composition",
        seeds=given["seeds"], seed=given.get("seed", 0), validate_every=given["validate_every"],
        prune=given.get("prune"), workers=job.workers,
    )  # fmt: skip
    found = compare(plan, job.folder, resume=job.resume, watch=live_table if job.show else None)
    scale, unit = (100.0, "accuracy, %") if found.entries[0].metric == "accuracy" else (100.0, "MSE x 100")
    values = [_value(job, entry, scale) for entry in found.entries]
    cut = "" if task.rows is None else f", the first {task.rows} training rows of it"
    return ExperimentFindings(task.data().source + cut, values, [_panel(job, found, scale, unit)], _remarks(job, found))


def _reference(job: Job, strategy: str, epsilon: float) -> dict[str, Any]:
    """What the thesis reports; the printed rule is what it calls Online, whichever of the two ran."""
    wanted = "online" if strategy == "online-as-in-thesis" else strategy
    rows = [row for row in job.reference if row["strategy"] == wanted and row["epsilon"] == epsilon]
    return rows[0] if rows else {}


def _value(job: Job, entry: ComparisonRow, scale: float) -> Value:
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


def _panel(job: Job, found: SearchComparison, scale: float, unit: str) -> Panel:
    curves = []
    for strategy in dict.fromkeys(entry.strategy for entry in found.entries):
        mine = [entry for entry in found.entries if entry.strategy == strategy]
        title = named(strategy).title
        spreads = [scale * (entry.outcome.spread or 0.0) for entry in mine]
        curves.append(
            PlottedCurve(title, [entry.epsilon for entry in mine], [scale * entry.utility for entry in mine], spreads)
        )
        theirs = sorted((row["epsilon"], row["value"]) for row in job.reference if row["strategy"] == strategy)
        if theirs:
            x, y = zip(*theirs, strict=True)
            curves.append(PlottedCurve(title, x, y, reference=True))
    return Panel(job.experiment.title, "epsilon of the whole search", unit, curves)


def _remarks(job: Job, found: SearchComparison) -> list[str]:
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
    if given.get("prune") is not None:
        remarks.append(
            f"Runs that were behind {given['prune']:.0%} of the others at the same validation were ended there; they "
            "are paid for in full. Searches begin at points that the thesis, or runs before, found good."
        )
    if job.scale == "smoke":
        remarks.append("Smoke: shows that everything runs; these numbers mean nothing.")
    return [*remarks, *given.get("remarks", [])]


# The promise of the product: Online with nothing tuned, from thresholds far apart, against a grid of Fixed runs.
#
# Every run has the budget of a single run and is judged by the model it ends with: the grid gets its search for free.


def fields(configuration: Configuration) -> dict[str, Any]:
    """``C0`` starts Online with nothing else to say; rho and C are a Fixed run, rho alone is Online as printed."""
    if "C0" in configuration:
        return {"clipping": Online(configuration["C0"]), "learning_rate": AutomaticRate()}
    if "C" in configuration:
        return {"clipping": Fixed(configuration["C"]), "learning_rate": configuration["rho"]}
    return named("online-as-in-thesis").fields(configuration)


def promise_table(job: Job) -> ExperimentFindings:
    """Test accuracy at the end of every run, the best Fixed run of the grid, and what Online lacks of it."""
    given = job.settings
    task = NamedTask(
        given["dataset"], given.get("model"), given["batch_size"], given["epochs"],
        rows=given.get("rows"), test_rows=given.get("test_rows"),
    )  # fmt: skip
    grid = given.get("cells") or named("fixed-threshold").grid(given["granularity"]).configurations()
    asked = [{"C0": start} for start in given["starts"]] + [{"rho": rate} for rate in given["printed"]] + grid
    noise, steps = _noise(task, Budget(given["epsilon"], given["delta"]))
    brief = Brief(
        task.trainer, fields, Budget(given["epsilon"], given["delta"]), noise, "pld", Selection(SelectionKind.TEST_SET),
        job.folder / "runs", validate_every=steps,
    )  # fmt: skip
    orders = [RunOrder(number, one, seed=given["seed"]) for number, one in enumerate(asked)]
    left = [[order] for order in orders if finished(brief.place(order)) is None]
    carry_out(brief, left, task.source, job.workers)
    results = [result for order in orders if (result := finished(brief.place(order)))]
    return ExperimentFindings(
        task.data().source,
        _values(brief, orders, results),
        [_panel_promise(results)],
        _remarks_promise(job, noise, steps, results),
    )


def _noise(task: NamedTask, budget: Budget) -> tuple[float, int]:
    one = task.trainer(0)
    sampler, steps = make_schedule(
        len(task.data().train), batch_size=one.batch_size, epochs=one.epochs, steps=one.steps,
        sampling=one.sampling, population=one.population,
    )  # fmt: skip
    scheme = make_scheme(
        [TrainingSchedule(sampler, steps)], budget, Selection(SelectionKind.TEST_SET), method="composition"
    )
    return scheme.noise_multiplier, steps


def _values(brief: Brief, orders: list[RunOrder], results: list[RunResult]) -> list[Value]:
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


def _panel_promise(results: list[RunResult]) -> Panel:
    curves = []
    for rate in sorted({result.configuration["rho"] for result in results if "C" in result.configuration}):
        mine = [one for one in results if one.configuration.get("rho") == rate and "C" in one.configuration]
        points = [(one.configuration["C"], 100 * (one.score or 0.0)) for one in mine]
        curves.append(PlottedCurve(f"Fixed, rate {rate:.3g}", [x for x, _ in points], [y for _, y in points]))
    online = [(one.configuration["C0"], 100 * (one.score or 0.0)) for one in results if "C0" in one.configuration]
    curves.append(PlottedCurve("Online, from C0", [x for x, _ in sorted(online)], [y for _, y in sorted(online)]))
    return Panel("One run at one budget", "threshold C, or C0", "test accuracy, %", curves, log_x=True)


def _remarks_promise(job: Job, noise: float, steps: int, results: list[RunResult]) -> list[str]:
    given = job.settings
    stopped = sum(result.stopped is not None for result in results)
    return [
        f"Every run by itself at epsilon {given['epsilon']:g}, delta {given['delta']:g}: {steps} steps of batch "
        f"{given['batch_size']}, noise multiplier {noise:.4f}, seed {given['seed']}; the choice is not paid for.",
        f"{stopped} runs ended early because their weights diverged." if stopped else "No run diverged.",
    ]


# How much noise each run of a grid needs, by method: what the tightest accountant and random stopping are worth.

LAWS = {"logarithmic": 0.0, "geometric": 1.0, "Poisson": math.inf}


def noise_table(job: Job) -> ExperimentFindings:
    """The noise multiplier per run for several numbers of runs K at one budget, selection not included."""
    given = job.settings
    schedule = TrainingSchedule(Poisson(given["batch_size"], given["population"]), given["steps"])
    budget = Budget(given["epsilon"], given["delta"])
    values, curves = [], {}
    for name in ("composition, basic", "composition, RDP", "composition, PLD", *(f"stopping, {law}" for law in LAWS)):
        noises = []
        for runs in given["runs"]:
            noise = noise_multiplier(_event(name, schedule, runs), budget, accountant=_judge(name))
            noises.append(noise)
            note = ""
            if name.startswith("stopping"):
                law = stopping(schedule.event(noise), runs, LAWS[name.partition(", ")[2]])
                note = f"a given configuration is tried with probability {chance_tried(law, runs):.2f}"
            values.append(Value({"K": str(runs), "method": name}, noise, note=note))
        curves[name] = PlottedCurve(name, given["runs"], noises)
    panel = Panel("Noise per run", "runs K", "noise multiplier", list(curves.values()), log_x=True, log_y=True)
    remark = (
        f"{given['steps']} steps at batch {given['batch_size']} of {given['population']}, epsilon {budget.epsilon:g}, "
        f"delta {budget.delta:g}; with random stopping K is the mean. The choice of the best comes on top."
    )
    return ExperimentFindings("none: accounting only", sorted(values, key=_by_runs), [panel], [remark])


def _event(name: str, schedule: TrainingSchedule, runs: int) -> Callable[[float], Event]:
    if name.startswith("composition"):
        return lambda noise: Repeated(schedule.event(noise), runs)
    return lambda noise: stopping(schedule.event(noise), runs, LAWS[name.partition(", ")[2]])


def _judge(name: str) -> str:
    return {"composition, RDP": "rdp", "composition, basic": "basic"}.get(name, "pld")


def _by_runs(value: Value) -> int:
    return int(value.what["K"])


# What the clipping threshold trades off: figures 3.1 and 3.2 of 000.


def cosine(job: Job) -> ExperimentFindings:
    """Figure 3.1: how well the sanitised gradient points, as a function of C, at several iterations of training.

    A network is trained by plain SGD. At the chosen steps the clipped, averaged and noised gradient of the batch is
    compared with the batch's true average gradient, over several draws of the noise.
    """
    given = job.settings
    data = datasets.load(given["dataset"])
    model = models.build_for(data, given.get("model"), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=given["learning_rate"])
    sampler = Poisson(given["batch_size"], len(data.train))
    rng = random.seeded(given.get("seed", 0))
    thresholds = log_spaced(given["lowest"], given["highest"], given["thresholds"])
    curves = []
    x, y = data.train.tensors
    for step in range(1, max(given["iterations"]) + 1):
        rows = torch.from_numpy(sampler.draw(len(x), rng))
        with Engine(model) as engine:
            losses = nn.functional.cross_entropy(model(x[rows]), y[rows], reduction="none")
            tape = engine.record(losses)
            (total,) = tape.contract([VectorQuery(torch.ones(len(rows)))])
            if step in given["iterations"]:
                means = _cosines(tape, total, thresholds, given["noise_multiplier"], given["draws"], rng)
                curves.append(PlottedCurve(f"t = {step}", thresholds, means))
            _descend(engine, optimizer, total / sampler.expected_batch_size)
    panel = Panel("Figure 3.1", "clipping threshold C", "cosine with the true gradient", curves, log_x=True)
    values = [_peak(curve) for curve in curves]
    remarks = [
        f"Noise multiplier {given['noise_multiplier']:g}, mean of {given['draws']} draws, batch {given['batch_size']}, "
        f"plain SGD at rate {given['learning_rate']:g}.",
        "The thesis shows curves without numbers and concludes that every iteration has a prominent best threshold.",
    ]
    return ExperimentFindings(data.source, values, [panel], remarks)


def _descend(engine: Engine, optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
    parts = engine.unflatten(gradient)
    for name, parameter in engine.model.named_parameters():
        parameter.grad = parts[name].view_as(parameter)
    optimizer.step()


def _cosines(
    tape: Tape, total: Tensor, thresholds: Sequence[float], noise: float, draws: int, rng: np.random.Generator
) -> list[float]:
    """``E cos(sum clip(g_i, C) + nu C z, sum g_i)`` over z; one set of draws serves all thresholds."""
    noises = torch.from_numpy(rng.standard_normal((draws, len(total)), dtype=np.float32))
    true = total / total.norm()
    along, sizes = noises @ true, noises.square().sum(1)
    means = []
    for threshold in thresholds:
        (clipped,) = tape.contract(Fixed(threshold).ask(tape.scalars(), None))
        scale = noise * threshold
        lengths = (clipped.square().sum() + 2 * scale * (noises @ clipped) + scale**2 * sizes).sqrt()
        means.append(float(((clipped @ true + scale * along) / lengths).mean()))
    return means


def _peak(curve: PlottedCurve) -> Value:
    best = int(np.argmax(curve.y))
    inside = "inside the range" if 0 < best < len(curve.y) - 1 else "at the end of the range"
    note = f"best C = {curve.x[best]:.3g}, {inside}; {curve.y[0]:.3f} at the lowest C, {curve.y[-1]:.3f} at the highest"
    return Value({"iteration": curve.label, "quantity": "largest cosine"}, float(curve.y[best]), note=note)


def pareto(job: Job) -> ExperimentFindings:
    """Figure 3.2: pairs of noise multipliers for the gradient and for its derivative that cost the same (Prop. 1)."""
    given = job.settings
    schedule = TrainingSchedule(Poisson(given["batch_size"], given["population"]), given["steps"])
    selection = Selection(SelectionKind.TEST_SET)
    curves, values = [], []
    chosen: list[tuple[float, float]] = []
    for epsilon in given["epsilons"]:
        budget = Budget(epsilon, given["delta"])
        noise = make_scheme([schedule] * given["runs"], budget, selection, method="composition").noise_multiplier
        front = [side_query(noise, inflation) for inflation in log_spaced(1e-3, 3.0, 60)]
        curves.append(PlottedCurve(f"epsilon {epsilon:g}", [one[0] for one in front], [one[1] for one in front]))
        gradient, derivative = side_query(noise, given["inflation"])
        chosen.append((gradient, derivative))
        values.append(
            Value(
                {"epsilon": f"{epsilon:g}", "quantity": "nu_q / nu at 1 % more noise on the gradient"},
                derivative / noise,
                reference=given["ratio"],
                note=f"nu = {noise:.4f}, nu_g = {gradient:.4f}, nu_q = {derivative:.4f}",
            )
        )
    x, y = zip(*sorted(chosen), strict=True)
    curves.append(PlottedCurve("chosen", x, y, reference=True))
    panel = Panel("Figure 3.2", "noise multiplier of the gradient", "of its derivative", curves, log_y=True)
    remark = (
        f"{given['runs']} runs of {given['steps']} steps at batch {given['batch_size']} of {given['population']}, "
        f"delta {given['delta']:g}, composed by PLD."
    )
    return ExperimentFindings("none: accounting only", values, [panel], [remark])
