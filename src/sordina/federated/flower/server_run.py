"""A run at its server: what is said on the way, and the folder it leaves, a run like any other."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sordina.federated.flower.engine import Flower
from sordina.federated.objective import Objective
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.record import RoundTrace, claim_of, guarantee_facts, leaked
from sordina.federated.round import FederatedRun, RoundView
from sordina.run_folder import METRICS, MODELS, RECIPE, RESULT, FolderState, RunFolder, state_of

LOG = logging.getLogger("sordina.federated")


def talk() -> None:
    """Our own lines on standard output, and nobody else's: a run's log is its operator's."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("sordina")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def free_folder(path: Path) -> Path:
    """``path``, or with a number behind its name the first that holds no run.

    Args:
        path: Where the run is to go.
    """
    number, found = 1, path
    while found.exists() and state_of(found).state is not FolderState.FRESH:
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def round_line(seen: RoundView, rounds: int, engine: Flower, before: dict[str, int]) -> str:
    """What is told of a round: who answered and who withheld, where that is no secret.

    Args:
        seen: The round.
        rounds: The plan's rounds.
        engine: Whose clients they are.
        before: How often each client had withheld before; brought up to date.
    """
    one = seen.round
    words = f"round {one.number + 1} of {rounds}: "
    if one.secret:
        words += "done"
    else:
        words += f"{one.answered} of {one.asked} clients answered"
        now = {name: told["withheld"] for name, told in engine.tally.items()}
        if silent := sorted(name for name, times in now.items() if times > before.get(name, 0)):
            words += f"; withheld, their limit being reached: {', '.join(silent)}"
        before.update(now)
        if one.dropped:
            words += f"; {one.dropped} not heard of"
        if not one.answered:
            words += "; the model stays as it was"
    return words if one.score is None else f"{words}; validation loss {one.score.loss:.6g}"


def write_run(
    folder: RunFolder,
    recipe: FederatedRecipe,
    objective: Objective,
    result: FederatedRun,
    engine: Flower,
    trace: RoundTrace,
    *,
    releasable: bool,
    settle: Callable[[], object] | None = None,
) -> None:
    """The end of a run: documents, models, claim and settlement. What tells who took part is left out where secret.

    Args:
        folder: The run's folder, held.
        recipe: The run.
        objective: Model and loss.
        result: What came out.
        engine: Where the clients were.
        trace: What was seen of the rounds.
        releasable: Whether the noise was secure.
        settle: Settles what the run reserved.
    """
    statement, secret = result.statement, any(one.secret for one in result.history)
    scores = [one.score for one in result.history if one.score is not None]
    document: dict[str, Any] = {
        "data": recipe.data, "strategy": recipe.strategy, "privacy": recipe.placed, "clients": engine.clients,
        "parameters": objective.size, "recipe": recipe.to_dict(), "rounds": len(result.history),
        "losses": result.losses, "hypotheses": len(result.best),
        "bytes_each": [{"sent": one.down, "received": one.up} for one in result.history],
    }  # fmt: skip
    if scores:
        best = min(scores, key=lambda score: score.loss)
        document["validation_loss"] = best.loss
        if best.accuracy is not None:
            document["validation_accuracy"] = best.accuracy
    document |= {"epsilon": None, "delta": None} | guarantee_facts(statement, result.leakage, releasable)
    if not secret:
        document |= {
            "leakage_at_most": result.leakage.tolist(),
            "traffic": [asdict(one) for one in engine.traffic],
            "by_client": engine.tally,
        }
    folder.write_json(RESULT, document)
    folder.write_json(RECIPE, recipe.to_dict() | {"population": engine.clients})
    folder.write(METRICS, "".join(json.dumps(one) + "\n" for one in trace.lines).encode())
    more = leaked(statement, result.leakage, recipe.leakage_limit)
    claim = claim_of(statement, releasable, len(result.history), engine.clients, more)
    folder.finish(
        lambda file: np.savez(file, models=result.best.numpy(), last=result.models.numpy()), claim, settle, name=MODELS
    )
    for name, told in ({} if secret else engine.tally).items():
        LOG.info("%s: asked %d times%s", name, told["asked"], _rest(told))
    LOG.info("%s", statement.words)
    LOG.info("Saved in %s.", folder.path.resolve())


def _rest(told: dict[str, int]) -> str:
    words = {"withheld": "withheld", "failed": "could not compute", "silent": "did not answer"}
    return "".join(f", {word} {told[key]} times" for key, word in words.items() if told[key])
