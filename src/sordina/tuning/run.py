"""One run of a search: from an order to a trained model on disk.

A finished run leaves ``model.pt`` and ``result.json``, the latter last and at once; a killed one leaves a checkpoint
and a journal, from which it goes on without spending a step twice. The guarantee is the search's: a run's folder
states none, because nobody may quote the epsilon of one run out of many.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sordina.accounting import Event, to_dict
from sordina.errors import SordinaError, TrainingFailed
from sordina.training import Trainer
from sordina.training.checkpoint import atomically
from sordina.tuning.selection import Selection
from sordina.tuning.space import Configuration
from sordina.tuning.strategies import Fields, fields_of
from sordina.tuning.watchers import Best, Diverging
from sordina.types import Budget

MakeTrainer = Callable[[int], Trainer]
"""Makes a fresh trainer; the number seeds the first weights. Budget, noise, seed and folder are set by the search."""


@dataclass(frozen=True)
class Order:
    """One run to do."""

    number: int
    configuration: Configuration
    repetition: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class Brief:
    """What all runs of a search have in common."""

    trainer: MakeTrainer
    strategy: str | Fields | None
    budget: Budget
    noise_multiplier: float
    accountant: str
    selection: Selection
    folder: Path
    validate_every: int | None = None
    patience: int | None = None

    def place(self, order: Order) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / f"{order.number:04d}"

    def make(self, order: Order) -> Trainer:
        """The trainer of a run."""
        trainer = self.trainer(order.repetition)
        return replace(
            trainer,
            **fields_of(self.strategy, order.configuration),
            budget=self.budget, noise_multiplier=self.noise_multiplier, accountant=self.accountant, seed=order.seed,
            folder=self.place(order), ledger=None, dataset_budget=None, progress=False, tensorboard=False,
            validate_every=self.validate_every, track_epsilon=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a run left behind. Scores are there only where the selection is exact."""

    number: int
    configuration: Configuration
    repetition: int
    event: dict[str, Any]
    seconds: float
    stopped: str | None = None
    metric: str | None = None
    score: float | None = None
    best_step: int | None = None


def finished(folder: Path) -> Result | None:
    """The result in a run's folder, if the run has ended."""
    path = folder / "result.json"
    return Result(**json.loads(path.read_text())) if path.exists() else None


def perform(brief: Brief, order: Order, train: Any, validation: Any) -> None:
    """Do one run, or the rest of it."""
    folder = brief.place(order)
    trainer = brief.make(order)
    best, diverging = Best(trainer.model, folder / "best.pt", brief.patience), Diverging(trainer.model)
    trainer = replace(trainer, callbacks=(*trainer.callbacks, best, diverging))
    start = time.perf_counter()
    try:
        run = trainer.fit(
            train, validation if brief.selection.exact else None, resume=(folder / "journal.jsonl").exists()
        )
        event = run.plan.event()
        stopped = "diverged" if diverging.stopped else "no longer improving" if best.stopped else None
    except TrainingFailed:
        if not brief.selection.exact:
            raise
        event, stopped = trainer.private(train).plan.event(), "failed: not finite"
    leave(brief, order, trainer, event, time.perf_counter() - start, best, stopped)


def leave(
    brief: Brief, order: Order, trainer: Trainer, event: Event, seconds: float, best: Best, stopped: str | None
) -> None:
    """Write the model, then the result that says the run has ended; the rest is cleared away."""
    folder = brief.place(order)
    best.recall()
    (folder / "privacy.json").unlink(missing_ok=True)
    atomically(folder / "model.pt", lambda path: torch.save(trainer.model.state_dict(), path))
    result = Result(
        order.number, order.configuration, order.repetition, to_dict(event), round(seconds, 3),
        stopped, best.metric, best.value, best.step,
    )  # fmt: skip
    text = json.dumps(asdict(result), indent=2) + "\n"
    atomically(folder / "result.json", lambda path: path.write_text(text))
    for spent in ("checkpoint.pt", "best.pt"):
        (folder / spent).unlink(missing_ok=True)


def trained(brief: Brief, order: Order) -> Trainer:
    """The trainer of a finished run with its trained model."""
    trainer = brief.make(order)
    try:
        weights = torch.load(brief.place(order) / "model.pt", weights_only=True)
    except OSError as error:
        raise SordinaError(f"the model of run {order.number} is gone: {error}.") from error
    trainer.model.load_state_dict(weights)
    return trainer
