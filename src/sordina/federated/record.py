"""What a federated run leaves behind: facts as plain data, a folder, and figures after those of 000 chapter 2."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.accounting import to_dict
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.placement import Facts, PrivacyStatement
from sordina.federated.round import RoundView
from sordina.federated.setup import Finished
from sordina.privacy import Trust, delta_warning
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import METRICS, MODELS, RECIPE, RESULT, RunFolder
from sordina.training.run import versions

# The figures of a run, after those of 000 chapter 2.

_METRICS = {
    "equal_opportunity_difference": "equal opportunity",
    "equalized_odds_difference": "equalised odds",
    "demographic_parity_difference": "demographic parity",
}


def draw(finished: Finished, trace: RoundTrace, facts: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what this run has to show; returns the files."""
    files = []
    if trace.lines and any("validation_loss" in one for one in trace.lines):
        files.append(validation(trace, folder / "validation.png"))
    if trace.released and 2 <= finished.problem.objective.size <= 3:
        files.append(parameters(finished, trace, folder / "parameters.png"))
    if finished.setup.privacy.name == "metric" and trace.leakage:
        files.append(leakage(finished, trace, folder / "leakage.png"))
        files.append(histogram(finished, folder / "leakage_histogram.png"))
    if facts.get("fairness"):
        files.append(fairness({"this run": facts["fairness"]}, folder / "fairness.png"))
    return files


def _figure(columns: int = 1) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(5 * columns, 3.8), layout="constrained")
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _plot_validation(axes: Any, trace: RoundTrace) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    points = [(one["round"], one["validation_loss"]) for one in trace.lines if "validation_loss" in one]
    axes.plot(*zip(*points, strict=True))
    axes.set(xlabel="round", ylabel="validation loss", yscale="log")
    losses = [loss for _, loss in points]
    if max(losses) > 10 * min(losses):
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(ScalarFormatter())


def validation(trace: RoundTrace, path: Path) -> Path:
    """Validation loss, and accuracy if there is one."""
    accuracy = [(one["round"], one["validation_accuracy"]) for one in trace.lines if "validation_accuracy" in one]
    figure, axes = _figure(2 if accuracy else 1)
    _plot_validation(axes[0] if accuracy else axes, trace)
    if accuracy:
        axes[1].plot(*zip(*accuracy, strict=True))
        axes[1].set(xlabel="round", ylabel="validation accuracy")
    return _save(figure, path)


def parameters(finished: Finished, trace: RoundTrace, path: Path, shown: int = 5) -> Path:
    """Figure 2.1: released vectors, hypotheses and optima, early and late; and the validation loss."""
    figure, axes = _figure(3)
    count = min(shown, len(trace.released))
    spans = {"first": slice(0, count), "last": slice(-count, None)}
    optima = torch.stack([optimum[:2] for optimum in finished.problem.federation.optima or (torch.zeros(2),)])
    everything = [optima, *(one[:, :2] for one in (*trace.released[:count], *trace.released[-count:]))]
    low, high = (edge(torch.cat(everything), 0) for edge in (torch.amin, torch.amax))
    margin = 0.06 * (high - low) + 0.1
    for one, (name, span) in zip(axes[:2], spans.items(), strict=True):
        vectors, models = torch.cat(trace.released[span]), torch.cat(trace.models[span])
        one.scatter(vectors[:, 0], vectors[:, 1], s=12, alpha=0.5, label="released by clients")
        one.scatter(models[:, 0], models[:, 1], s=30, marker="s", label="hypotheses")
        if finished.problem.federation.optima:
            one.scatter(optima[:, 0], optima[:, 1], marker="*", s=160, color="black", label="optima")
        one.set(title=f"{name} {count} rounds", xlabel="first parameter", ylabel="second parameter")
        one.set(xlim=_span(low, high, margin, 0), ylim=_span(low, high, margin, 1))
    axes[0].legend(loc="best", fontsize="small")
    _plot_validation(axes[2], trace)
    return _save(figure, path)


