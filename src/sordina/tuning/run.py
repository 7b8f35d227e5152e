"""One run of a search: from an order to a trained model on disk.

A finished run leaves ``model.pt`` and ``result.json``, the latter last and at once. While it goes on, its training
keeps a folder of its own inside (`TRAINING`), from which a killed run goes on without spending a step twice; it goes
when the run has ended. The guarantee is the search's: a run's folder states none, because nobody may quote the epsilon
of one run out of many. A run of a search that stops at random keeps nothing before its end, and starts over if killed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sordina import private_files
from sordina.accounting import Event, to_dict
from sordina.errors import InvalidInput, TrainingFailed
from sordina.run_folder import JOURNAL, METRICS, MODEL, RESULT, read_json
from sordina.training import Trainer
from sordina.training.keeping import RARELY
from sordina.tuning.secret import private_randomness, silence
from sordina.tuning.selection import Selection
from sordina.tuning.space import Configuration
from sordina.tuning.strategies import Fields, fields_of
from sordina.tuning.watchers import Best, Diverging
from sordina.types import Budget

MakeTrainer = Callable[[int], Trainer]
"""Makes a fresh trainer; the number seeds the first weights. Budget, noise, seed and folder are set by the search."""
TRAINING, BEST = "training", "best.pt"
FAILED = "failed: no usable weights"


@dataclass(frozen=True)
class Order:
    """One run to do; ``weights`` seeds its first weights, ``seed`` its noise, which is secret without."""

    number: int
    configuration: Configuration
    repetition: int = 0
    seed: int | None = None
    weights: int = 0


@dataclass(frozen=True)
class Brief:
    """What all runs of a search have in common. ``runs`` is the folder of their folders."""

    trainer: MakeTrainer
    strategy: str | Fields | None
    budget: Budget
    noise_multiplier: float
    accountant: str
    selection: Selection
    runs: Path
    validate_every: int | None = None
    patience: int | None = None
    stacked: bool = False
    """Whether runs are done in groups, on a `Stack`: decided once, since the two ways keep different journals."""
    secret: bool = False
    """Random stopping: nobody may learn which run is which, so a run has all its randomness from its own seed."""

    def place(self, order: Order) -> Path:
        """The folder of a run."""
        return self.runs / f"{order.number:04d}"

    def make(self, order: Order) -> Trainer:
        """The trainer of a run."""
        with self.randomness(order):
            trainer = self.trainer(order.weights)
        trainer = replace(
            trainer,
            **fields_of(self.strategy, order.configuration),
            budget=self.budget, noise_multiplier=self.noise_multiplier, accountant=self.accountant, seed=order.seed,
            folder=self.place(order) / TRAINING, ledger=None, dataset_budget=None, progress=False, tensorboard=False,
            validate_every=self.validate_every, track_epsilon=False,
            checkpoint_every=trainer.checkpoint_every or RARELY,
        )  # fmt: skip
        return replace(trainer, folder=None, raw=False) if self.secret else trainer

    @contextmanager
    def randomness(self, order: Order) -> Iterator[None]:
        """Where the run's part in the global generators comes from; a run of which nobody may know is silent."""
        if not self.secret:
            yield
            return
        with private_randomness(order.weights), silence():
            yield


@dataclass(frozen=True)
class Result:
    """What a run left behind. Scores are there only where the selection is exact."""

    number: int
    configuration: Configuration
    repetition: int
    event: dict[str, Any]
    stopped: str | None = None
    metric: str | None = None
    score: float | None = None
    best_step: int | None = None


def finished(folder: Path) -> Result | None:
    """The result in a run's folder, if the run has ended."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        return Result(**read_json(path))
    except TypeError as error:
        raise InvalidInput(f"{path} is damaged: begin a new search in another folder.") from error


def perform(brief: Brief, order: Order, train: Any, validation: Any) -> None:
    """Do one run, or the rest of it."""
    folder = brief.place(order)
    private_files.make_folder(folder)
    trainer = brief.make(order)
    if brief.secret:
        private_files.remove(folder / BEST)
    best, diverging = Best(trainer.model, folder / BEST, brief.patience), Diverging(trainer.model)
    trainer = replace(trainer, callbacks=(*trainer.callbacks, best, diverging))
    resume = trainer.folder is not None and (Path(trainer.folder) / JOURNAL).exists()
    try:
        with brief.randomness(order):
            run = trainer.fit(train, validation if brief.selection.exact else None, resume=resume)
        event = run.plan.event() if brief.secret else run.event
        stopped = "diverged" if diverging.stopped else "no longer improving" if best.stopped else None
    except TrainingFailed:  # of released weights
        private = trainer.private(train)
        private.close()
        event, stopped = private.plan.event(), FAILED
    leave(brief, order, trainer, event, best, stopped)


def leave(brief: Brief, order: Order, trainer: Trainer, event: Event, best: Best, stopped: str | None) -> None:
    """Write the model, then the result that says the run has ended; the rest is cleared away."""
    folder = brief.place(order)
    best.recall()
    private_files.write(folder / MODEL, lambda file: torch.save(trainer.model.state_dict(), file))
    if (folder / TRAINING / METRICS).exists():
        private_files.write(folder / METRICS, private_files.read(folder / TRAINING / METRICS))
    result = Result(
        order.number, order.configuration, order.repetition, to_dict(event),
        stopped, best.metric, best.value, best.step,
    )  # fmt: skip
    private_files.write(folder / RESULT, (json.dumps(asdict(result), indent=2) + "\n").encode())
    private_files.remove(folder / BEST)
    shutil.rmtree(folder / TRAINING, ignore_errors=True)


def trained(brief: Brief, order: Order) -> Trainer:
    """The trainer of a finished run with its trained model."""
    trainer = brief.make(order)
    load_weights(trainer.model, brief.place(order) / MODEL)
    return trainer


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Put the weights in the file ``path`` into ``model``; a file that holds none for it is refused.

    Args:
        model: Gets the weights.
        path: What ``torch.save(model.state_dict(), ...)`` wrote. Nothing in it is executed.
    """
    with private_files.explained("read", path):
        private_files.sha256(path)
        try:
            model.load_state_dict(torch.load(path, weights_only=True))
        except OSError:
            raise
        except Exception as error:
            raise InvalidInput(f"{path} does not hold the weights of this model.") from error
