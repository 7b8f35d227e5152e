"""Audit a finished run by its folder alone, federated or not, and leave what was found beside it.

A run on a table as an audit sees it: was a row, or a person, part of the training?

Where a person has several rows one of them stands for the person: all of them were in or out by one coin.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from sordina import private_files, random
from sordina.auditing import findings
from sordina.auditing.audit import SHADOWED, audit
from sordina.auditing.findings import Audit
from sordina.auditing.membership.shadows import PlainTraining
from sordina.auditing.membership.target import Samples, as_samples, confidence, noise
from sordina.auditing.one_run import Membership
from sordina.auditing.reconstruction import ReconstructionStudy
from sordina.auditing.scores import FloatArray
from sordina.errors import InvalidInput, SordinaError, Unsupported
from sordina.estimators.table_model import TableModel, frame_of, load
from sordina.estimators.table_run import rows_of, tested_rows
from sordina.federated import losses as losses_of
from sordina.federated.algorithms.ifca import client_losses
from sordina.federated.objective import Objective, flat_parameters, of_module
from sordina.federated.population import Population
from sordina.federated.recipe import FederatedRecipe
from sordina.federated.result import load_models
from sordina.privacy import Guarantee, Unit, check_seed
from sordina.privacy_claim import PrivacyClaim
from sordina.progress import Progress, silent
from sordina.run_folder import AUDIT, INVERSION, MODELS, RECIPE, SPLIT, TABLE_MODEL, read_claim, read_json
from sordina.tables import PreparedTable, read_table
from sordina.training.batches import as_rows
from sordina.training.losses import check_takes
from sordina.training.recipe import open_run

# A finished run as an audit sees it: a model, who was in, who was not, and what was claimed.


@dataclass(frozen=True)
class AuditedRun:
    """``recipe`` says how shadow models are trained; None where there can be none."""

    model: Any
    members: Samples
    others: Samples
    claim: Guarantee | None
    delta: float
    recipe: PlainTraining | None = None
    membership: Membership = field(default_factory=Membership)
    """How it was decided who was in."""

    def some(self, members: int, others: int, rng: np.random.Generator) -> AuditedRun:
        """At most so many of each, drawn at random; of those in by coins, so many in all, without a look at the coins.

        Args:
            members: The most members.
            others: The most others.
            rng: For the draw.
        """
        if self.membership.drawn == "coins":
            total = min(len(self.members) + len(self.others), members + others)
            members = int(rng.hypergeometric(len(self.members), len(self.others), total))
            others = total - members
        return replace(self, members=_drawn(self.members, members, rng), others=_drawn(self.others, others, rng))

    def audited(
        self, attacks: Sequence[str], members: int, others: int, *, seed: int | None = None, **options: Any
    ) -> Audit:
        """Attack some of the members and of the others.

        Args:
            attacks: Names of `ATTACKS`.
            members: The most members to look at.
            others: The most others.
            seed: Makes the audit repeatable.
            options: Further arguments of `sordina.audit`.
        """
        kept = self.some(members, others, np.random.default_rng(None if seed is None else check_seed(seed)))
        return audit(
            kept.model, kept.members, kept.others, attacks, claim=kept.claim, membership=kept.membership,
            delta=kept.delta, recipe=kept.recipe, seed=None if seed is None else seed + 1, **options,
        )  # fmt: skip


def _drawn(samples: Samples, most: int, rng: np.random.Generator) -> Samples:
    return samples.take(rng.permutation(len(samples))[:most])


# A federated run as an audit sees it: was a client, or a record, part of the training?
#
# What is attacked is the unit that the run's guarantee speaks of. A client's loss is that of the model that fits it
# best, as in use. Where fewer than ten clients were held out, rows are attacked instead: a guarantee for whole clients
# is one for each of their rows too.

_FEWEST = 10


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
        best = client_losses(self.objective, self.models, cohort).nan_to_num(torch.inf).min(dim=1).values
        values: FloatArray = best.double().numpy()
        return values


def open_federated(folder: Path) -> AuditedRun:
    """The run that ``sordina federate --out`` left in ``folder``."""
    try:
        privacy = read_claim(folder)
        unit, claim = privacy.unit, _claim(privacy)
        told = read_json(folder / RECIPE)
        own = told.get("population") is not None
        recipe = None if own else FederatedRecipe.from_dict(told)
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
    problem = recipe.problem(random.generator(recipe.seed))
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
    return AuditedRun(
        Clients(problem.objective, models, everybody),
        Samples(numbers[: len(train)]),
        Samples(numbers[len(train) :]),
        claim,
        privacy.delta or recipe.delta,
    )


def open_with(folder: Path, task: Path, members: Path, non_members: Path) -> AuditedRun:
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
    return AuditedRun(
        Clients(objective, models, _rows(everybody)),
        Samples(numbers[:count]),
        Samples(numbers[count:]),
        _claim(claim),
        claim.delta or 1e-5,
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


def _claim(privacy: PrivacyClaim) -> Guarantee | None:
    """What ``privacy.json`` states; metric privacy claims no epsilon of this kind."""
    return None if privacy.placement == "metric" else claim_of(privacy)


# Audit a run of `sordina train` or `sordina federate` by its folder alone, and leave what was found beside it.


def audit_run(
    folder: str | Path,
    attacks: Sequence[str] = ("loss", "noisy"),
    *,
    rows: int = 5000,
    shadows: int = 16,
    shadow_folder: str | Path | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
    task: str | Path | None = None,
    members: str | Path | None = None,
    non_members: str | Path | None = None,
) -> Audit:
    """Attack the model of a run: what it was trained on against the rest of the training file, or the test set.

    Only a run that left rows out by chance (`sordina train --rows`) can be refuted: a test file is another group of
    people. Shadow models train without privacy on as many rows as there are members here, for as many epochs and with
    the same batches as the run. A federation on data of its own (a Flower app, a `FederatedTrainer` with a folder) does
    not hold them: ``task``, ``members`` and ``non_members`` bring them.

    Args:
        folder: The run's folder.
        attacks: Names of `ATTACKS`.
        rows: The most members and non-members to look at.
        shadows: How many shadow models, for attacks that use them.
        shadow_folder: Keeps their answers, for another audit of the same rows with the same seed.
        confidence: That of all bounds together.
        seed: Makes the audit repeatable.
        progress: Told of every shadow model.
        task: A Python file with a function ``model()`` that builds what was trained; it is executed.
        members: An .npz file of ``x`` and ``y`` that were trained on.
        non_members: One of rows that were not.
    """
    check_rows(rows)
    if members is not None or non_members is not None or task is not None:
        if members is None or non_members is None or task is None:
            raise InvalidInput("task, members and non_members go together: what was trained, who was in, who was not.")
        subject = open_with(Path(folder), Path(task), Path(members), Path(non_members))
    else:
        subject = open_subject(Path(folder))
    # How many rows are looked at must not tell how many coins fell on "in".
    kept = rows if subject.membership.drawn == "coins" else min(rows, len(subject.members))
    calibrated = any(name in SHADOWED for name in attacks)
    return subject.audited(
        attacks, kept, kept if calibrated else rows, seed=seed,
        confidence=confidence, shadows=shadows, shadow_folder=shadow_folder, progress=progress,
    )  # fmt: skip


def check_rows(rows: int) -> None:
    """Refuse to look at next to nothing.

    Args:
        rows: The most members and non-members to look at.
    """
    if rows < 10:
        raise InvalidInput(f"an audit looks at 10 rows at least, got {rows}.")


def open_subject(folder: Path) -> AuditedRun:
    """A run of ``sordina train`` or ``sordina federate``, by its folder alone."""
    if (folder / MODELS).exists():
        return open_federated(folder)
    if (folder / TABLE_MODEL).exists():
        return open_table_run(folder)
    made, data, model, privacy = open_run(folder)
    made = made.planned(data)
    recipe = PlainTraining(
        epochs=max(1, round(made.epochs or 1)),
        batch_size=min(made.batch_size or 1, len(data.train)),
        learning_rate=made.learning_rate or 1e-3,
        optimizer="sgd" if made.learning_rate else "adam",
    )
    members, others = as_samples(data.train), as_samples(made.left_out())
    drawn = Membership("own" if made.rows is None else "fixed")
    return AuditedRun(model, members, others, claim_of(privacy), made.delta, recipe, drawn)


def claim_of(privacy: PrivacyClaim) -> Guarantee:
    """The guarantee that a run's ``privacy.json`` states; infinite if it was trained without privacy."""
    try:
        return privacy.guarantee
    except SordinaError as error:
        raise InvalidInput("the run's privacy.json states no guarantee to hold an audit against.") from error


