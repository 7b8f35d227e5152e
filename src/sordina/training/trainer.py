"""Train a model under a budget: state it once, fit, read the guarantee.

trainer = sd.Trainer(model, loss=torch.nn.functional.cross_entropy, budget=sd.Budget(epsilon=3, delta=1e-5),
                     clipping=sd.clipping.Online(), batch_size=512, epochs=10)
run = trainer.fit(train_data, validation=test_data)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordina.accounting.ledger import Ledger
from sordina.clipping import Policy
from sordina.clipping.per_layer import PerLayer
from sordina.errors import InvalidInput
from sordina.gradients import Engine
from sordina.gradients.check import frozen_norms
from sordina.gradients.removal import LossWatch
from sordina.run_folder import METRICS
from sordina.sampling import Users
from sordina.training.batches import Rows, as_rows, blank_batch, inputs_and_target
from sordina.training.callbacks import Callback, MetricsFile, Progress, StopTraining, TensorBoard
from sordina.training.data_checks import check_takes
from sordina.training.distance import AutomaticRate
from sordina.training.evaluate import evaluate
from sordina.training.failing_rows import FailingRows
from sordina.training.keeping import RunKeeper
from sordina.training.losses import Loss, per_sample
from sordina.training.own_loop import make_private
from sordina.training.plan import check_whole
from sordina.training.private import Private
from sordina.training.rate import Rate
from sordina.training.raw import KEY
from sordina.training.run import Run
from sordina.training.settings import described
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
    ``public_buffers`` names buffers that a forward pass may change: what they hold must not depend on the data.
    ``raw=True`` adds statistics of the raw data to the metrics, marked NOT_PRIVATE: for data that are nobody's.
    ``ledger`` and ``dataset_budget`` reserve the whole spend before a row is read, and settle it at the end.
    ``checkpoint_every`` counts steps; left out, checkpoints are as frequent as is cheap. ``recipe`` is saved in the
    folder as ``recipe.json``.
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
    checkpoint_every: int | None = None
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool = False
    tensorboard: bool = True
    validate_every: int | None = None
    track_epsilon: bool = True
    raw: bool = False
    public_buffers: Sequence[str] = ()
    recipe: Mapping[str, Any] | None = None
    _fitted: bool = field(default=False, init=False, repr=False, compare=False)

    def fit(self, data: Any, validation: Any = None, *, resume: bool = False) -> Run:
        """Train on ``data`` until the planned steps are taken; scores ``validation`` once an epoch.

        A trainer fits once: a second time would train the same model on, and spend again.

        Args:
            data: What is trained on: a TensorDataset, a tuple of tensors, or a map-style Dataset.
            validation: Held-out data, scored without noise; the guarantee does not cover them.
            resume: Go on with the run in ``folder``. One that has ended is only read.
        """
        if self._fitted:
            raise InvalidInput(
                "this trainer has fitted already: a second fit would train the same model on and spend its budget "
                "again. Make a new Trainer, with a new model."
            )
        private = self._checked(data, validation)
        private.keeper = RunKeeper.open(
            private, folder=self.folder, resume=resume, ledger=self.ledger, dataset_budget=self.dataset_budget,
            checkpoint_every=self.checkpoint_every, settings=self._settings(),
            recipe=None if self.recipe is None else dict(self.recipe),
        )  # fmt: skip
        self._fitted = True
        try:
            if private.steps_taken < private.plan.steps:
                with suppress(StopTraining), ExitStack() as stack:
                    self._loop(private, validation, [stack.enter_context(one) for one in self._watchers(private)])
            return private.finish()
        except BaseException as error:
            private.keeper.failed(error)
            raise
        finally:
            private.close()

    def _checked(self, data: Any, validation: Any) -> Private:
        """Everything that can be found wrong before anything is reserved or drawn."""
        if self.validate_every is not None:
            check_whole("validate_every", self.validate_every)
        for rows in [data] if validation is None else [data, validation]:
            check_takes(self.model, self.loss, as_rows(rows))
        private = self.private(data)
        private.own_loop = False
        if private.engine is not None:
            try:
                self.rehearse(private.rows, private.engine)
            except BaseException:
                private.close()
                raise
        return private

    def rehearse(self, rows: Rows, engine: Engine) -> None:
        """Refuse a model or a loss of which it cannot be seen that samples stay apart, before anything is spent.

        Args:
            rows: The data; only their form is looked at.
            engine: Listens to the model.
        """
        batch, length = blank_batch(rows)
        if batch is not None:
            engine.rehearse(lambda: self._losses(batch), length)

    def _settings(self) -> dict[str, Any]:
        """What decides about the run and is not in the plan."""
        names = ["loss", "autocast", "recipe"]
        return {"loop": "trainer", **{name: described(getattr(self, name)) for name in names}}

    def private(self, data: Any) -> Private:
        """Model, optimiser, clipping and plan bound to ``data``, as `fit` will use them."""
        frozen = frozen_norms(self.model)
        self.model.train()
        for norm in frozen:
            norm.eval()
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer, rule = self._optimizer(parameters)
        return make_private(
            self.model, optimizer, data,
            budget=self.budget, batch_size=self.batch_size, epochs=self.epochs, steps=self.steps,
            clipping=self.clipping, sampling=self.sampling, population=self.population, users=self.users,
            noise_multiplier=self.noise_multiplier, accountant=self.accountant, microbatch=self.microbatch,
            learning_rate=rule, raw=self.raw, public_buffers=self.public_buffers, seed=self.seed,
        )  # fmt: skip

    def _optimizer(self, parameters: list[Any]) -> tuple[torch.optim.Optimizer, Rate[Any] | None]:
        if self.optimizer is not None:
            if self.lr is not None:
                raise InvalidInput("give lr to the optimizer you make: lr= goes with the default SGD only.")
            return self.optimizer(parameters), self.learning_rate
        if self.lr is None:
            return torch.optim.SGD(parameters, lr=0.1), self.learning_rate or AutomaticRate()
        return torch.optim.SGD(parameters, lr=check_positive("lr", self.lr)), self.learning_rate

    def _loop(self, private: Private, validation: Any, watchers: Sequence[Callback]) -> None:
        plan = private.plan
        epoch = max(1, round(plan.steps / max(1.0, self.epochs))) if self.steps is None else max(1, plan.steps // 10)
        epoch = self.validate_every or epoch
        every = max(1, plan.steps // REPORTS)

        def report() -> None:
            step, last = private.steps_taken, private.steps_taken == plan.steps
            validate = validation is not None and (step % epoch == 0 or last)
            if validate or step % every == 0 or last:
                entry = self.entry(private)
                if validate:
                    entry["validation"] = evaluate(self.model, self.loss, validation)
                private.history.append(entry)
                for watcher in watchers:
                    watcher.report(entry)

        private.on_step = report

        silent = FailingRows(self.model, self._losses, private.engine)
        watched = LossWatch(self.model, silent) if plan.private else self._losses
        for batch in private:
            private.step(watched(batch))

    def _losses(self, batch: Any) -> Tensor:
        """One loss per row of ``batch``."""
        inputs, target = inputs_and_target(batch)
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            losses = self._each_loss(self.model(*inputs), target)
        return losses.float() if self.autocast else losses

    @cached_property
    def _each_loss(self) -> Loss:
        return per_sample(self.loss)

    def entry(self, private: Private) -> dict[str, Any]:
        """What a watcher is told of the step just taken: no time, since that depends on who was drawn."""
        epsilon = private.so_far.epsilon if self.track_epsilon else math.inf
        entry = {
            "step": private.steps_taken,
            "steps": private.plan.steps,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "threshold": private.private_step.thresholds[0] if private.plan.private else None,
            "learning_rate": float(private.optimizer.param_groups[0]["lr"]),
        }
        return entry | {KEY: private.raw} if private.raw else entry

    def _watchers(self, private: Private) -> list[Callback]:
        watchers = list(self.callbacks)
        if not private.team.leads:
            return watchers
        if self.folder is not None:
            watchers.append(MetricsFile(Path(self.folder) / METRICS))
            if self.tensorboard:
                watchers.append(TensorBoard(Path(self.folder) / "tensorboard"))
        return [*watchers, Progress(private.plan.steps)] if self.progress else watchers
