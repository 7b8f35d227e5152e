"""A Flower app from a team's own task: what ``sordina flower init`` writes, and SuperLink and SuperNodes run.

Both halves build the same run from the run configuration, so they agree without being told. A task is a module with

    model()              an untrained torch module
    LOSS                 the name of a loss, or a function (outputs, targets)
    train_data(context)  a client's own rows ``(x, y)``; only SuperNodes call it
    validation_data()    held-out clients ``[(x, y), ...]`` at the server, or an empty list
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from sordina import private_files, random
from sordina._renamed import current_fields
from sordina.accounting.ledger import Ledger
from sordina.errors import BudgetRefused, InvalidInput
from sordina.federated import losses
from sordina.federated.decentralized.gopa import GOPA
from sordina.federated.engines.engine import ClientSide, RoundRequest
from sordina.federated.flower.client import ClientContext, ClientFolder, alone
from sordina.federated.flower.client_app import client_app as client_app_of
from sordina.federated.flower.client_policy import ClientPolicy, policy_for
from sordina.federated.flower.engine import Flower
from sordina.federated.flower.records import Instruction
from sordina.federated.flower.server_run import free_folder, round_line, talk, write_run
from sordina.federated.forecast import forecast
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population, RowOrder
from sordina.federated.problem import Validation
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.record import RoundTrace
from sordina.federated.round import FederatedMethod, RoundView, federate
from sordina.federated.run_keeper import FederationKeeper
from sordina.federated.setup import FederatedSetup, check_limit
from sordina.run_folder import RunFolder

LOG = logging.getLogger("sordina.federated")
_CLIENTS = 10_000_000


class AppTask(Protocol):
    """What a team writes; see the head of this file."""

    LOSS: Any

    def model(self) -> nn.Module:
        """An untrained model."""
        ...

    def train_data(self, context: Context) -> tuple[Tensor, Tensor]:
        """A client's own rows."""
        ...

    def validation_data(self) -> list[tuple[Tensor, Tensor]]:
        """Held-out clients at the server."""
        ...


def recipe_of(config: Mapping[str, Any]) -> FederatedRecipe:
    """The recipe in a run configuration, whose keys are written with dashes; 0 or -1 stand for what is left out.

    >>> recipe_of({"strategy": "fedavg", "privacy": "none", "rounds": 3, "seed": -1, "leakage-limit": 0.0}).rounds
    3
    """
    known = {field.name for field in fields(FederatedRecipe)} - {"data", "options", "engine", "data_seed"}
    values = current_fields(FederatedRecipe, {key.replace("-", "_"): value for key, value in config.items()})
    found = {name: value for name, value in values.items() if name in known}
    for name, absent in (
        ("seed", -1),
        ("leakage_limit", 0),
        ("clients_per_round", 0),
        ("server_learning_rate", 0),
        ("records", 0),
    ):
        if found.get(name) == absent:
            del found[name]
    return FederatedRecipe("own", engine="flower", **found)


def client_app(task: AppTask) -> ClientApp:
    """The ClientApp of a task. The SuperNode's own configuration says where account and policy live (``state-dir``).

    The run's configuration and the server's messages come from outside: the client's policy decides whether it takes
    part, its account how often, and its noise is never seeded.
    """

    def client_context(instruction: Instruction, context: Context) -> ClientContext:
        if _simulated(context):
            context = _stood_for(context, instruction.client)
        config, home = context.run_config, _home(context)
        recipe = replace(recipe_of(config), seed=None)
        policy = _policy(home, recipe, context)
        policy.check(recipe)
        if sum(value.numel() for value in instruction.sent.values()) > policy.numbers:
            raise BudgetRefused(f"the server sent more numbers than this client's most, {policy.numbers}.")
        objective = _objective(task)
        method, limit = _setup(recipe, _clients(config), context.run_id).method(objective)
        policy.check_placement(method.placement)
        _check_sent(instruction, method, torch.zeros(recipe.models, objective.size, dtype=_dtype(task)))
        side = ClientSide(method.work, method.placement)
        return ClientContext(side, lambda: alone(*task.train_data(context), instruction.client), home, limit, policy)

    return client_app_of(client_context)


def _policy(home: ClientFolder, recipe: FederatedRecipe, context: Context) -> ClientPolicy:
    """The client's own; nodes of Flower's simulation, which stand for nobody, accept what the run needs."""
    if _simulated(context):
        roomy = {"rounds": _CLIENTS, "epochs": 1000, "hypotheses": 1000}
        unlimited = {"leakage": 1e9} if recipe.placed == "metric" and recipe.leakage_limit is None else {}
        return ClientPolicy.from_dict(policy_for(recipe) | roomy | unlimited)
    return ClientPolicy.load(home.folder)


def _clients(config: Mapping[str, Any]) -> int:
    clients = config["clients"]
    if type(clients) is not int or not 1 <= clients <= _CLIENTS:
        raise InvalidInput(f"a run has 1 to {_CLIENTS} clients.")
    return clients


def _check_sent(instruction: Instruction, method: FederatedMethod, models: Tensor) -> None:
    """Whether the server sent what this run's strategy sends, number for number."""
    expected = method.strategy.configure(method.strategy.init(models))
    forms = [{name: (value.dtype, value.shape) for name, value in one.items()} for one in (expected, instruction.sent)]
    if forms[0] != forms[1]:
        raise InvalidInput("the server sent other models than this run trains.")


