"""A Flower app from a team's own task: what ``sordina flower init`` writes, and SuperLink and SuperNodes run.

Both halves build the same run from the run configuration, so they agree without being told. A task is a module with

    model()              an untrained torch module
    LOSS                 the name of a loss, or a function (outputs, targets)
    train_data(context)  a client's own rows ``(x, y)``; only SuperNodes call it
    validation_data()    held-out clients ``[(x, y), ...]`` at the server, or an empty list
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
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
from sordina.federated.engines import ClientSide, RoundRequest
from sordina.federated.flower.client import ClientContext, ClientFolder, alone
from sordina.federated.flower.client_app import client_app as client_app_of
from sordina.federated.flower.client_policy import ClientPolicy, policy_for
from sordina.federated.flower.engine import Flower
from sordina.federated.flower.records import Instruction
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population, RowOrder
from sordina.federated.problem import Validation
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.record import RoundTrace, claim_of, guarantee_facts, leaked
from sordina.federated.round import FederatedMethod, FederatedRun, RoundView, federate
from sordina.federated.run_keeper import FederationKeeper
from sordina.federated.setup import FederatedSetup, check_limit, forecast
from sordina.run_folder import METRICS, MODELS, RECIPE, RESULT, FolderState, RunFolder, state_of

# A run at its server: what is said on the way, and the folder it leaves, a run like any other.

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


# A Flower app from a team's own task: what ``sordina flower init`` writes, and SuperLink and SuperNodes run.

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
