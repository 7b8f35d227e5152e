"""Audit a run of `sordina train` by its folder alone, and leave what was found beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordina.auditing import figures
from sordina.auditing.audit import audit
from sordina.auditing.membership.recipe import Progress, Recipe, silent
from sordina.auditing.membership.samples import Samples, as_samples
from sordina.auditing.result import Audit
from sordina.auditing.studies.reconstruction import ReconstructionStudy
from sordina.errors import InvalidInput
from sordina.training.recipe import open_run
from sordina.types import Adjacency, Guarantee, Unit


def audit_run(
    folder: str | Path,
    attacks: Sequence[str] = ("loss", "noisy"),
    *,
    rows: int = 5000,
    shadows: int = 16,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = silent,
) -> Audit:
    """Attack the model of a run: its training rows are the members, the test rows are not.

    At most ``rows`` of each are looked at. Shadow models train without privacy on these rows, for as many epochs and
    with the same batches as the run.
    """
    made, data, model, privacy = open_run(folder)
    if rows < 10:
        raise InvalidInput(f"an audit looks at 10 rows at least, got {rows}.")
    rng = np.random.default_rng(seed)
    members, others = (_some(as_samples(part), rows, rng) for part in (data.train, data.test))
    recipe = Recipe(
        epochs=max(1, round(made.epochs)),
        batch_size=min(made.batch_size, len(members)),
        learning_rate=made.lr or 1e-3,
        optimizer="sgd" if made.lr else "adam",
    )
    return audit(
        model, members, others, attacks,
        claim=claim_of(privacy), delta=made.delta, confidence=confidence, recipe=recipe, shadows=shadows,
        seed=None if seed is None else seed + 1, progress=progress,
    )  # fmt: skip


def claim_of(privacy: dict[str, Any]) -> Guarantee:
    """The guarantee that a run's ``privacy.json`` states; infinite if it was trained without privacy."""
    epsilon = privacy["epsilon"]
    return Guarantee(
        math.inf if epsilon is None else float(epsilon),
        float(privacy["delta"]),
        Adjacency(privacy["adjacency"]),
        Unit(privacy["unit"]),
    )


def _some(samples: Samples, rows: int, rng: np.random.Generator) -> Samples:
    return samples.take(rng.permutation(len(samples))[:rows])


def write_audit(found: Audit, folder: str | Path, facts: dict[str, Any] | None = None) -> Path:
    """Write ``audit.json`` (or ``facts`` by that name), ``roc.png``, ``epsilon.png`` and what else there is to see."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(facts or found.to_dict()) + "\n", encoding="utf-8")
    figures.roc_figure(found.results, folder / "roc.png")
    figures.epsilon_figure(found.results, folder / "epsilon.png")
    for result in found.results:
        if "auc_by_sigma" in result.details:
            figures.sigma_figure(result.details["auc_by_sigma"], folder / "sigma.png")
    return folder


def write_reconstructions(study: ReconstructionStudy, folder: str | Path) -> Path:
    """``inversion.json`` and ``reconstructions.png``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inversion.json").write_text(json.dumps(study.to_dict()) + "\n", encoding="utf-8")
    rows = [(one.defence, one.images) for one in study.defences]
    captions = [[f"{item.psnr:.1f} dB" for item in one.qualities] for one in study.defences]
    figures.reconstruction_figure(study.originals, rows, folder / "reconstructions.png", captions)
    return folder
