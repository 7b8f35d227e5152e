"""How much noise each run of a grid needs, by method: what the tightest accountant and random stopping are worth."""

from __future__ import annotations

import math
from collections.abc import Callable

from sordina.accounting import Event, Repeated, noise_multiplier
from sordina.accounting.stopping import stopping
from sordina.reproduction.experiment import Job
from sordina.reproduction.findings import Curve, Findings, Panel, Value
from sordina.sampling import Poisson
from sordina.tuning.scheme import Schedule, chance_tried
from sordina.types import Budget

LAWS = {"logarithmic": 0.0, "geometric": 1.0, "Poisson": math.inf}


def table(job: Job) -> Findings:
    """The noise multiplier per run for several numbers of runs K at one budget, selection not included."""
    given = job.settings
    schedule = Schedule(Poisson(given["batch_size"], given["population"]), given["steps"])
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
        curves[name] = Curve(name, given["runs"], noises)
    panel = Panel("Noise per run", "runs K", "noise multiplier", list(curves.values()), log_x=True, log_y=True)
    remark = (
        f"{given['steps']} steps at batch {given['batch_size']} of {given['population']}, epsilon {budget.epsilon:g}, "
        f"delta {budget.delta:g}; with random stopping K is the mean. The choice of the best comes on top."
    )
    return Findings("none: accounting only", sorted(values, key=_by_runs), [panel], [remark])


def _event(name: str, schedule: Schedule, runs: int) -> Callable[[float], Event]:
    if name.startswith("composition"):
        return lambda noise: Repeated(schedule.event(noise), runs)
    return lambda noise: stopping(schedule.event(noise), runs, LAWS[name.partition(", ")[2]])


def _judge(name: str) -> str:
    return {"composition, RDP": "rdp", "composition, basic": "basic"}.get(name, "pld")


def _by_runs(value: Value) -> int:
    return int(value.what["K"])
