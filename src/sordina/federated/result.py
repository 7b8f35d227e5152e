"""What a federation ended in: the models, the clients' own models, the guarantee, the accounts, the history."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import private_files
from sordina.errors import InvalidInput, Unsupported
from sordina.federated import record
from sordina.federated.algorithms.personal import used
from sordina.federated.flower.client import MODEL_PREFIX
from sordina.federated.objective import flat_parameters, with_parameters
from sordina.federated.population import RowOrder
from sordina.federated.privacy.placement import PrivacyStatement
from sordina.federated.setup import Finished
from sordina.privacy import Unit
from sordina.run_folder import METRICS, MODELS, RESULT, read_claim, read_json


@dataclass(frozen=True)
class FederatedResult:
    """The outcome of `FederatedTrainer.fit`.

    Args:
        models: The best models by validation, else the last ones; most algorithms train one.
        guarantee: What holds, for whom, against whom; its ``str`` is a sentence.
        accounts: Every client's own, by name. Empty where clients keep none: without privacy, and under central
            privacy, where who took part is a secret.
        history: One entry a round: validation scores, and who answered where that is no secret.
        personal_models: What each client would use itself, by name. They were made with the client's rows in the clear:
            they are that client's own, and no guarantee covers them.
        releasable: Whether the noise was secure.
        facts: What ``sordina federate --json`` prints.
        folder: Where the run is kept.
    """

    models: list[nn.Module]
    guarantee: PrivacyStatement
    accounts: dict[str, record.ClientStatement]
    history: list[dict[str, Any]]
    personal_models: Mapping[str, nn.Module]
    releasable: bool
    facts: dict[str, Any]
    folder: Path | None = None
    _kept: tuple[Finished, record.RoundTrace] | None = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> nn.Module:
        """The model, where there is one."""
        if len(self.models) != 1:
            raise InvalidInput(
                f"this run trained {len(self.models)} models, of which each client uses one: see models and "
                "personal_models."
            )
        return self.models[0]

    @property
    def epsilon(self) -> float | None:
        """What was spent, where the guarantee has an epsilon."""
        return self.guarantee.epsilon

    def save(self, folder: str | Path) -> Path:
        """Write the run as ``sordina federate --out`` does: models, privacy.json, metrics, figures.

        Args:
            folder: A folder that holds no run yet.
        """
        if self._kept is None:
            raise InvalidInput(f"this result was read from {self.folder}: copy that folder instead.")
        record.write(*self._kept, Path(folder))
        return Path(folder)

    @classmethod
    def of(
        cls, finished: Finished, trace: record.RoundTrace, module: nn.Module, folder: Path | None = None
    ) -> FederatedResult:
        """The result of a run that has just ended.

        Args:
            finished: The run.
            trace: What was seen of it.
            module: Its model.
            folder: Where it is kept, if anywhere.
        """
        return cls(
            [with_parameters(module, one) for one in finished.result.best],
            finished.result.statement,
            record.client_statements(finished),
            list(trace.lines),
            PersonalModels(finished, module),
            finished.releasable,
            record.summary(finished),
            folder,
            (finished, trace),
        )

    @classmethod
    def load(cls, folder: str | Path, module: nn.Module) -> FederatedResult:
        """The result of a finished run in a folder; personal models are not kept there.

        Args:
            folder: What `save`, a trainer with a folder, ``sordina federate`` or a Flower app wrote.
            module: The model it trained; its weights are not used.
        """
        folder = Path(folder)
        claim = read_claim(folder)
        facts = read_json(folder / RESULT)
        text = private_files.read(folder / METRICS).decode() if (folder / METRICS).exists() else ""
        statement = PrivacyStatement(
            claim.placement or "none", claim.statement, claim.sound, claim.epsilon, claim.delta,
            claim.unit or Unit.USER, dict(claim.details), None, claim.adjacency,
        )  # fmt: skip
        accounts = {name: record.ClientStatement(**one) for name, one in facts.get("accounts", {}).items()}
        history = [json.loads(one) for one in text.splitlines()]
        models = load_models(folder, module)
        return cls(models, statement, accounts, history, {}, bool(claim.releasable), facts, folder)


def load_models(folder: str | Path, module: nn.Module) -> list[nn.Module]:
    """The models of a finished federation, in copies of ``module``.

    Args:
        folder: The run's folder.
        module: A module of the kind that was trained; its weights are not used.
    """
    folder = Path(folder)
    read_claim(folder)
    try:
        flat = np.load(io.BytesIO(private_files.read(folder / MODELS)), allow_pickle=False)["models"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{folder / MODELS} does not hold the models of a federation.") from error
    size = len(flat_parameters(module))
    if flat.ndim != 2 or flat.shape[1] != size:
        raise InvalidInput(
            f"the models in {folder} have {flat.shape[-1]:,} trained numbers, this module has {size:,}: give a module "
            "of the kind that was trained."
        )
    return [with_parameters(module, one) for one in torch.from_numpy(flat)]


def load_personal_model(folder: str | Path, module: nn.Module, run: int | None = None) -> nn.Module:
    """The model a client of a Flower app would use itself, from the client's own folder.

    Args:
        folder: The client's ``state-dir``.
        module: A module of the kind that was trained; its weights are not used.
        run: The number of the run; left out, the last one.
    """
    folder = Path(folder)
    pattern = f"{MODEL_PREFIX}{'*' if run is None else run}.npz"
    found = sorted(folder.glob(pattern), key=lambda one: one.stat().st_mtime_ns)
    if not found:
        raise InvalidInput(
            f"{folder} holds no model of {'any run' if run is None else f'run {run}'}: see the client's log."
        )
    with np.load(found[-1], allow_pickle=False) as stored:
        weights, models = torch.from_numpy(stored["weights"]), torch.from_numpy(stored["models"])
    if models.shape[1] != len(flat_parameters(module)):
        raise InvalidInput(f"{found[-1]} holds another kind of model than this module.")
    return own_model(module, weights, models)


class PersonalModels(Mapping[str, nn.Module]):
    """The clients' own models, each made when it is looked up.

    Args:
        finished: The run.
        module: Its model.
    """

    def __init__(self, finished: Finished, module: nn.Module) -> None:
        self._finished, self._module = finished, module
        problem = finished.problem
        self._numbers = {problem.name(number): number for number in range(len(problem.train))}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> nn.Module:
        finished, number = self._finished, self._numbers[name]
        work, problem = finished.method.work, finished.problem
        if work.state_sizes and not finished.states:
            raise Unsupported("the clients of this run keep their own models; here, on Flower, nobody else sees them.")
        row = torch.tensor([number])
        state = {key: finished.states[key][row] for key in work.state_sizes}
        cohort = problem.train.cohort(np.array([number]))
        order = RowOrder(0, len(finished.result.history))
        mine = used(work, problem.objective, finished.result.sent, cohort, state, order)
        return own_model(self._module, mine.weights[0], mine.models[0])


class WeightedModels(nn.Module):
    """Several models whose outputs are averaged in fixed shares.

    Args:
        models: The models.
        weights: Their shares.
    """

    def __init__(self, models: list[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.weights = nn.Parameter(weights.clone(), requires_grad=False)

    def forward(self, *inputs: Any) -> Tensor:
        """The weighted mean of the outputs."""
        outputs = [weight * model(*inputs) for weight, model in zip(self.weights, self.models, strict=True)]
        return torch.stack(outputs).sum(dim=0)


def own_model(module: nn.Module, weights: Tensor, models: Tensor) -> nn.Module:
    """One client's own model: a copy of ``module``, or of several, in shares.

    Args:
        module: The model's kind.
        weights: Shares, ``(M,)``.
        models: Flat models, ``(M, P)``.
    """
    made = [with_parameters(module, one) for one in models]
    return made[0] if len(made) == 1 else WeightedModels(made, weights).eval()
