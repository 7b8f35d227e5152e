"""Audit a run of `sordina train` or `sordina federate` by its folder alone, and leave what was found beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordina import private_files
from sordina.auditing import figures
from sordina.auditing.audit import SHADOWED, audit
from sordina.auditing.membership.recipe import Progress, Recipe, silent
from sordina.auditing.membership.samples import as_samples
from sordina.auditing.result import Audit
from sordina.auditing.studies.reconstruction import ReconstructionStudy
from sordina.auditing.subject import Subject
from sordina.errors import InvalidInput
from sordina.run_folder import TABLE_MODEL
from sordina.training.recipe import open_run
from sordina.types import Adjacency, Guarantee, Unit, check_seed


def audit_run(
    folder: str | Path,
    attacks: Sequence[str] = ("loss", "noisy"),
    *,
    rows: int = 5000,
    shadows: int = 16,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
    task: str | Path | None = None,
    members: str | Path | None = None,
    non_members: str | Path | None = None,
) -> Audit:
    """Attack the model of a run: what it was trained on against the rest of the training file, or the test set.

    A federation on data of its own (a Flower app, a `FederatedTrainer` with a folder) does not hold them: its ``task``,
    a Python file with a function ``model()``, says what was trained, and ``members`` and ``non_members`` are .npz files
    of ``x`` and ``y``.

    Only a run that left rows out by chance (`sordina train --rows`) can be refuted: a test file is another group of
    people. At most ``rows`` of each are looked at. Shadow models train without privacy on as many rows as there are
    members here, for as many epochs and with the same batches as the run.
    """
    if rows < 10:
        raise InvalidInput(f"an audit looks at 10 rows at least, got {rows}.")
    rng = np.random.default_rng(None if seed is None else check_seed(seed))
    if members is not None or non_members is not None or task is not None:
        if members is None or non_members is None or task is None:
            raise InvalidInput("task, members and non_members go together: what was trained, who was in, who was not.")
        from sordina.auditing.federation import open_with

        subject = open_with(Path(folder), Path(task), Path(members), Path(non_members))
    else:
        subject = open_subject(Path(folder))
    kept = min(rows, len(subject.members))
    calibrated = any(name in SHADOWED for name in attacks)
    subject = subject.some(kept, kept if calibrated else rows, rng)
    return audit(
        subject.model, subject.members, subject.others, attacks,
        claim=subject.claim, random_split=subject.random_split, delta=subject.delta, confidence=confidence,
        recipe=subject.recipe, shadows=shadows,
        seed=None if seed is None else seed + 1, progress=progress,
    )  # fmt: skip


def open_subject(folder: Path) -> Subject:
    """A run of ``sordina train`` or ``sordina federate``, by its folder alone."""
    if (folder / "models.npz").exists():
        from sordina.auditing.federation import open_federated

        return open_federated(folder)
    if (folder / TABLE_MODEL).exists():
        from sordina.auditing.table_runs import open_table_run

        return open_table_run(folder)
    made, data, model, privacy = open_run(folder)
    recipe = Recipe(
        epochs=max(1, round(made.epochs)),
        batch_size=min(made.batch_size, len(data.train)),
        learning_rate=made.lr or 1e-3,
        optimizer="sgd" if made.lr else "adam",
    )
    members, others = as_samples(data.train), as_samples(made.left_out())
    split = made.rows is not None
    return Subject(model, members, others, claim_of(privacy), made.delta, recipe, random_split=split)


def claim_of(privacy: dict[str, Any]) -> Guarantee:
    """The guarantee that a run's ``privacy.json`` states; infinite if it was trained without privacy."""
    try:
        epsilon = privacy["epsilon"]
        return Guarantee(
            math.inf if epsilon is None else float(epsilon),
            float(privacy["delta"]),
            Adjacency(privacy["adjacency"]),
            Unit(privacy["unit"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("the run's privacy.json states no guarantee to hold an audit against.") from error


def write_audit(found: Audit, folder: str | Path, facts: dict[str, Any] | None = None) -> Path:
    """Write ``audit.json`` (or ``facts`` by that name), ``roc.png``, ``epsilon.png`` and what else there is to see."""
    folder = Path(folder)
    private_files.make_folder(folder)
    private_files.write(folder / "audit.json", (json.dumps(facts or found.to_dict()) + "\n").encode())
    figures.roc_figure(found.results, folder / "roc.png")
    figures.epsilon_figure(found.results, folder / "epsilon.png")
    for result in found.results:
        if "auc_by_sigma" in result.details:
            figures.sigma_figure(result.details["auc_by_sigma"], folder / "sigma.png")
    return folder


def write_reconstructions(study: ReconstructionStudy, folder: str | Path) -> Path:
    """``inversion.json`` and ``reconstructions.png``."""
    folder = Path(folder)
    private_files.make_folder(folder)
    private_files.write(folder / "inversion.json", (json.dumps(study.to_dict()) + "\n").encode())
    rows = [(one.defence, one.images) for one in study.defences]
    captions = [[f"{item.psnr:.1f} dB" for item in one.qualities] for one in study.defences]
    figures.reconstruction_figure(study.originals, rows, folder / "reconstructions.png", captions)
    return folder
