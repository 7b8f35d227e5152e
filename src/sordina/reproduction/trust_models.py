"""Models of trust: 002's histogram central, shuffled and local; gossip by distance, walks by the number of parties."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sordina.accounting import Gaussian, Repeated, noise_multiplier
from sordina.federated.decentralized.gossip import GossipPlan, pair_losses, revised_bound, sum_over_messages
from sordina.federated.decentralized.graphs import named
from sordina.federated.decentralized.lattice import effective
from sordina.federated.decentralized.walk import walk_noise
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


# What the course shows of learning without a server: gossip by distance, walks by the number of parties.

NOTICED = 1e-3
"""Smaller losses, in units of local privacy's, are not compared."""


def muffliato(job: Job) -> ExperimentFindings:
    """Privacy loss by distance in several graphs: exact, and the two published bounds."""
    given = job.settings
    values, curves, errors = [], [], []
    for name, rounds in given["graphs"].items():
        plan = GossipPlan(named(name, given["parties"], np.random.default_rng(0)), rounds)
        observers = list(range(0, given["parties"], max(1, given["parties"] // given["observers"])))
        exact, summed = pair_losses(plan, observers), sum_over_messages(plan, observers)
        bound = revised_bound(plan, observers)
        distances = np.stack([plan.graph.distances(one) for one in observers])
        away = np.unique(distances[distances > 0])
        means = [float(exact[distances == d].mean()) for d in away]
        bounds = [float(bound[distances == d].mean()) for d in away]
        curves += [
            PlottedCurve(name, away.tolist(), means),
            PlottedCurve(f"{name}, published", away.tolist(), bounds, reference=True),
        ]
        others = distances > 0
        counted = (1 + 1e-6) / effective(1.0) ** 2  # an account counts a little less noise than is drawn
        above = others & (exact > summed * counted) & (exact > NOTICED)
        beyond = others & (exact > bound * counted)
        note = (
            f"{rounds} rounds; exact is above the revised bound for {beyond.sum() / others.sum():.1%} of pairs, above "
            f"the conference's for {above.sum() / others.sum():.1%}, whose mean is {float(summed[others].mean()):.3g}"
        )
        what = {"graph": name, "quantity": "mean loss over pairs / local privacy's"}
        values.append(Value(what, float(exact[others].mean()), None, float(bound[others].mean()), note=note))
        what = {"graph": name, "quantity": f"largest exact / sum over messages, of losses above {NOTICED:g}"}
        loud = others & (exact > NOTICED)
        values.append(Value(what, float((exact[loud] / summed[loud]).max())))
        errors.append(PlottedCurve(name, list(range(rounds + 1)), [plan.error(k) for k in range(rounds + 1)]))
    panels = [
        Panel("Privacy loss by distance", "distance", "mu^2 sigma^2 / S^2", curves, log_y=True),
        Panel("Error of a party's estimate", "rounds", "mean squared error / sigma^2", errors, log_y=True),
    ]
    remarks = [
        "Losses are mu^2 at noise and sensitivity 1: local privacy is 1. Messages carry noise of a fiftieth of sigma.",
        "Published: the revised theorem of Cyffers et al. (as Bellet et al. 2025 compute it), at most local privacy's; "
        "exact losses are below it here. The conference's sum over single messages is no bound, as messages share "
        "noises: the share of pairs above it is in the notes. Neither holds for every graph (see gossip.py).",
    ]
    return ExperimentFindings(f"{given['parties']} parties, no data", values, panels, [*remarks, *job.caveats])


def random_walk(job: Job) -> ExperimentFindings:
    """Noise against local privacy by the number of parties."""
    given = job.settings
    budget, contributions = Budget(given["epsilon"], given["delta"]), given["contributions"]
    local = noise_multiplier(lambda x: Repeated(Gaussian(x), contributions), budget)
    values, gains, trends = [], [], []
    for n in given["parties"]:
        noise = walk_noise(budget, n, contributions).noise_multiplier
        gains.append(local / noise)
        trends.append(math.sqrt(n) / math.log(n))
        what = {"parties": str(n), "quantity": "noise of local privacy / noise of the walk"}
        values.append(Value(what, gains[-1], None, trends[-1], note=f"noise multiplier {noise:.4g}, local {local:.4g}"))
    curves = [
        PlottedCurve("ours", given["parties"], gains),
        PlottedCurve("sqrt(n) / ln(n)", given["parties"], trends, reference=True),
    ]
    panel = Panel("Random walk on the complete graph", "parties n", "gain over local privacy", curves, True, True)
    remark = f"{contributions:,} contributions of each party, epsilon {budget.epsilon:g}, delta {budget.delta:g}."
    return ExperimentFindings(
        "accounting only", values, [panel], [remark, "The reference is a rate: its constant is open."]
    )
