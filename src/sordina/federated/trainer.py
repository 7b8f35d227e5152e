"""Train a model among clients that keep their data: state the choices once, fit, read the guarantee.

trainer = sd.federated.FederatedTrainer(model, loss=torch.nn.functional.cross_entropy,
                                        algorithm=sd.federated.FedAvg(local_epochs=1),
                                        privacy=sd.federated.CentralDP(sd.Budget(3, 1e-5)), rounds=100)
result = trainer.fit(clients, validation=held_out)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sordina import random
from sordina.accounting.ledger import Ledger
from sordina.errors import InvalidInput, Unsupported
from sordina.federated import losses
from sordina.federated.algorithms.registry import FedAvg, FederatedAlgorithm
from sordina.federated.data.client_data import Clients, named_shards
from sordina.federated.data.partition import Federation
from sordina.federated.objective import flat_parameters, of_module
from sordina.federated.population import Population
from sordina.federated.privacy.placement import FederatedPrivacy, FederationFacts
from sordina.federated.privacy.records import RecordDP
from sordina.federated.problem import FederatedProblem
from sordina.federated.record import RoundTrace, line
from sordina.federated.result import FederatedResult, load_models, load_personal_model
from sordina.federated.round import Patience, RoundView
from sordina.federated.run_keeper import FederationKeeper, Watch, kept
from sordina.federated.setup import FederatedSetup, Finished, Forecast, conduct, forecast
from sordina.plan import check_whole
from sordina.privacy import check_seed
from sordina.progress import Progress
from sordina.run_folder import RECIPE, RunFolder
from sordina.tables import Schema
from sordina.training.batches import as_rows
from sordina.training.losses import Loss, check_takes
from sordina.training.run_keeper import described

__all__ = ["FederatedResult", "FederatedTrainer", "Forecast", "load_models", "load_personal_model"]
_OWN = "own data"


@dataclass
class FederatedTrainer:
    """Everything about a federated run but the data. Nothing is checked before `fit`.

    Args:
        model: Any torch module, trained from its present weights, or a function that builds one. Parameters that
            need no gradient stay as they are. The module itself is left alone: `FederatedResult.model` is a copy.
        loss: Any function or module ``(outputs, targets)`` that can give one number per row.
        privacy: `CentralDP`, `LocalDP`, `RecordDP`, `MetricDP`, `NoPrivacy`, or another `FederatedPrivacy`.
        algorithm: What server and clients compute.
        rounds: The most rounds.
        clients_per_round: How many clients take part in a round; left out, all.
        engine: ``in-process`` simulates the clients as one computation, ``flower`` as nodes of Flower's simulation. For
            clients on machines of their own see ``sordina flower init``.
        folder: Where the run is kept, as by ``sordina federate --out``; it can then be resumed.
        ledger: Where the whole spend is reserved before a client is asked, and settled at the end; needs a folder.
        dataset_budget: The data set in the ledger.
        schema: What is public about frames and files, where clients have those.
        patience: Validations without improvement before stopping; the whole plan is paid for all the same.
        validate_every: Rounds between validations.
        aggregation: ``mean``, or a robust mean: ``median``, ``trimmed-mean``, ``krum``.
        compression: ``none``, ``8bit`` to ``1bit``, ``top:SHARE``.
        seed: Makes the run repeatable; such a model must not be released.
        progress: True shows a bar; a function is told ``(rounds done, rounds)`` (`sordina.progress`).
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: Loss | str
    privacy: FederatedPrivacy
    algorithm: FederatedAlgorithm = field(default_factory=FedAvg)
    rounds: int = 100
    clients_per_round: int | None = None
    engine: str = "in-process"
    folder: str | Path | None = None
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    schema: Schema | str | Path | None = None
    patience: int | None = None
    validate_every: int = 1
    aggregation: str = "mean"
    compression: str = "none"
    seed: int | None = None
    progress: bool | Progress = False

    def fit(self, clients: Clients, validation: Any = None, *, resume: bool = False) -> FederatedResult:
        """Federate among ``clients``.

        Args:
            clients: A list or a dict of data, one for each client: pairs ``(x, y)`` of tensors or arrays,
                TensorDatasets, map-style Datasets of pairs, or with ``schema`` frames and files.
            validation: Held-out data in the same forms, of one or of several clients. They are read in the clear: the
                guarantee does not cover them.
            resume: Continue the run in ``folder``. One that has ended is only read.
        """
        module = self._module()
        problem = self._problem(module, clients, validation)
        setup = self._setup(len(problem.train))
        rng = random.generator(self.seed)
        description = self._description(module, setup, problem)
        trace = RoundTrace()

        def go(observe: Watch, keeper: FederationKeeper | None) -> Finished:
            models = self._initial(module, rng)
            return conduct(setup, problem, models, description, rng, observe=observe, keeper=keeper)

        with ExitStack() as stack:
            tick = _ticker(stack, self.rounds, self.progress)

            def observe(one: RoundView) -> None:
                trace(one)
                tick(line(one))

            if self.folder is None:
                self._refuse_without_folder(resume)
                return FederatedResult.of(go(observe, None), trace, module)

            def go_in(folder: RunFolder, watch: Watch, keeper: FederationKeeper) -> Finished:
                if not folder.has(RECIPE):
                    folder.write_json(RECIPE, description)
                return go(watch, keeper)

            _, finished = kept(
                Path(self.folder), description, go_in, data=_OWN, engine=self.engine, resume=resume,
                ledger=self.ledger, dataset=self.dataset_budget, observe=observe,
            )  # fmt: skip
        if finished is None:
            return FederatedResult.load(self.folder, module)
        return FederatedResult.of(finished, trace, module, Path(self.folder))

    def forecast(self, clients: Clients) -> Forecast:
        """What the noise will do to what is learnt, from public facts alone; nothing is spent and no row is read.

        Args:
            clients: As for `fit`; their number and the shape of a row count.
        """
        problem = self._problem(self._module(), clients, None)
        setup = self._setup(len(problem.train))
        method, limit = setup.method(problem.objective)
        blank = torch.zeros(setup.algorithm.count, problem.objective.size)
        size = method.work.width(method.strategy.configure(method.strategy.init(blank)))
        return forecast(method, setup.facts, size, limit)

    def _refuse_without_folder(self, resume: bool) -> None:
        if resume or self.ledger is not None or self.dataset_budget is not None:
            raise InvalidInput("resume, ledger and dataset_budget belong to a run's folder: name it with folder=.")

    def _module(self) -> nn.Module:
        if isinstance(self.model, nn.Module):
            return self.model
        if not callable(self.model):
            raise InvalidInput(f"a model is a torch module or a function that builds one, not a {_kind(self.model)}.")
        made = self.model()
        if not isinstance(made, nn.Module):
            raise InvalidInput(f"the function that builds the model gave a {_kind(made)}, not a torch module.")
        return made

    def _setup(self, clients: int) -> FederatedSetup:
        if not isinstance(self.algorithm, FederatedAlgorithm):
            raise InvalidInput(f"algorithm= is one such as FedAvg(), not a {_kind(self.algorithm)}.")
        if not isinstance(self.privacy, FederatedPrivacy):
            raise InvalidInput(
                f"privacy= is one such as CentralDP(budget) or NoPrivacy(), not a {_kind(self.privacy)}."
            )
        for name in ("rounds", "validate_every"):
            check_whole(name, getattr(self, name))
        per_round = (
            clients if self.clients_per_round is None else check_whole("clients per round", self.clients_per_round)
        )
        if self.seed is not None:
            check_seed(self.seed)
        return FederatedSetup(
            self.algorithm,
            self.privacy,
            FederationFacts(self.rounds, clients, per_round, self.seed),
            Patience(self.patience) if self.patience else None,
            self.validate_every,
            engine=self.engine,
            aggregate=self.aggregation,
            compress=self.compression,
        )

    def _problem(self, module: nn.Module, clients: Clients, validation: Any) -> FederatedProblem:
        """Clients and objective, checked against each other before anything is reserved or drawn."""
        dtype = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)
        if (
            self.schema is not None
            and isinstance(self.privacy, RecordDP)
            and Schema.load(self.schema).person is not None
        ):
            raise Unsupported(
                "record privacy protects a row, and these people have several: take privacy for whole clients, such as "
                "CentralDP, or give every person one row."
            )
        shards = named_shards(clients, self.schema, dtype)
        held_out = {} if validation is None else named_shards(_several(validation), self.schema, dtype)
        everybody = Population.of(list(shards.values()))
        others = Population.of(list(held_out.values())) if held_out else None
        loss = losses.of_any(self.loss)
        for population in (everybody, others):
            if population is not None:
                check_takes(module, loss.value, as_rows((population.x, population.y)))
        objective = of_module(module, loss, example=everybody.x[:1])
        classes = not everybody.y.is_floating_point() and everybody.y.ndim == 1
        federation = Federation(
            _OWN, list(shards.values()), list(held_out.values()), model=type(module).__name__, loss=loss.name,
            metric="accuracy" if classes and _scores(objective, module, everybody) else "loss",
        )  # fmt: skip
        return FederatedProblem(federation, objective, everybody, others, tuple(shards))

    def _initial(self, module: nn.Module, rng: np.random.Generator) -> Tensor:
        """The first models: the module's weights as they are; further ones drawn anew."""
        drawn = [flat_parameters(module)]
        for seed in rng.integers(2**31, size=self.algorithm.count - 1):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(seed))
                drawn.append(flat_parameters(_reset(module) if isinstance(self.model, nn.Module) else self._module()))
        return torch.stack(drawn)

    def _description(self, module: nn.Module, setup: FederatedSetup, problem: FederatedProblem) -> dict[str, Any]:
        """How the run was asked for, as plain data; of the clients' data only their number, names and rows' shape."""
        x, y = problem.train.x, problem.train.y
        return {
            "data": _OWN,
            "strategy": setup.algorithm.name,
            "privacy": setup.privacy.name,
            "population": setup.facts.clients,
            "clients": list(problem.names),
            "algorithm": described(setup.algorithm),
            "privacy_settings": described(setup.privacy),
            "rounds": self.rounds,
            "clients_per_round": setup.facts.clients_per_round,
            "seed": self.seed,
            "model": [_kind(module), *([name, list(one.shape)] for name, one in module.named_parameters())],
            "loss": described(self.loss),
            "rows": [[list(one.shape[1:]), str(one.dtype)] for one in (x, y)],
            "patience": self.patience,
            "validate_every": self.validate_every,
            "aggregation": self.aggregation,
            "compression": self.compression,
            "engine": self.engine,
        }


