"""One run of a search: from an order to a trained model on disk, and what stays secret."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sordina import private_files
from sordina.accounting import Event, to_dict
from sordina.errors import InvalidInput, TrainingFailed
from sordina.privacy import Budget
from sordina.run_folder import JOURNAL, METRICS, MODEL, RESULT, RunFolder, read_json
from sordina.training import Trainer
from sordina.training.run_keeper import RARELY
from sordina.tuning.chosen_schedule import ChosenSchedule, configured
from sordina.tuning.selection import Selection
from sordina.tuning.space import Configuration, Fields, fields_of
from sordina.tuning.watchers import BEST, TRAINING, Best, Watchers

# What a search that stops at random keeps to itself: how many runs there were, and which of them won.
#
# Papernot and Steinke 2022 prove the price of random stopping for an observer who sees the best run and nothing else.
# So
#
# - everything that tells of the runs lies in one part of the folder, `INTERNAL`, and goes when the search ends;
# - what stays carries the date at which the search began: the time in between is proportional to the number of runs;
# - runs are done one by one, by a number of workers and threads that does not depend on how many there are;
# - a run draws all its randomness, also that of PyTorch's and numpy's global generators, from a seed of its own
#   (`private_randomness`): a position in a common stream would tell its number;
# - a run logs nothing and warns of nothing: the same words from every run would tell how many there are;
# - a run that was killed starts over: what it had done was never seen.
#
# Who looks into the folder, or at the clock, *while* the search runs is not that observer (SECURITY.md).

INTERNAL = "internal"
_NOTE = (
    "This part of the folder exists while the search runs. It tells how many runs there are and which is best; the "
    "guarantee of the search does not hold against who reads it. It is removed when the search ends.\n"
)


def part(folder: Path) -> Path:
    """The internal part of a search's ``folder``."""
    return folder / INTERNAL


def write_json(folder: RunFolder, name: str, value: Any) -> None:
    """Write plain data into the internal part, which is made if it is missing.

    Args:
        folder: The search's folder.
        name: The file's name.
        value: Plain data.
    """
    inside = part(folder.path)
    private_files.make_folder(inside)
    private_files.write(inside / "READ-ME", _NOTE.encode())
    folder.write_json(f"{INTERNAL}/{name}", value)


def erase(folder: Path, began: float) -> None:
    """Remove the internal part and give all that stays the date at which the search began.

    Args:
        folder: The search's folder.
        began: In seconds since 1970.
    """
    inside = part(folder)
    if inside.exists():
        with private_files.explained("remove", inside):
            shutil.rmtree(inside)
    date_back(folder, began)


def date_back(folder: Path, began: float) -> None:
    """Give ``folder`` and all in it the date ``began``.

    Args:
        folder: What to date.
        began: In seconds since 1970.
    """
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            os.utime(path, (began, began))


@contextmanager
def private_randomness(seed: int) -> Iterator[None]:
    """Start the global generators of PyTorch, numpy and Python from ``seed``, and put them back afterwards.

    Args:
        seed: Drawn at random for the run that goes on inside.
    """
    before, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is logged, and no warning shown, while a run of which nobody may know goes on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# One run of a search: from an order to a trained model on disk.
#
# A finished run leaves ``model.pt`` and ``result.json``, the latter last and at once. While it goes on, its training
# keeps a folder of its own inside (`TRAINING`), from which a killed run goes on without spending a step twice; it goes
# when the run has ended. The guarantee is the search's: a run's folder states none, because nobody may quote the
# epsilon of one run out of many. A run of a search that stops at random keeps nothing before its end, and starts over
# if killed.

MakeTrainer = Callable[[int], Trainer]
"""Makes a fresh trainer; the number seeds the first weights. Budget, noise, seed and folder are set by the search."""
FAILED = "failed: no usable weights"


