"""Which charts the facts give: a function takes runs and returns a chart, or nothing where there are no facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from sordina.auditing.scores import lower_rate, upper_rate
from sordina.reports import words
from sordina.reports.bars import Bar, Bars
from sordina.reports.facts import Attack, Run
from sordina.reports.odds import most_found
from sordina.reports.svg import STYLES, Axis, Chart, Series, thinned
from sordina.types import format_down, format_up

_DENSE = 160
_RISK = 0.025


def budget(runs: Sequence[Run]) -> Chart | None:
    """Epsilon spent, step by step."""
    series = _lines([run for run in runs if run.private], "epsilon", among=runs)
    ends = ", ".join(f"{line.name} ends at {format_up(line.points[-1][1])}" for line in series)
    return _chart(
        "Budget over time", f"The epsilon spent grows with every step: {ends}.",
        Axis(_unit(runs)), Axis("ε spent", low=0.0, up=True), series,
    )  # fmt: skip


def accuracy(runs: Sequence[Run]) -> Chart | None:
    """Share of right answers on validation data."""
    series = _lines(runs, "accuracy")
    ends = ", ".join(f"{line.name} {line.points[-1][1]:.1%}" for line in series)
    axes = Axis(_unit(runs)), Axis("accuracy on validation data", percent=True, low=0.0, high=1.0)
    return _chart("Utility: accuracy", f"Right answers at the end: {ends}.", *axes, series)


def loss(runs: Sequence[Run]) -> Chart | None:
    """Validation loss, for runs that have no accuracy."""
    series = _lines([run for run in runs if run.accuracy is None], "loss", among=runs)
    ends = ", ".join(f"{run.name} {run.loss:.3g}" for run in runs if run.accuracy is None and run.loss is not None)
    log = bool(series) and all(y > 0 for line in series for _, y in line.points)
    axes = Axis(_unit(runs)), Axis("loss on validation data (lower is better)", log=log)
    return _chart("Utility: loss", f"Loss of the models that were kept: {ends}.", *axes, series)


def threshold(runs: Sequence[Run]) -> Chart | None:
    """The clipping threshold, where clipping happened."""
    series = _lines([run for run in runs if run.private], "threshold", among=runs)
    moves = ", ".join(f"{line.name} {_move(line)}" for line in series)
    axes = Axis(_unit(runs)), Axis("clipping threshold C (gradient norm)", log=True)
    return _chart("Clipping threshold", f"What is clipped, and hence how much noise there is: {moves}.", *axes, series)


def roc(run: Run) -> Chart | None:
    """The attacks' ROC curves on log axes, with chance and what the claim allows at most."""
    curves = [attack for attack in run.attacks if attack.fpr]
    if not curves:
        return None
    floor = 10.0 ** math.floor(math.log10(1 / max(attack.non_members for attack in curves)) + 1e-9)
    grid = [floor ** (1 - index / 60) for index in range(61)]
    series = [_curve(attack, index % STYLES, floor) for index, attack in enumerate(curves)]
    series.append(Series("guessing", tuple((x, x) for x in grid), reference=True))
    claim = run.claim
    if run.private and claim.epsilon is not None and claim.trust == "central":
        allowed = tuple((x, most_found(claim.epsilon, claim.delta or 0.0, x)) for x in grid)
        series.append(Series(f"most that ε = {format_up(claim.epsilon)} allows", allowed, 1, reference=True))
    axes = [Axis(f"{which} positive rate", log=True, percent=True, low=floor, high=1.0) for which in ("false", "true")]
    best = max(curves, key=lambda attack: attack.auc.value if attack.auc else 0.0)
    area = f" Area under the curve of {best.name}: {best.auc.value:.3f}." if best.auc else ""
    summary = f"Right against wrong accusations of membership; bands are pointwise 95 % intervals.{area}"
    return Chart(f"Membership attacks on {run.name}", summary, axes[0], axes[1], tuple(series))


def measured(runs: Sequence[Run]) -> Bars | None:
    """The epsilon that attacks prove, against the one that was claimed."""
    bars = []
    for index, run in enumerate(runs):
        claimed = run.claim.epsilon if run.private and run.claim.epsilon is not None else math.inf
        for attack in run.attacks:
            says = "no privacy claimed" if math.isinf(claimed) else f"claimed ε = {format_up(claimed)}"
            told = f"{run.name}, {attack.name}: measured ε ≥ {format_down(attack.measured)}; {says}"
            bars.append(Bar(f"{run.name} · {attack.name}", attack.measured, index % STYLES, claimed, told))
    if not bars:
        return None
    found = [f"{run.name} {words.proven(run.measured)}" for run in runs if run.measured is not None]
    summary = f"The most that attacks prove: {'; '.join(found)}."
    return Bars("Measured against claimed ε", summary, Axis("ε: bar = measured at least, mark = claimed"), tuple(bars))