def _several(validation: Any) -> Clients:
    """Held-out data of one client as a list of one."""
    pair = isinstance(validation, tuple) and len(validation) == 2 and all(hasattr(one, "shape") for one in validation)
    if pair or isinstance(validation, (Dataset, str, Path)) or not isinstance(validation, (list, tuple, Mapping)):
        return [validation]
    return list(validation) if isinstance(validation, tuple) else validation


def _scores(objective: Any, module: nn.Module, population: Population) -> bool:
    """Whether the outputs are scores of classes, tried on a made-up row."""
    row = torch.zeros(1, *population.x.shape[1:], dtype=population.x.dtype)
    return bool(objective.predict(flat_parameters(module), row).ndim == 2)


def _reset(module: nn.Module) -> nn.Module:
    """A copy with new first weights."""
    clone = copy.deepcopy(module)
    for one in clone.modules():
        reset = getattr(one, "reset_parameters", None)
        if callable(reset):
            reset()
        elif list(one.parameters(recurse=False)):
            raise Unsupported(
                f"{_kind(one)} has no reset_parameters, so no second model can be drawn: give a function that builds "
                "the model in place of the module."
            )
    return clone


def _kind(value: Any) -> str:
    return type(value).__name__


def _ticker(stack: ExitStack, rounds: int, progress: bool | Progress) -> Callable[[dict[str, Any]], object]:
    """What is shown the facts of every round."""
    if callable(progress):
        return lambda facts: progress(facts["round"], rounds)
    if not progress:
        return lambda facts: None
    from rich import progress as rich
    from rich.console import Console

    bar = stack.enter_context(rich.Progress(console=Console(stderr=True), transient=True))
    task = bar.add_task("federating", total=rounds)

    def tick(facts: dict[str, Any]) -> None:
        loss = facts.get("validation_loss")
        bar.update(task, completed=facts["round"], description="federating" if loss is None else f"loss {loss:.4g}")

    return tick