@dataclass(frozen=True)
class RunOrder:
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
    """Whether runs are done in groups, on a `LinearStack`: decided once, since the two ways keep different journals."""
    secret: bool = False
    """Random stopping: nobody may learn which run is which, so a run has all its randomness from its own seed."""
    chosen: ChosenSchedule | None = None
    """Batch size and epochs, where the trainer states none."""
    prune: float | None = None
    """The share of the other runs that a run must not be behind (`Behind`)."""
    after: int = 2
    """So many other runs must have come as far before one is ended for that."""

    def place(self, order: RunOrder) -> Path:
        """The folder of a run."""
        return self.runs / f"{order.number:04d}"

    def watchers(self, order: RunOrder, model: nn.Module) -> Watchers:
        """What looks at a run while it goes on."""
        return Watchers.of(
            model, self.place(order), patience=self.patience, prune=self.prune, after=self.after,
            metric=self.selection.metric,
        )  # fmt: skip

    def make(self, order: RunOrder) -> Trainer:
        """The trainer of a run."""
        with self.randomness(order):
            trainer = self.trainer(order.weights)
        trainer = replace(
            configured(trainer, self.chosen, fields_of(self.strategy, order.configuration)),
            budget=self.budget, noise_multiplier=self.noise_multiplier, accountant=self.accountant, seed=order.seed,
            folder=self.place(order) / TRAINING, ledger=None, dataset_budget=None, progress=False, tensorboard=False,
            validate_every=self.validate_every, track_epsilon=False,
            checkpoint_every=trainer.checkpoint_every or RARELY,
        )  # fmt: skip
        return replace(trainer, folder=None, raw=False) if self.secret else trainer

    @contextmanager
    def randomness(self, order: RunOrder) -> Iterator[None]:
        """Where the run's part in the global generators comes from; a run of which nobody may know is silent."""
        if not self.secret:
            yield
            return
        with private_randomness(order.weights), silence():
            yield


@dataclass(frozen=True)
class RunResult:
    """What a run left behind. Scores are there only where the selection is exact."""

    number: int
    configuration: Configuration
    repetition: int
    event: dict[str, Any]
    stopped: str | None = None
    metric: str | None = None
    score: float | None = None
    best_step: int | None = None


def finished(folder: Path) -> RunResult | None:
    """The result in a run's folder, if the run has ended."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        return RunResult(**read_json(path))
    except TypeError as error:
        raise InvalidInput(f"{path} is damaged: begin a new search in another folder.") from error


def perform(brief: Brief, order: RunOrder, train: Any, validation: Any) -> None:
    """Do one run, or the rest of it."""
    folder = brief.place(order)
    private_files.make_folder(folder)
    trainer = brief.make(order)
    if brief.secret:
        private_files.remove(folder / BEST)
    watchers = brief.watchers(order, trainer.model)
    trainer = replace(trainer, callbacks=(*trainer.callbacks, *watchers))
    resume = trainer.folder is not None and (Path(trainer.folder) / JOURNAL).exists()
    try:
        with brief.randomness(order):
            run = trainer.fit(train, validation if brief.selection.exact else None, resume=resume)
        event = run.plan.event() if brief.secret else run.event
        stopped = watchers.stopped
    except TrainingFailed:  # of released weights
        private = brief.make(order).private(train)  # as it began: what it released before its steps is paid for too
        private.close()
        event, stopped = private.plan.event(), FAILED
    leave(brief, order, trainer, event, watchers.best, stopped)


def leave(brief: Brief, order: RunOrder, trainer: Trainer, event: Event, best: Best, stopped: str | None) -> None:
    """Write the model, then the result that says the run has ended; the rest is cleared away."""
    folder = brief.place(order)
    best.recall()
    private_files.write(folder / MODEL, lambda file: torch.save(trainer.model.state_dict(), file))
    if (folder / TRAINING / METRICS).exists():
        private_files.write(folder / METRICS, private_files.read(folder / TRAINING / METRICS))
    result = RunResult(
        order.number, order.configuration, order.repetition, to_dict(event),
        stopped, best.metric, best.value, best.step,
    )  # fmt: skip
    private_files.write(folder / RESULT, (json.dumps(asdict(result), indent=2) + "\n").encode())
    private_files.remove(folder / BEST)
    shutil.rmtree(folder / TRAINING, ignore_errors=True)


def trained(brief: Brief, order: RunOrder) -> Trainer:
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