def _span(low: torch.Tensor, high: torch.Tensor, margin: torch.Tensor, axis: int) -> tuple[float, float]:
    return float(low[axis] - margin[axis]), float(high[axis] + margin[axis])


def leakage(finished: Finished, trace: RoundTrace, path: Path) -> Path:
    """Figure 2.2: the largest leakage among the clients of each cluster, round by round."""
    table = np.stack(trace.leakage)
    clusters = finished.problem.federation.clusters
    figure, axes = _figure()
    rounds = np.arange(1, len(table) + 1)
    if clusters is None:
        axes.step(rounds, table.max(axis=1), where="post", label="largest")
        axes.step(rounds, np.median(table, axis=1), where="post", label="median")
    else:
        for cluster in sorted(set(clusters[0])):
            mine = np.array(clusters[0]) == cluster
            axes.step(rounds, table[:, mine].max(axis=1), where="post", label=f"largest, cluster {cluster + 1}")
    limit = getattr(finished.setup.privacy, "leakage_limit", None)
    if limit is not None:
        axes.axhline(limit, linestyle="--", color="black", label="limit")
    axes.set(xlabel="round", ylabel=f"leakage, radius {finished.result.statement.details['radius']}")  # type: ignore[index]
    axes.legend(fontsize="small")
    return _save(figure, path)


def histogram(finished: Finished, path: Path) -> Path:
    """Figure 2.3: how the leakage is distributed over clients."""
    figure, axes = _figure()
    values, counts = np.unique(finished.result.leakage, return_counts=True)
    each = float(finished.result.statement.details["per_participation"])  # type: ignore[index]
    axes.bar(values, counts, width=0.8 * each)
    axes.set(xlabel="leakage", ylabel=f"clients (of {len(finished.result.leakage)})", xlim=(-each, values.max() + each))
    return _save(figure, path)


def fairness(runs: dict[str, dict[str, Any]], path: Path, xlabel: str = "") -> Path:
    """Figure 2.7: the three differences; the runs side by side in groups, one group per attribute (or nu)."""
    figure, axes = _figure(3)
    groups = list(dict.fromkeys(group for reports in runs.values() for group in reports))
    width = 0.8 / len(runs)
    for one, (key, title) in zip(axes, _METRICS.items(), strict=True):
        for place, (name, reports) in enumerate(runs.items()):
            shown = [
                (at, reports[group][key])
                for at, group in enumerate(groups)
                if reports.get(group, {}).get(key) is not None
            ]
            x = [at + (place - (len(runs) - 1) / 2) * width for at, _ in shown]
            bars = one.bar(x, [value for _, value in shown], 0.95 * width, label=name)
            one.bar_label(bars, fmt="%.2g", fontsize="x-small")
        one.set(title=title, ylabel="difference", ylim=(0, 1), xlabel=xlabel)
        one.set_xticks(range(len(groups)), groups)
    if len(runs) > 1:
        axes[0].legend(fontsize="small")
    return _save(figure, path)


# What a run leaves behind: facts as plain data, and a folder with metrics, guarantee, models and figures.

_SMALL = 32
"""Models of at most this many parameters are shown in full."""


@dataclass(frozen=True)
class ClientStatement:
    """One client's own account of a run.

    Args:
        participations: How often it took part.
        leakage: What it has leaked, where leakage adds up (metric privacy).
        epsilon: What its participations cost, where they have an epsilon.
        delta: Of ``epsilon``.
    """

    participations: int
    leakage: float | None = None
    epsilon: float | None = None
    delta: float | None = None