def release(run: Run) -> Chart | None:
    """The curves of an attack on a release."""
    found = run.release
    if found is None or not found.curves:
        return None
    series = [
        Series(label, tuple(zip(x, y, strict=True)), index % STYLES, reference=label == "guessing")
        for index, (label, x, y) in enumerate(found.curves)
    ]
    return _chart(found.title, found.verdict, Axis(found.x, log=found.log_x), Axis(found.y), series)


def leakage(run: Run, bins: int = 8) -> Bars | None:
    """How many clients leaked how much."""
    if not run.leakage:
        return None
    low, high = min(run.leakage), max(run.leakage)
    edges = sorted(set(run.leakage))
    if len(edges) > bins:
        counts = [0] * bins
        for value in run.leakage:
            counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
        width = (high - low) / bins
        labels = [
            f"{format_down(low + width * index)} to {format_up(low + width * (index + 1))}" for index in range(bins)
        ]
    else:
        counts = [run.leakage.count(edge) for edge in edges]
        labels = [format_up(edge) for edge in edges]
    total = len(run.leakage)
    bars = tuple(
        Bar(f"leaked {label}", count, 0, words=f"{count} of {total} clients leaked {label}")
        for label, count in zip(labels, counts, strict=True)
    )
    summary = f"{total} clients; the most leaked by one is {format_up(high)}."
    return Bars(f"Clients' leakage in {run.name}", summary, Axis("number of clients"), bars)


def fairness(run: Run) -> Bars | None:
    """Rates, group by group."""
    if run.fairness is None:
        return None
    rates = (
        ("gets the positive decision", "selection_rate"),
        ("right when positive is due", "true_positive_rate"),
        ("positive by mistake", "false_positive_rate"),
        ("decided rightly", "accuracy"),
    )
    bars = tuple(
        Bar(f"{group.name}: {rate}", value, index % STYLES)
        for rate, name in rates
        for index, group in enumerate(run.fairness.groups)
        if (value := getattr(group, name)) is not None
    )
    axis = Axis("share of the group", percent=True, high=1.0)
    return Bars(f"Fairness of {run.name}", "Rates of decisions by group.", axis, bars) if bars else None


def _lines(runs: Sequence[Run], fact: str, *, among: Sequence[Run] | None = None) -> list[Series]:
    """One line per run that knows ``fact``; a run keeps its style in every chart."""
    everybody = list(among or runs)
    series = []
    for run in runs:
        values = [(moment.step, getattr(moment, fact)) for moment in run.history]
        points = [(float(step), value) for step, value in values if value is not None]
        if points:
            series.append(Series(run.name, tuple(points), everybody.index(run) % STYLES))
    return series


def _move(line: Series) -> str:
    first, last = line.points[0][1], line.points[-1][1]
    return f"stays at {last:.3g}" if first == last else f"goes from {first:.3g} to {last:.3g}"


def _chart(title: str, summary: str, x: Axis, y: Axis, series: list[Series]) -> Chart | None:
    return Chart(title, summary, x, y, tuple(series)) if series else None


def _unit(runs: Sequence[Run]) -> str:
    kinds = {run.kind for run in runs if run.history}
    return "round" if kinds == {"federate"} else "step" if "federate" not in kinds else "step or round"


def _curve(attack: Attack, style: int, floor: float) -> Series:
    """The curve from its first point at or above ``floor``, with Clopper-Pearson intervals of the TPR."""
    pairs = list(zip(attack.fpr, attack.tpr, strict=True))
    below = max((tpr for fpr, tpr in pairs if fpr <= floor), default=0.0)
    points = thinned([(floor, below), *((fpr, tpr) for fpr, tpr in pairs if fpr > floor)], _DENSE)
    hits = [round(tpr * attack.members) for _, tpr in points]
    band = [
        (fpr, _lower(hit, attack.members), _upper(hit, attack.members))
        for (fpr, _), hit in zip(points, hits, strict=True)
    ]
    return Series(attack.name, tuple(points), style, tuple(band))


@lru_cache(maxsize=4096)
def _lower(hits: int, trials: int) -> float:
    return lower_rate(hits, trials, _RISK)


@lru_cache(maxsize=4096)
def _upper(hits: int, trials: int) -> float:
    return upper_rate(hits, trials, _RISK)