def write_audit(found: Audit, folder: str | Path, facts: dict[str, Any] | None = None) -> Path:
    """Write ``audit.json``, ``roc.png``, ``epsilon.png`` and what else there is to see; returns the folder.

    Args:
        found: The audit.
        folder: Where to; the run's own, as a rule.
        facts: What ``audit.json`` says, where that is more than the audit itself.
    """
    folder = Path(folder)
    private_files.make_folder(folder)
    private_files.write(folder / AUDIT, (json.dumps(facts or found.to_dict()) + "\n").encode())
    findings.roc_figure(found.results, folder / "roc.png")
    findings.epsilon_figure(found.results, folder / "epsilon.png")
    for result in found.results:
        if "auc_by_sigma" in result.details:
            findings.sigma_figure(result.details["auc_by_sigma"], folder / "sigma.png")
    return folder


def write_reconstructions(study: ReconstructionStudy, folder: str | Path) -> Path:
    """``inversion.json`` and ``reconstructions.png``."""
    folder = Path(folder)
    private_files.make_folder(folder)
    private_files.write(folder / INVERSION, (json.dumps(study.to_dict()) + "\n").encode())
    rows = [(one.defence, one.images) for one in study.defences]
    captions = [[f"{item.psnr:.1f} dB" for item in one.qualities] for one in study.defences]
    findings.reconstruction_figure(study.originals, rows, folder / "reconstructions.png", captions)
    return folder


