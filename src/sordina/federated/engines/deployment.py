"""A Flower app from a team's own task: what ``sordina flower init`` writes, and SuperLink and SuperNodes run.

Both halves build the same run from the run configuration, so they agree without being told. A task is a module with

    model()              an untrained torch module
    LOSS                 the name of a loss
    train_data(context)  a client's own rows ``(x, y)``; only SuperNodes call it
    validation_data()    held-out clients ``[(x, y), ...]`` at the server, or an empty list
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from sordina import randomness
from sordina.errors import InvalidInput
from sordina.federated import losses
from sordina.federated.engines.client_app import client_app as client_app_of
from sordina.federated.engines.engine import ClientSide
from sordina.federated.engines.flower import Flower
from sordina.federated.engines.home import Home
from sordina.federated.engines.participation import Desk, alone
from sordina.federated.engines.records import Instruction
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population
from sordina.federated.privacy.account import exact
from sordina.federated.recipe import Recipe, assemble, check_limit
from sordina.federated.run import Result, Seen, federate
from sordina.federated.validation import Validation

LOG = logging.getLogger("sordina.federated")


class Task(Protocol):
    """What a team writes; see the head of this file."""

    LOSS: str

    def model(self) -> nn.Module:
        """An untrained model."""
        ...

    def train_data(self, context: Context) -> tuple[Tensor, Tensor]:
        """A client's own rows."""
        ...

    def validation_data(self) -> list[tuple[Tensor, Tensor]]:
        """Held-out clients at the server."""
        ...


def recipe_of(config: Mapping[str, Any]) -> Recipe:
    """The recipe in a run configuration, whose keys are written with dashes; 0 or -1 stand for what is left out.

    >>> recipe_of({"strategy": "fedavg", "privacy": "none", "rounds": 3, "seed": -1, "leakage-limit": 0.0}).rounds
    3
    """
    known = {field.name for field in fields(Recipe)} - {"data", "options", "engine", "data_seed"}
    values = {key.replace("-", "_"): value for key, value in config.items()}
    found = {name: value for name, value in values.items() if name in known}
    for name, absent in (("seed", -1), ("leakage_limit", 0), ("clients_per_round", 0), ("server_rate", 0)):
        if found.get(name) == absent:
            del found[name]
    return Recipe("own", **found)


def client_app(task: Task) -> ClientApp:
    """The ClientApp of a task. The SuperNode's own configuration says where its account lives (``state-dir``)."""

    def desk(instruction: Instruction, context: Context) -> Desk:
        config = context.run_config
        recipe = recipe_of(config)
        method, limit = assemble(recipe, recipe.settled(int(config["clients"])), _objective(task))
        x, y = task.train_data(context)
        people = alone(x, y, instruction.client)
        side = ClientSide(method.work, method.placement)
        if recipe.placed == "metric":
            limit = _stricter(limit, context)
        return Desk(side, people, _home(context), limit, recipe.seed)

    return client_app_of(desk)


def server_app(task: Task) -> ServerApp:
    """The ServerApp of a task: waits for ``clients`` nodes, runs, and writes what may be known to ``out``."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s: %(message)s")
        config = context.run_config
        recipe, clients = recipe_of(config), int(config["clients"])
        settled, objective = recipe.settled(clients), _objective(task)
        method, limit = assemble(recipe, settled, objective)
        rng = randomness.generator(recipe.seed)
        models = _initial(task, recipe.models, rng)
        check_limit(method, models, limit)
        engine = Flower(grid, clients, limit, deadline=float(config["deadline"]))
        engine.gather(float(config["wait"]))
        held_out = task.validation_data()
        result = federate(
            method,
            engine,
            models,
            clients=clients,
            rounds=settled.rounds,
            rng=rng,
            validation=Validation(objective, Population.of(held_out)) if held_out else None,
            patience=settled.patience,
            observe=_say,
        )
        _write(Path(str(config["out"])).expanduser(), recipe, result, engine, randomness.releasable(rng))

    app.main()(main)
    return app


def _objective(task: Task) -> Objective:
    return of_module(task.model(), losses.named(task.LOSS))


def _initial(task: Task, count: int, rng: np.random.Generator) -> Tensor:
    """``count`` independent first models."""
    drawn = []
    with torch.random.fork_rng():
        for seed in rng.integers(2**31, size=count):
            torch.manual_seed(int(seed))
            drawn.append(flat_parameters(task.model()))
    return torch.stack(drawn)


def _home(context: Context) -> Home:
    folder = context.node_config.get("state-dir")
    if not folder:
        raise InvalidInput(
            "a client's account needs a folder of its own that lasts: start the SuperNode with "
            "--node-config 'state-dir=\"/var/lib/sordina\" ...'."
        )
    return Home(Path(str(folder)).expanduser())


def _stricter(limit: Fraction | None, context: Context) -> Fraction | None:
    """The run's limit, or the SuperNode's own ``leakage-limit`` for metric leakage, where that is lower."""
    own = context.node_config.get("leakage-limit")
    limits = [one for one in (limit, None if own is None else exact(float(own))) if one is not None]
    return min(limits, default=None)


def _say(seen: Seen) -> None:
    score = "" if seen.round.score is None else f", validation loss {seen.round.score.loss:.6g}"
    LOG.info("round %d done%s", seen.round.number + 1, score)


def _write(folder: Path, recipe: Recipe, result: Result, engine: Flower, releasable: bool) -> None:
    """The models, and a document with the guarantee, the bytes and the seconds of each round."""
    folder.mkdir(parents=True, exist_ok=True)
    statement = result.statement
    document = {
        "recipe": recipe.to_dict(),
        "rounds": len(result.history),
        "guarantee": statement.words,
        "sound": statement.sound,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "releasable": releasable,
        "leakage_at_most": result.leakage.tolist(),
        "losses": result.losses,
        "traffic": [asdict(one) for one in engine.traffic],
    }
    np.savez(folder / "models.npz", models=result.best.numpy(), last=result.models.numpy())
    (folder / "result.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    LOG.info("%s Saved in %s.", statement.words, folder)