@dataclass
class RoundTrace:
    """An observer that keeps what the figures show; everything in it was released or is public."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    released: list[Tensor] = field(default_factory=list)
    leakage: list[NDArray[np.float64]] = field(default_factory=list)

    def __call__(self, seen: RoundView) -> None:
        """Take note of a round."""
        self.lines.append(line(seen))
        self.leakage.append(seen.leakage)
        if seen.models.shape[1] <= _SMALL:
            self.models.append(seen.models.clone())
            if seen.release is not None and seen.release.vectors is not None:
                self.released.append(seen.release.vectors)


def line(seen: RoundView) -> dict[str, Any]:
    """One line of metrics.jsonl. Who answered, and how many, is told only where that is no secret."""
    facts: dict[str, Any] = {"round": seen.round.number + 1}
    if seen.round.score is not None:
        facts["validation_loss"] = seen.round.score.loss
        if seen.round.score.accuracy is not None:
            facts["validation_accuracy"] = seen.round.score.accuracy
        facts["shares"] = list(seen.round.score.shares)
    now = seen.round
    facts |= {"bytes_down_each": now.down, "bytes_up_each": now.up}
    if not now.secret:
        facts |= {"answered": now.answered, "withheld": now.withheld, "rejected": now.rejected}
        facts |= {"dropped": now.dropped, "bytes_down": now.sent, "bytes_up": now.received}
        facts["refused"] = [asdict(one) for one in now.refused]
    if seen.leakage.any():
        facts |= {"leakage_median": float(np.median(seen.leakage)), "leakage_max": float(seen.leakage.max())}
    return facts


def summary(finished: Finished) -> dict[str, Any]:
    """The facts of ``sordina federate --json``."""
    result, problem = finished.result, finished.problem
    scores = [one.score for one in result.history if one.score is not None]
    best = min(scores, key=lambda score: score.loss) if scores else None
    facts: dict[str, Any] = {
        "data": finished.description["data"],
        "source": problem.federation.source,
        "strategy": finished.setup.algorithm.name,
        "privacy": finished.setup.privacy.name,
        "clients": finished.setup.facts.clients,
        "parameters": problem.objective.size,
        "rounds": len(result.history),
    }
    if best is not None:
        facts["validation_loss"] = best.loss
        if best.accuracy is not None:
            facts["validation_accuracy"] = best.accuracy
    facts["hypotheses"] = result.best.tolist() if problem.objective.size <= _SMALL else len(result.best)
    facts |= guarantee(finished)
    if accounts := client_statements(finished):
        facts["accounts"] = {name: asdict(one) for name, one in accounts.items()}
    fair = problem.fairness(result.best)
    if fair:
        facts["fairness"] = {name: asdict(report) for name, report in fair.items()}
    return facts


def client_statements(finished: Finished) -> dict[str, ClientStatement]:
    """Every client's own account, by name; empty where clients keep none.

    Args:
        finished: The run.
    """
    placement, problem, size = finished.method.placement, finished.problem, finished.problem.objective.size
    if isinstance(placement, Central) or not placement.cost(size):
        return {}
    known: dict[int, ClientStatement] = {}
    found = {}
    for number, account in enumerate(finished.accounts):
        times = account.participations
        if times not in known:
            cost = float(account.spent) if finished.result.statement.placement == "metric" else None
            epsilon = delta = None
            if finished.result.statement.epsilon is not None and times:
                one = placement.statement(Facts(finished.setup.facts.rounds, size, times))
                epsilon, delta = one.epsilon, one.delta
            known[times] = ClientStatement(times, cost, epsilon, delta)
        found[problem.name(number)] = known[times]
    return found


def guarantee(finished: Finished) -> dict[str, Any]:
    """Epsilon and delta where they exist, leakage where clients keep accounts, and the words."""
    return guarantee_facts(finished.result.statement, finished.result.leakage, finished.releasable)


def guarantee_facts(statement: PrivacyStatement, leakage: NDArray[np.float64], releasable: bool) -> dict[str, Any]:
    """What result.json says of a guarantee.

    Args:
        statement: The guarantee.
        leakage: What each client has leaked.
        releasable: Whether the noise was secure.
    """
    facts: dict[str, Any] = {}
    if statement.epsilon is not None:
        facts |= {"epsilon": statement.epsilon, "delta": statement.delta}
    if statement.placement == "metric" and statement.details is not None:
        facts["leakage"] = {
            "per_participation": statement.details["per_participation"],
            "median": float(np.median(leakage)),
            "max": float(leakage.max()),
            "radius": statement.details["radius"],
        }
    facts |= {"guarantee": statement.words, "sound": statement.sound, "releasable": releasable}
    return facts


def claim_of(
    statement: PrivacyStatement, releasable: bool, rounds: int, clients: int, more: Mapping[str, Any] | None = None
) -> PrivacyClaim:
    """The claim of any federation.

    Args:
        statement: The guarantee.
        releasable: Whether the noise was secure.
        rounds: How many rounds ran.
        clients: How many clients there are.
        more: Further facts.
    """
    details = statement.details or {}
    caveats, note = [], {}
    accountant = None
    if statement.event is not None:
        accountant = str(details.get("accountant", "pld"))
        caveats = [] if (warning := delta_warning(statement.delta or 0.0, clients, "client")) is None else [warning]
    if not releasable:
        note = {"note": "The noise came from a seed: whoever knows the seed can subtract it. Not for release."}
    trust = Trust(statement.placement) if statement.placement in ("central", "local", "metric", "network") else None
    multiplier = details.get("noise_multiplier")
    return PrivacyClaim(
        statement=statement.words, private=statement.placement != "none", sound=statement.sound,
        epsilon=statement.epsilon, delta=statement.delta, unit=statement.unit, adjacency=statement.adjacency,
        trust=trust, placement=statement.placement, accountant=accountant,
        noise_multiplier=multiplier if isinstance(multiplier, float) else None,
        event=None if statement.event is None else to_dict(statement.event),
        releasable=releasable, caveats=tuple(caveats), details=details, versions=versions(),
        more={
            "rounds": rounds,
            "validation": "Held-out clients' losses are read in the clear; no guarantee covers those clients.",
            **note, **(more or {}),
        },
    )  # fmt: skip


def leaked(statement: PrivacyStatement, leakage: NDArray[np.float64], limit: float | None) -> dict[str, Any]:
    """What a claim of metric privacy adds: how much every client has leaked.

    Args:
        statement: The guarantee.
        leakage: By client.
        limit: What no client may leak more than.
    """
    if statement.placement != "metric":
        return {}
    mode = "sound" if statement.sound else "heuristic"
    return {"radius_mode": mode, "leakage_per_client": leakage.tolist(), "leakage_limit": limit}


def privacy_claim(finished: Finished) -> PrivacyClaim:
    """The claim of a run in process: the guarantee, and what every client has leaked.

    Args:
        finished: The run.
    """
    statement, result = finished.result.statement, finished.result
    more = leaked(statement, result.leakage, getattr(finished.setup.privacy, "leakage_limit", None))
    return claim_of(statement, finished.releasable, len(result.history), finished.setup.facts.clients, more)


def write(finished: Finished, trace: RoundTrace, path: Path) -> dict[str, Any]:
    """Write a run that ended to a folder of its own, figures included; returns the summary.

    Args:
        finished: The run.
        trace: What was seen of it.
        path: A new folder; one that holds a run already is refused.
    """
    with RunFolder.begin(path, "federate", {"recipe": finished.description}) as folder:
        return save(finished, trace, folder)


def save(
    finished: Finished,
    trace: RoundTrace,
    folder: RunFolder,
    settle: Callable[[], object] | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """End a run in the folder it holds: documents and figures first, then models, claim and settlement in one go.

    Args:
        finished: The run.
        trace: What was seen of it.
        folder: The run's folder, held.
        settle: Settles what the run reserved.
        more: Further facts for result.json.
    """

    facts = summary(finished) | dict(more or {})
    folder.write_json(RESULT, facts)
    folder.write_json(RECIPE, finished.description)
    folder.write(METRICS, "".join(json.dumps(one) + "\n" for one in trace.lines).encode())
    draw(finished, trace, facts, folder.path)
    best, last = finished.result.best.numpy(), finished.result.models.numpy()
    folder.finish(lambda file: np.savez(file, models=best, last=last), privacy_claim(finished), settle, name=MODELS)
    return facts