# A run on a table as an audit sees it: was a row, or a person, part of the training?


@dataclass(frozen=True)
class EstimatorTarget:
    """A `Target` over a fitted estimator; samples are prepared rows."""

    fitted: TableModel

    @property
    def model(self) -> NoReturn:
        """Shadow models of an estimator would have to be fitted privately, or not be like it."""
        raise Unsupported("a run on a table is attacked without shadow models: use loss, noisy or both.")

    def losses(self, samples: Samples) -> FloatArray:
        """Cross-entropy, a hinge where there are no probabilities, or the squared error of a number."""
        if not self.fitted.classes:
            return (self._predicted(samples) - self._truth(samples)) ** 2
        losses: FloatArray = np.logaddexp(0.0, -self.confidences(samples))
        return losses

    def confidences(self, samples: Samples) -> FloatArray:
        """The log odds of the truth; minus the loss for numbers."""
        if not self.fitted.classes:
            return -self.losses(samples)
        estimator: Any = self.fitted.estimator
        rows = self._rows(samples)
        if hasattr(estimator, "predict_proba"):
            scores = np.log(np.clip(estimator.predict_proba(rows), 1e-12, 1.0))
        else:
            scores = np.asarray(estimator.decision_function(rows))
            scores = np.column_stack([np.zeros(len(scores)), scores]) if scores.ndim == 1 else scores
        labels = torch.from_numpy(self._truth(samples).astype(np.int64))
        odds: FloatArray = confidence(torch.from_numpy(scores), labels).numpy()
        return odds

    def noisy_losses(self, samples: Samples, sigma: float, rng: np.random.Generator) -> FloatArray:
        """Losses with noise on every prepared column."""
        return self.losses(Samples(samples.inputs + noise(samples.inputs, sigma, rng), samples.labels))

    def _rows(self, samples: Samples) -> Any:
        return frame_of(samples.inputs.numpy(), self.fitted.schema)

    def _predicted(self, samples: Samples) -> FloatArray:
        estimator: Any = self.fitted.estimator
        return np.asarray(estimator.predict(self._rows(samples)), np.float64)

    @staticmethod
    def _truth(samples: Samples) -> FloatArray:
        if samples.labels is None:
            raise InvalidInput("a model of a table is attacked with its targets.")
        truth: FloatArray = samples.labels.numpy().astype(np.float64)
        return truth


def open_table_run(folder: Path) -> AuditedRun:
    """A finished run of ``sordina train FILE`` by its folder; the file must still be where it was.

    Args:
        folder: The run's folder.
    """

    fitted = load(folder)
    asked = read_json(folder / RECIPE) if (folder / RECIPE).is_file() else {}
    if not isinstance(asked.get("dataset"), str):
        raise InvalidInput("this run was trained on a frame: audit it in Python (sordina.audit), with its rows.")
    reading: dict[str, Any] = {
        "encoding": str(asked.get("encoding", "utf-8")),
        "separator": str(asked.get("separator", ",")),
    }
    table = read_table(asked["dataset"], fitted.schema, **reading)
    share, seed = asked.get("test_share"), read_json(folder / SPLIT).get("seed")
    if share is not None and seed is not None:
        tested = tested_rows(table, float(share), int(seed))
        members, others = rows_of(table, np.flatnonzero(~tested)), rows_of(table, np.flatnonzero(tested))
    elif isinstance(asked.get("test"), str):
        members, others = table, read_table(asked["test"], fitted.schema, **reading)
    else:
        raise InvalidInput(
            "this run kept nobody out: train with --test-share (chance decides, so a claim can be refuted) or --test."
        )
    drawn = Membership() if share is None else Membership("coins", 1 - float(share))
    return AuditedRun(
        EstimatorTarget(fitted), _samples(members), _samples(others), claim_of(PrivacyClaim.from_dict(fitted.facts)),
        float(fitted.facts["delta"]), membership=drawn,
    )  # fmt: skip


def _samples(table: PreparedTable) -> Samples:
    if table.owners is not None:
        table = rows_of(table, np.unique(table.owners.numpy(), return_index=True)[1])
    inputs, targets = table.dataset().tensors
    return Samples(inputs, targets)
