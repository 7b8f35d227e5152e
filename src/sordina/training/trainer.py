"""Train a model under a budget: state it once, fit, read the guarantee.

trainer = sd.Trainer(model, loss=torch.nn.functional.cross_entropy, budget=sd.Budget(epsilon=3, delta=1e-5),
                     clipping=sd.clipping.Online(), batch_size=512, epochs=10)
run = trainer.fit(train_data, validation=test_data)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordina.accounting.ledger import Ledger, Reservation
from sordina.clipping import Online, Policy
from sordina.clipping.per_layer import PerLayer
from sordina.errors import InvalidInput
from sordina.sampling import Users
from sordina.training import checkpoint
from sordina.training.batches import inputs_and_target
from sordina.training.callbacks import Callback, MetricsFile, Progress, StopTraining, TensorBoard
from sordina.training.distance import AutomaticRate
from sordina.training.evaluate import evaluate
from sordina.training.journal import Journal
from sordina.training.losses import Loss, per_sample
from sordina.training.private import Private, make_private
from sordina.training.rate import Rate
from sordina.training.raw import KEY
from sordina.training.run import Run
from sordina.types import Budget, check_positive

OptimizerMaker = Callable[[Iterable[Any]], torch.optim.Optimizer]
REPORTS = 20
"""A run reports about this many times, apart from its validations."""


@dataclass
class Trainer:
    """Everything about a private training run but the data. Nothing is checked before `fit`.

    ``optimizer`` makes any ``torch.optim`` optimiser from parameters; left out, plain SGD with ``lr`` is used. Without
    ``lr`` the learning rate follows from public facts (`AutomaticRate`), at no cost in privacy.
    ``folder`` turns on the metrics file, TensorBoard, checkpoints and the journal that makes `fit(resume=True)` safe.
    ``validate_every`` counts steps between validations; left out, an epoch. A watcher that raises `StopTraining` ends
    the run early, at the price of the whole. ``track_epsilon`` false saves the time to account every report.
    ``raw=True`` adds statistics of the raw data to the metrics, marked NOT_PRIVATE: for data that are nobody's.
    ``ledger`` and ``dataset_budget`` reserve the whole spend before a row is read, and settle it at the end.
    """

    model: nn.Module
    loss: Loss
    budget: Budget
    clipping: Policy[Any] | PerLayer | None = None
    batch_size: int = 512
    epochs: float = 10
    steps: int | None = None
    lr: float | None = None
    optimizer: OptimizerMaker | None = None
    learning_rate: Rate[Any] | None = None
    sampling: str = "poisson"
    population: int | None = None
    users: Users | None = None
    noise_multiplier: float | None = None
    accountant: str = "pld"
    microbatch: int | None = None
    autocast: torch.dtype | None = None
    seed: int | None = None
    folder: str | Path | None = None
    checkpoint_every: int = 200
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool = False
    tensorboard: bool = True
    validate_every: int | None = None
    track_epsilon: bool = True
    raw: bool = False

    def fit(self, data: Any, validation: Any = None, *, resume: bool = False) -> Run:
        """Train on ``data`` until the planned steps are taken; scores ``validation`` once an epoch."""
        private = self.private(data)
        self._check_folder(resume)
        reservation = self._reserve(private, resume)
        history = self._open_folder(private, resume, reservation)
        start = time.perf_counter()
        with ExitStack() as stack:
            watchers = [stack.enter_context(watcher) for watcher in self._watchers(private)]
            try:
                self._loop(private, validation, history, watchers)
            except StopTraining:
                private.book(private.plan.steps)
        if private.engine is not None:
            private.engine.close()
        if reservation is not None:
            reservation.settle(private.plan.event(private.steps_taken))
        run = Run(
            self.model, private.plan, private.steps_taken, repr(self.clipping or Online()), private.releasable,
            time.perf_counter() - start, history,
        )  # fmt: skip
        if self.folder is not None:
            run.save(self.folder)
        return run

    def private(self, data: Any) -> Private:
        """Model, optimiser, clipping and plan bound to ``data``, as `fit` will use them."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer, rule = self._optimizer(parameters)
        return make_private(
            self.model, optimizer, data,
            budget=self.budget, batch_size=self.batch_size, epochs=self.epochs, steps=self.steps,
            clipping=self.clipping, sampling=self.sampling, population=self.population, users=self.users,
            noise_multiplier=self.noise_multiplier, accountant=self.accountant, microbatch=self.microbatch,
            learning_rate=rule, raw=self.raw, seed=self.seed,
        )  # fmt: skip

    def _optimizer(self, parameters: list[Any]) -> tuple[torch.optim.Optimizer, Rate[Any] | None]:
        if self.optimizer is not None:
            if self.lr is not None:
                raise InvalidInput("give lr to the optimizer you make: lr= goes with the default SGD only.")
            return self.optimizer(parameters), self.learning_rate
        if self.lr is None:
            return torch.optim.SGD(parameters, lr=0.1), self.learning_rate or AutomaticRate()
        return torch.optim.SGD(parameters, lr=check_positive("lr", self.lr)), self.learning_rate

    def _loop(
        self, private: Private, validation: Any, history: list[dict[str, Any]], watchers: Sequence[Callback]
    ) -> None:
        loss, start = per_sample(self.loss), time.perf_counter()
        plan = private.plan
        epoch = max(1, round(plan.steps / max(1.0, self.epochs))) if self.steps is None else max(1, plan.steps // 10)
        epoch = self.validate_every or epoch
        every = max(1, plan.steps // REPORTS)
        self.model.train()
        for batch in private:
            inputs, target = inputs_and_target(batch)
            with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
                losses = loss(self.model(*inputs), target)
            if not private.step(losses.float() if self.autocast else losses):
                continue
            step, last = private.steps_taken, private.steps_taken == plan.steps
            validate = validation is not None and (step % epoch == 0 or last)
            if validate or step % every == 0 or last:
                entry = self.entry(private, time.perf_counter() - start)
                if validate:
                    entry["validation"] = evaluate(self.model, self.loss, validation)
                history.append(entry)
                for watcher in watchers:
                    watcher.report(entry)
            if self.folder is not None and (step % self.checkpoint_every == 0 or last):
                checkpoint.save(private, Path(self.folder) / "checkpoint.pt", {"history": history})

    def entry(self, private: Private, seconds: float) -> dict[str, Any]:
        """What a watcher is told of the step just taken."""
        epsilon = private.epsilon if self.track_epsilon else math.inf
        entry = {
            "step": private.steps_taken,
            "steps": private.plan.steps,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "threshold": private.private_step.thresholds[0] if private.plan.private else None,
            "learning_rate": float(private.optimizer.param_groups[0]["lr"]),
            "seconds": round(seconds, 3),
        }
        return entry | {KEY: private.raw} if private.raw else entry

    def _watchers(self, private: Private) -> list[Callback]:
        watchers = list(self.callbacks)
        if self.folder is not None:
            watchers.append(MetricsFile(Path(self.folder) / "metrics.jsonl"))
            if self.tensorboard:
                watchers.append(TensorBoard(Path(self.folder) / "tensorboard"))
        return [*watchers, Progress(private.plan.steps)] if self.progress else watchers

    def _check_folder(self, resume: bool) -> None:
        if self.folder is None:
            if resume:
                raise InvalidInput("resume=True needs the folder of the run to resume: Trainer(..., folder=...).")
            return
        journal = Path(self.folder) / "journal.jsonl"
        if not resume and journal.exists():
            raise InvalidInput(
                f"{self.folder} holds a run already. Resume it (resume=True, --resume) or choose another folder."
            )
        if resume and not journal.exists():
            raise InvalidInput(f"{self.folder} holds no run to resume: no journal.jsonl there.")

    def _reserve(self, private: Private, resume: bool) -> Reservation | None:
        if (self.ledger is None) != (self.dataset_budget is None):
            raise InvalidInput("ledger and dataset_budget go together: which ledger, and which of its data sets.")
        if self.ledger is None or self.dataset_budget is None:
            return None
        note = Path(self.folder or ".") / "reservation"
        if resume and note.exists():
            return self.ledger.reservation(int(note.read_text()))
        name = "" if self.folder is None else Path(self.folder).resolve().name[:80]
        where = f" in {name}" if name and name.isprintable() else ""
        return self.ledger.reserve(
            self.dataset_budget, private.plan.event(), what=f"train {type(self.model).__name__}{where}",
            adjacency=private.plan.adjacency, unit=private.plan.unit,
        )  # fmt: skip

    def _open_folder(self, private: Private, resume: bool, reservation: Reservation | None) -> list[dict[str, Any]]:
        if self.folder is None:
            return []
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        if reservation is not None:
            (folder / "reservation").write_text(str(reservation.id))
        private.journal = Journal.open(folder / "journal.jsonl")
        saved = folder / "checkpoint.pt"
        if resume and saved.exists():
            return list(checkpoint.load(private, saved, private.journal.claimed)["history"])
        if resume and private.releasable:
            private.book(private.journal.claimed)
        return []