def server_app(task: AppTask) -> ServerApp:
    """The ServerApp of a task: waits for ``clients`` nodes, runs, and writes what may be known to ``out``."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        talk()
        config = context.run_config
        recipe = recipe_of(config)
        settings = {"recipe": recipe.to_dict(), "clients": _clients(config)}
        path = free_folder(Path(str(config["out"])).expanduser())
        with RunFolder.begin(path, "flower", settings) as folder:
            try:
                _serve(task, recipe, grid, context, folder)
            except Exception:
                folder.close_failed(f"the run in {folder.path} failed, and one on Flower cannot be resumed: run again.")
                raise

    app.main()(main)
    return app


def _setup(recipe: FederatedRecipe, clients: int, run: int) -> FederatedSetup:
    """The choices of a run, alike at server and clients: its number, from the SuperLink, draws GOPA's graph."""
    setup = recipe.setup(clients)
    if isinstance(setup.privacy, GOPA):
        return replace(setup, privacy=replace(setup.privacy, graph_seed=run))
    return setup


def _serve(task: AppTask, recipe: FederatedRecipe, grid: Grid, context: Context, folder: RunFolder) -> None:
    """The server's half of a run, from the first model to the last file."""
    config = context.run_config
    clients, objective = _clients(config), _objective(task)
    setup, trace = _setup(recipe, clients, context.run_id), RoundTrace()
    method, limit = setup.method(objective)
    rng = random.generator(recipe.seed)
    models = _initial(task, recipe.models, rng)
    check_limit(method, models, limit)
    size = method.work.width(method.strategy.configure(method.strategy.init(models)))
    if warning := forecast(method, setup.facts, size, limit).warning:
        LOG.warning("%s", warning)
    book, dataset = str(config.get("ledger", "")), str(config.get("dataset-budget", ""))
    keeper = FederationKeeper(folder, trace, recipe.data, Ledger(book) if book else None, dataset or None)
    keeper.begin(method, setup, size, rng)
    virtual = type(grid).__name__ == "InMemoryGrid"  # Flower's simulation, whose nodes stand for nobody
    engine = Flower(grid, clients, limit, deadline=float(config["deadline"]), shared=virtual)
    LOG.info("waiting for %d clients", clients)
    engine.gather(float(config["wait"]))
    if not virtual:
        engine.introduce()
    held_out, before = task.validation_data(), dict[str, int]()

    def observe(seen: RoundView) -> None:
        trace(seen)
        LOG.info("%s", round_line(seen, setup.facts.rounds, engine, before))

    result = federate(
        method,
        engine,
        models,
        clients=clients,
        rounds=setup.facts.rounds,
        rng=rng,
        validation=_validation(objective, held_out) if held_out else None,
        patience=setup.patience,
        observe=observe,
        keeper=keeper,
    )
    engine.deliver(
        RoundRequest(result.sent, result.privacy, RowOrder(0, len(result.history))),
        ClientSide(method.work, method.placement),
    )
    settle = keeper.settlement(result.statement.event)
    write_run(folder, recipe, objective, result, engine, trace, releasable=random.releasable(rng), settle=settle)


def _validation(objective: Objective, held_out: list[tuple[Tensor, Tensor]]) -> Validation:
    population = Population.of(held_out)
    return Validation(objective, population, not population.y.is_floating_point() and population.y.ndim == 1)


def _objective(task: AppTask) -> Objective:
    module = task.model()
    if any(not torch.equal(one, other) for one, other in zip(module.buffers(), task.model().buffers(), strict=True)):
        raise InvalidInput("the model has buffers that differ whenever it is built: every client would have others.")
    return of_module(module, losses.of_any(task.LOSS))


def _initial(task: AppTask, count: int, rng: np.random.Generator) -> Tensor:
    """``count`` independent first models."""
    drawn = []
    with torch.random.fork_rng():
        for seed in rng.integers(2**31, size=count):
            torch.manual_seed(int(seed))
            drawn.append(flat_parameters(task.model()))
    return torch.stack(drawn)


def _simulated(context: Context) -> bool:
    """Whether this is a node of Flower's simulation: the SuperNode, not the run, says so."""
    return "state-dir" not in context.node_config and "partition-id" in context.node_config


def _stood_for(context: Context, client: int) -> Context:
    """A simulated node's context as that of the client it stands for: one node may stand for several."""
    seen = copy.copy(context)
    seen.node_config = {**context.node_config, "partition-id": client, "num-partitions": _clients(context.run_config)}
    return seen


def _home(context: Context) -> ClientFolder:
    if _simulated(context):
        flower = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        folder = flower / "sordina-simulation" / str(context.run_id) / str(int(context.node_config["partition-id"]))
        private_files.make_folder(folder)
        return ClientFolder(folder)
    folder_name = context.node_config.get("state-dir")
    if not folder_name:
        raise InvalidInput(
            "a client's account needs a folder of its own that lasts: start the SuperNode with "
            "--node-config 'state-dir=\"/var/lib/sordina\" ...'."
        )
    return ClientFolder(Path(str(folder_name)).expanduser())


def _dtype(task: AppTask) -> torch.dtype:
    return flat_parameters(task.model()).dtype
