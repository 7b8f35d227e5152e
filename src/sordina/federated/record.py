"""What a run leaves behind: facts as plain data, and a folder with metrics, guarantee, models and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordina.accounting import to_dict
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.placement import Facts, Statement
from sordina.federated.run import Seen
from sordina.federated.setup import Finished
from sordina.run_folder import METRICS, MODELS, RECIPE, RESULT, RunFolder
from sordina.training.run import versions
from sordina.types import delta_warning

_SMALL = 32
"""Models of at most so many parameters are told in full."""


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
class Trace:
    """An observer that keeps what the figures show; everything in it was released or is public."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    released: list[Tensor] = field(default_factory=list)
    leakage: list[NDArray[np.float64]] = field(default_factory=list)

    def __call__(self, seen: Seen) -> None:
        """Take note of a round."""
        self.lines.append(line(seen))
        self.leakage.append(seen.leakage)
        if seen.models.shape[1] <= _SMALL:
            self.models.append(seen.models.clone())
            if seen.release is not None and seen.release.vectors is not None:
                self.released.append(seen.release.vectors)


def line(seen: Seen) -> dict[str, Any]:
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


def guarantee_facts(statement: Statement, leakage: NDArray[np.float64], releasable: bool) -> dict[str, Any]:
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


def privacy_facts(statement: Statement, releasable: bool, rounds: int, clients: int) -> dict[str, Any]:
    """What privacy.json says of any federation: the guarantee in words and numbers.

    Args:
        statement: The guarantee.
        releasable: Whether the noise was secure.
        rounds: How many rounds ran.
        clients: How many clients there are.
    """
    report: dict[str, Any] = {
        "placement": statement.placement,
        "guarantee": statement.words,
        "statement": statement.words,
        "private": statement.placement != "none",
        "sound": statement.sound,
        "unit": str(statement.unit),
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "releasable": releasable,
        "rounds": rounds,
        "details": statement.details or {},
        "validation": "Held-out clients' losses are read in the clear; no guarantee covers those clients.",
        "versions": versions(),
    }
    if statement.event is not None:
        report |= {"event": to_dict(statement.event), "adjacency": str(statement.adjacency)}
        report["accountant"] = (statement.details or {}).get("accountant", "pld")
        warning = delta_warning(statement.delta or 0.0, clients, "client")
        report["caveats"] = [] if warning is None else [warning]
    if not releasable:
        report["note"] = "The noise came from a seed: whoever knows the seed can subtract it. Not for release."
    return report


def privacy_report(finished: Finished) -> dict[str, Any]:
    """privacy.json of a run in process: the guarantee, and what every client has leaked."""
    statement, result = finished.result.statement, finished.result
    report = privacy_facts(statement, finished.releasable, len(result.history), finished.setup.facts.clients)
    if statement.placement == "metric":
        report["radius_mode"] = "sound" if statement.sound else "heuristic"
        report["leakage_per_client"] = result.leakage.tolist()
        report["leakage_limit"] = getattr(finished.setup.privacy, "leakage_limit", None)
    return report


def write(finished: Finished, trace: Trace, path: Path) -> dict[str, Any]:
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
    trace: Trace,
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
    from sordina.federated.figures import draw

    facts = summary(finished) | dict(more or {})
    folder.write_json(RESULT, facts)
    folder.write_json(RECIPE, finished.description)
    folder.write(METRICS, "".join(json.dumps(one) + "\n" for one in trace.lines).encode())
    draw(finished, trace, facts, folder.path)
    best, last = finished.result.best.numpy(), finished.result.models.numpy()
    folder.finish(lambda file: np.savez(file, models=best, last=last), privacy_report(finished), settle, name=MODELS)
    return facts
