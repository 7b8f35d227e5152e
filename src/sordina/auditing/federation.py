"""A federated run as an audit sees it: was a client, or a record, part of the training?

What is attacked is the unit that the run's guarantee speaks of. A client's loss is that of the model that fits it best,
as in use. Where fewer than ten clients were held out, rows are attacked instead: a guarantee for whole clients is one
for each of their rows too.
"""

from __future__ import annotations

import importlib.util
import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordina import private_files, randomness
from sordina.auditing.membership.samples import Samples
from sordina.auditing.membership.target import noise
from sordina.auditing.scores import FloatArray
from sordina.auditing.subject import Subject
from sordina.errors import InvalidInput, Unsupported
from sordina.federated import losses as losses_of
from sordina.federated.clients.hypotheses import losses
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population
from sordina.federated.recipe import Recipe
from sordina.federated.result import load_models
from sordina.run_folder import MODELS, RECIPE, read_claim, read_json
from sordina.training.batches import as_rows
from sordina.training.data_checks import check_takes
from sordina.types import Adjacency, Guarantee, Unit

_FEWEST = 10
_ADJACENCY = {"local": Adjacency.REPLACE_ONE, "record": Adjacency.ADD_REMOVE, "none": Adjacency.ADD_REMOVE}


@dataclass(frozen=True)
class Clients:
    """A `Target` whose samples are numbers of clients in ``population``, members first."""

    objective: Objective
    models: torch.Tensor
    population: Population

    @property
    def model(self) -> torch.nn.Module:
        """Shadow models of a federation would be federations."""
        raise Unsupported("a federated run is attacked without shadow models: use loss, noisy or both.")

    def losses(self, samples: Samples) -> FloatArray:
        """The loss of each client under the model that fits it best."""
        return self._losses(self.population, samples)

    def confidences(self, samples: Samples) -> FloatArray:
        """Minus the loss."""
        return -self.losses(samples)

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Losses with noise on every input."""
        x = self.population.x + noise(self.population.x, sigma, rng)
        return self._losses(Population(x, self.population.y, self.population.sizes), samples)

    def _losses(self, population: Population, samples: Samples) -> FloatArray:
        cohort = population.cohort(samples.inputs.numpy())
        best = losses(self.objective, self.models, cohort).nan_to_num(torch.inf).min(dim=1).values
        values: FloatArray = best.double().numpy()
        return values


def open_federated(folder: Path) -> Subject:
    """The run that ``sordina federate --out`` left in ``folder``."""
    try:
        privacy = read_claim(folder)
        unit, claim = Unit(privacy["unit"]), _claim(privacy)
        told = read_json(folder / RECIPE)
        own = told.get("population") is not None
        recipe = None if own else Recipe(**told)
        models = torch.from_numpy(
            np.load(io.BytesIO(private_files.read(folder / MODELS)), allow_pickle=False)["models"]
        )
    except (OSError, TypeError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{folder} is not the folder of a finished `sordina federate` run: {reason}") from error
    if recipe is None:
        raise InvalidInput(
            f"{folder} is a run on data of its own, which are not here: name --task, --members and --non-members, "
            "or call sordina.audit(result, members, non_members)."
        )
    if recipe.seed is None and recipe.data_seed is None:
        raise InvalidInput(f"{folder} does not say which clients took part: run `sordina federate` again.")
    problem = recipe.problem(randomness.generator(recipe.seed))
    train, held_out = problem.train, problem.held_out
    if held_out is None:
        raise InvalidInput(f"{folder} held no client out: there is nobody to compare the training clients with.")
    if unit is Unit.RECORD or len(held_out) < _FEWEST:
        train, held_out = _rows(train), _rows(held_out)
    everybody = Population(
        torch.cat([train.x, held_out.x]),
        torch.cat([train.y, held_out.y]),
        np.concatenate([train.sizes, held_out.sizes]),
    )
    numbers = torch.arange(len(everybody))
    return Subject(
        Clients(problem.objective, models, everybody),
        Samples(numbers[: len(train)]),
        Samples(numbers[len(train) :]),
        claim,
        privacy.get("delta") or recipe.delta,
    )


def open_with(folder: Path, task: Path, members: Path, non_members: Path) -> Subject:
    """A federation on data of its own: rows are attacked, each under the model that fits it best.

    Args:
        folder: The run's folder.
        task: A Python file with a function ``model()`` and, as ``LOSS``, a loss or its name: it is executed.
        members: An .npz file of ``x`` and ``y`` that were trained on.
        non_members: One of rows that were not.
    """
    claim = read_claim(folder)
    made = _task(task)
    loss = losses_of.of_any(getattr(made, "LOSS", "cross-entropy"))
    objective = of_module(made.model(), loss)
    models = torch.stack([flat_parameters(one) for one in load_models(folder, made.model())])
    shards = [_stored(path, models.dtype) for path in (members, non_members)]
    everybody = Population.of(shards)
    check_takes(made.model(), loss.value, as_rows((everybody.x, everybody.y)))
    numbers, count = torch.arange(len(everybody.x)), len(shards[0][0])
    return Subject(
        Clients(objective, models, _rows(everybody)),
        Samples(numbers[:count]),
        Samples(numbers[count:]),
        _claim(claim),
        claim.get("delta") or 1e-5,
    )


def _task(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("sordina_audited_task", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidInput(f"{path} is not a Python file with a function model().")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "model", None)):
        raise InvalidInput(f"{path} has no function model() that builds what was trained.")
    return module


def _stored(path: Path, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        with np.load(io.BytesIO(private_files.read(path)), allow_pickle=False) as stored:
            x, y = (torch.from_numpy(stored[name]) for name in ("x", "y"))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path} is not an .npz file of arrays x and y.") from error
    return x.to(dtype) if x.is_floating_point() else x, y.to(dtype) if y.is_floating_point() else y


def _rows(population: Population) -> Population:
    """Every row a client of its own."""
    return Population(population.x, population.y, np.ones(len(population.x), dtype=np.int64))


def _claim(privacy: dict[str, Any]) -> Guarantee | None:
    """What ``privacy.json`` states; metric privacy claims no epsilon of this kind."""
    placement = privacy["placement"]
    if placement == "metric":
        return None
    told = privacy.get("adjacency") or privacy["details"].get("adjacency")
    adjacency = Adjacency(told) if told else _ADJACENCY[placement]
    epsilon = math.inf if privacy["epsilon"] is None else float(privacy["epsilon"])
    return Guarantee(epsilon, float(privacy["delta"] or 0.0), adjacency, Unit(privacy["unit"]))
