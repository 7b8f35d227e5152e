"""A run on a table as an audit sees it: was a row, or a person, part of the training?

Where a person has several rows one of them stands for the person: all of them were in or out by one coin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from sordina.auditing.membership.target import Samples, confidence, noise
from sordina.auditing.one_run import Membership
from sordina.auditing.runs import AuditedRun
from sordina.auditing.scores import FloatArray
from sordina.errors import InvalidInput, Unsupported
from sordina.estimators.table_model import TableModel, frame_of, load
from sordina.estimators.table_run import rows_of, tested_rows
from sordina.privacy_claim import PrivacyClaim
from sordina.run_folder import RECIPE, SPLIT, read_json
from sordina.tables import PreparedTable, read_table


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
    from sordina.auditing.runs import claim_of

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
