"""Train a model under a budget: `Trainer` owns the loop, `make_private` leaves it to its user."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordina import random
from sordina._arguments import checked
from sordina._renamed import renamed
from sordina.accounting.ledger import Ledger
from sordina.clipping import Policy, TypicalNorm
from sordina.clipping.per_layer import PerLayer
from sordina.errors import InvalidInput, SordinaError
from sordina.gradients import Engine
from sordina.gradients._kept_state import KeptState
from sordina.gradients._rehearsal import aside
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.checks import to_training_mode
from sordina.gradients.removal import LossWatch
from sordina.mechanisms.correlated import CorrelatedNoise
from sordina.plan import check_steps, check_whole, make_plan
from sordina.privacy import Budget, Unit, check_positive
from sordina.progress import Progress
from sordina.run_folder import METRICS
from sordina.sampling import CyclicPoisson, FixedSize, Poisson, Sampler, Users
from sordina.training import planning
from sordina.training.augmentation import Augmentation
from sordina.training.averaging import Averaging, averaging_named
from sordina.training.batches import Collate, Rows, as_rows, blank_batch, inputs_and_target
from sordina.training.callbacks import Callback, MetricsFile, ProgressBar, StopTraining, TensorBoard, ToldProgress
from sordina.training.components import check_components, components_event
from sordina.training.convexity import facts_of_loss
from sordina.training.held_records import refuse_held_records
from sordina.training.learning_rates import AutomaticRate, Rate
from sordina.training.loop import Private
from sordina.training.losses import (
    FailingRows,
    Loss,
    PerSample,
    check_loss_learns_nothing,
    check_takes,
    evaluate,
    per_sample,
)
from sordina.training.optimizers import OptimizerMaker, optimizer_named
from sordina.training.run import KEY, Run
from sordina.training.run_keeper import RunKeeper, described

log = logging.getLogger(__name__)

# `make_private`: bind model, optimiser and data to a budget, for people who own their loop.

MOST_EPOCHS = 1e12


def make_sampler(kind: str, batch_size: int, population: int) -> Sampler:
    """``"poisson"`` (add/remove neighbours) or ``"fixed-size"`` (replace-one neighbours)."""
    if kind == "poisson":
        return Poisson(batch_size, population)
    if kind == "fixed-size":
        return FixedSize(batch_size, population)
    raise InvalidInput(f"unknown sampling {kind!r}: use 'poisson' or 'fixed-size'.")


def make_schedule(
    units: int,
    *,
    batch_size: int | None,
    epochs: float | None,
    steps: int | None,
    sampling: str,
    population: int | None,
    noise: CorrelatedNoise | None = None,
) -> tuple[Sampler, int]:
    """The sampler and the number of steps of a run over ``units`` units.

    Args:
        units: How many there are.
        batch_size: Expected size of a batch.
        epochs: Passes over the data, on average; with correlated noise, rounded to whole turns.
        steps: Optimiser steps, instead of ``epochs``.
        sampling: "poisson" or "fixed-size".
        population: The public number of units; None takes ``units``.
        noise: Correlated noise, which takes turns (`sordina.sampling.CyclicPoisson`).
    """
    if batch_size is None or (epochs is None and steps is None):
        raise InvalidInput("state a batch size and epochs here: only a Trainer that fits and a Search choose them.")
    population = units if population is None else check_whole("population", population)
    sampler, whole = make_sampler(sampling, batch_size, population), False
    if steps is None:
        if isinstance(epochs, bool) or not isinstance(epochs, (int, float, np.number)) or not 0 < epochs < MOST_EPOCHS:
            raise InvalidInput(f"epochs must be positive and at most {MOST_EPOCHS:.0e}, got {epochs!r:.40}.")
        steps = max(1, round(float(epochs) * population / batch_size))
        whole = True
    check_steps(steps)
    if noise is None:
        return sampler, steps
    if sampling != "poisson":
        raise InvalidInput("correlated noise is accounted for Poisson samples: leave sampling as poisson.")
    turn = noise.parts(batch_size, population, steps)
    return CyclicPoisson(batch_size, population, turn), max(1, round(steps / turn)) * turn if whole else steps


@checked
def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    budget: Budget,
    batch_size: int,
    epochs: float = 1,
    steps: int | None = None,
    clipping: Policy[Any] | PerLayer | None = None,
    sampling: str = "poisson",
    population: int | None = None,
    users: Users | None = None,
    noise_multiplier: float | None = None,
    noise: CorrelatedNoise | None = None,
    accountant: str = "pld",
    microbatch: int | None = None,
    learning_rate: Rate[Any] | None = None,
    augment: Augmentation | None = None,
    views: int = 1,
    averaging: Averaging | str | None = None,
    raw: bool = False,
    public_buffers: Sequence[str] = (),
    seed: int | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    ledger: Ledger | None = None,
    dataset_budget: str | None = None,
    checkpoint_every: int | None = None,
    collate_fn: Collate | None = None,
) -> Private:
    """Bind ``model``, ``optimizer`` and ``data`` to a budget; iterate over the result, call ``step``, then ``finish``.

    A sample's loss may depend on that sample alone, also by numbers without a gradient. The model is watched for that.
    A loss that a loop of your own computes is not, where no gradient shows it: weights of classes counted in the batch,
    hard examples chosen by rank, losses divided by their largest. `Trainer` tries its loss and refuses those.

    Args:
        model: What is trained; its per-sample gradients are clipped.
        optimizer: Any ``torch.optim`` optimiser over the model's parameters.
        data: A TensorDataset, a tuple of tensors, or a map-style Dataset.
        budget: What the whole run may cost.
        batch_size: The expected size of a batch.
        epochs: Passes over the data, on average.
        steps: Optimiser steps, instead of ``epochs``.
        clipping: The policy; left out, `sordina.clipping.TypicalNorm`.
        sampling: "poisson" (add-remove neighbours) or "fixed-size" (replace-one neighbours).
        population: The public number of units that the sampling rate is computed from; left out, the size of the data
            is taken, and thereby treated as public.
        users: Who owns which row, for privacy of users instead of records.
        noise_multiplier: More noise than the budget needs; less is refused.
        noise: Noise that is correlated over the steps (`sordina.mechanisms.BandedNoise`); left out, it is independent.
        accountant: Who judges the cost.
        microbatch: Units held in memory at once.
        learning_rate: A rule that sets the optimiser's rate from released values.
        augment: ``augment(input, generator) -> input`` changes a row that was drawn, by the generator's numbers.
        views: How often a unit is taken in a step, each time changed by ``augment``: the mean of their gradients is
            clipped, so the price stays the same.
        averaging: "tail", "ema" or a rule (`sordina.training.TailAverage`): the average of the released weights is what
            the run ends with, at no cost in privacy. `Private.averaged` shows it on the way.
        raw: Collect statistics that are NOT private (`sordina.training.run`).
        public_buffers: Names of buffers that a forward pass may change, because what they hold does not depend on the
            data (a count of steps), and of parameters that are not trained and change in your loop, because they hold
            released values only (a teacher that averages them). Anything else untrained that changes is refused.
        seed: Makes the noise repeatable; such a model must not be released.
        folder: Where model, checkpoints and guarantee are kept; a killed run goes on from there.
        resume: Continue the run in ``folder``; its settings must be the same.
        ledger: Where the whole price is reserved before the first batch is drawn, and settled by ``finish``.
        dataset_budget: The ledger's data set to book on.
        checkpoint_every: Steps between checkpoints; left out, as often as is cheap.
        collate_fn: What makes a batch of a list of items, for data sets of items of different sizes. Items run together
            where it makes them of one size, as micro-batches of one step, so that no item is padded for another's
            sake; pad to a multiple of a public number, say 16, and there are few of them.
    """
    for name, rule in (("clipping", clipping), ("learning_rate", learning_rate)):
        if not (rule is None or isinstance(rule, PerLayer) or callable(getattr(rule, "init", None))):
            raise InvalidInput(
                f"{name} is a rule of sordina.clipping or sordina.training, got a {type(rule).__name__}."
            )
    rows = as_rows(data, collate_fn, by_size=True)
    units = len(users) if users is not None else rows.size
    if not units:
        raise InvalidInput("the data are empty: there is nobody to train on.")
    sampler, steps = make_schedule(
        units, batch_size=batch_size, epochs=epochs, steps=steps, sampling=sampling, population=population, noise=noise
    )
    unit = Unit.RECORD if users is None else Unit.USER
    plan = make_plan(
        budget, sampler, steps, unit=unit, accountant=accountant, noise_multiplier=noise_multiplier, noise=noise,
        before=components_event(model, budget, sampler.adjacency, users=users is not None),
    )  # fmt: skip
    if rows is not data:  # who gives `Rows` has looked through them
        if plan.private:
            rows.check_apart(users)
        rows.check_alike()
    if plan.private:
        refuse_held_records(model, rows.source)
    check_components(model, rows)
    private = Private(
        model, optimizer, rows, plan, clipping or TypicalNorm(),
        rng=random.generator(seed), users=users, microbatch=microbatch, learning_rate=learning_rate,
        augment=augment, views=views, averaging=averaging_named(averaging), raw=raw, public_buffers=public_buffers,
    )  # fmt: skip
    if folder is not None or ledger is not None or dataset_budget is not None or resume:
        private.keeper = RunKeeper.open(
            private, folder=folder, resume=resume, ledger=ledger, dataset_budget=dataset_budget,
            checkpoint_every=checkpoint_every, settings={"loop": "own"},
        )  # fmt: skip
    return private


# Train a model under a budget: state it once, fit, read the guarantee.
# trainer = sd.Trainer(model, loss=torch.nn.functional.cross_entropy, budget=sd.Budget(epsilon=3, delta=1e-5),
#                      batch_size=512, epochs=10)
# run = trainer.fit(train_data, validation=test_data)

REPORTS = 20
"""A run reports about this many times, apart from its validations."""


def refuse_training_data(data: Any, validation: Any) -> None:
    """Refuse to score on what is trained on, where a guarantee is to hold for it.

    Args:
        data: What is trained on.
        validation: What is scored without noise, if anything.
    """
    if validation is None:
        return
    trained, held = ({(each.data_ptr(), each.shape) for each in _columns(one)} for one in (data, validation))
    if validation is data or getattr(validation, "dataset", None) is data or (held and held <= trained):
        raise InvalidInput(
            "the validation data are the training data: scores are computed without noise, so they would be raw values "
            "of the people the guarantee is for. Give held-out rows."
        )


def _columns(data: Any) -> list[Tensor]:
    return [each for each in tensors_in([getattr(data, "tensors", data)]) if each.numel()]


@renamed(lr="learning_rate")
@dataclass
class Trainer:
    """Everything about a private training run but the data. Nothing is checked before `fit`.

    ``optimizer`` makes any ``torch.optim`` optimiser from parameters, or names one (sgd, momentum, adam, adam-bc,
    adam-wosm); left out, plain SGD is used, at ``learning_rate``. Without one the learning rate follows from public
    facts (`AutomaticRate`), at no cost in privacy. ``batch_size=None, epochs=None`` plans the schedule too, from the
    budget, the number of rows and the size of the model; `plan_report` says what it will be, and what it can learn.
    ``folder`` turns on the metrics file, TensorBoard, checkpoints and the journal that makes `fit(resume=True)` safe.
    ``validate_every`` counts steps between validations; left out, an epoch. A watcher that raises `StopTraining` ends
    the run early, at the price of the whole. ``track_epsilon`` false saves the time to account every report.
    ``public_buffers`` names buffers that a forward pass may change: what they hold must not depend on the data.
    ``raw=True`` adds statistics of the raw data to the metrics, marked NOT_PRIVATE: for public or synthetic data.
    ``ledger`` and ``dataset_budget`` reserve the whole spend before a row is read, and settle it at the end.
    ``checkpoint_every`` counts steps; left out, checkpoints are as frequent as is cheap. ``recipe`` is saved in the
    folder as ``recipe.json``.

    Args:
        model: Any module whose samples stay apart (`sordina.check` says).
        loss: ``loss(outputs, targets)``, a mean over the batch or one value per sample.
        budget: The epsilon and delta that the run may spend.
        clipping: A policy of `sordina.clipping`; None chooses one (`sordina.training.planning.planned_clipping`).
        batch_size: Expected size of a batch; None chooses it, and epochs, from public facts (`planned_schedule`).
        epochs: Passes over the data, on average; or give ``steps``.
        learning_rate: A number, a rule of `sordina.training`, or None for one that finds itself.
        augment: ``augment(input, generator) -> input`` changes a drawn row (`sordina.training.ImageShift`).
        views: Views of a sample in a step: their gradients are averaged before clipping, at the same price.
        averaging: "tail", "ema", a rule of `sordina.training`, or None: what is validated and returned is the average.
        sampling: poisson or fixed-size.
        population: A public number near the size of the data; None takes the size as public.
        users: Who owns each row, for a guarantee per person.
        noise_multiplier: Noise to use instead of the least the budget allows.
        noise: Noise that is correlated over the steps (`sordina.mechanisms.BandedNoise`); None draws it independently.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.
        microbatch: Samples at once, where memory is short.
        autocast: A lower precision for the forward pass.
        seed: Makes the noise repeatable, for tests only; None draws it securely.
        callbacks: What watches the run (`sordina.training.Callback`).
        progress: True shows a bar; a function is told ``(steps taken, steps)`` (`sordina.progress`).
        tensorboard: A folder for TensorBoard.
    """

    model: nn.Module
    loss: Loss
    budget: Budget
    clipping: Policy[Any] | PerLayer | None = None
    batch_size: int | None = 512
    epochs: float | None = 10
    steps: int | None = None
    learning_rate: float | Rate[Any] | None = None
    augment: Augmentation | None = None
    views: int = 1
    averaging: Averaging | str | None = None
    optimizer: OptimizerMaker | str | None = None
    sampling: str = "poisson"
    population: int | None = None
    users: Users | None = None
    noise_multiplier: float | None = None
    noise: CorrelatedNoise | None = None
    accountant: str = "pld"
    microbatch: int | None = None
    autocast: torch.dtype | None = None
    seed: int | None = None
    folder: str | Path | None = None
    checkpoint_every: int | None = None
    ledger: Ledger | None = None
    dataset_budget: str | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool | Progress = False
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
            resume: Continue the run in ``folder``. One that has ended is only read.
        """
        if self._fitted:
            raise InvalidInput(
                "this trainer has fitted already: a second fit would train the same model on and spend its budget "
                "again. Make a new Trainer, with a new model."
            )
        private = self._checked(data, validation)
        if not resume and private.team.leads and (little := self._hopeless(private)):
            log.warning(little)
        private.keeper = RunKeeper.open(
            private, folder=self.folder, resume=resume, ledger=self.ledger, dataset_budget=self.dataset_budget,
            checkpoint_every=self.checkpoint_every, settings=self._settings(),
            recipe=None if self.recipe is None else dict(self.recipe),
        )  # fmt: skip
        self._fitted = True
        try:
            if private.steps_taken < private.plan.steps:
                with suppress(StopTraining), ExitStack() as stack:
                    self._loop(private, validation, [_entered(stack, one) for one in self._watchers(private)])
            if private.team.leads and (short := private.last_steps.warning):
                log.warning(short)
            return private.finish()
        except BaseException as error:
            private.keeper.failed(error)
            raise
        finally:
            private.close()

    def _hopeless(self, private: Private) -> str | None:
        """What to say before a budget is spent on next to nothing, from the plan and the size of the model."""
        plan = private.plan
        return planning.hopeless(plan, self._weights(), self._units(private.rows)) if plan.private else None

    def _checked(self, data: Any, validation: Any) -> Private:
        """Everything that can be found wrong before anything is reserved or drawn."""
        if self.validate_every is not None:
            check_whole("validate_every", self.validate_every)
        rows = as_rows(data)
        if not math.isinf(self.budget.epsilon):
            refuse_training_data(data, validation)
            rows.check_apart(self.users)
        check_loss_learns_nothing(self.loss, self.model)
        for each in [rows] if validation is None else [rows, as_rows(validation)]:
            check_takes(self.model, self.loss, each)
        facts = facts_of_loss(self.model, self._each_loss, rows)
        private = self.private(rows)
        if private.rule is not None and facts:
            private.rate_state = private.rule.init(replace(private.start, **facts))
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
        for whole in (0, 1):
            batch, length = blank_batch(rows, whole)
            if batch is None:
                return
            kept = KeptState(self._each_loss.loss)
            try:
                engine.rehearse(partial(self._losses, batch), length)
                return self._rehearse_longer(batch, engine)
            except SordinaError:
                raise
            except Exception:
                engine.clear()
                if whole:
                    raise
            finally:
                kept.restore()

    def _rehearse_longer(self, batch: Any, engine: Engine) -> None:
        """One row more, where it takes two sizes to tell which results have rows of samples."""
        if not self._each_loss.waiting:
            return
        longer = changed(batch, lambda tensor: torch.cat([tensor, tensor[:1]]))
        with aside(self.model), engine.unheard():
            try:
                self._losses(longer)
            except SordinaError:
                raise
            except Exception:
                return  # then it is tried on the first batches

    def _settings(self) -> dict[str, Any]:
        """What decides about the run and is not in the plan."""
        names = ["loss", "autocast", "recipe"]
        return {"loop": "trainer", **{name: described(getattr(self, name)) for name in names}}

    def private(self, data: Any) -> Private:
        """Model, optimiser, clipping and plan bound to ``data``, as `fit` will use them."""
        to_training_mode(self.model)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer, rule = self._optimizer(parameters)
        batch_size, epochs = self._schedule(data)
        return make_private(
            self.model, optimizer, data,
            budget=self.budget, batch_size=batch_size, epochs=epochs, steps=self.steps,
            clipping=self.clipping or planning.planned_clipping(data), sampling=self.sampling,
            population=self.population, users=self.users, noise_multiplier=self.noise_multiplier, noise=self.noise,
            accountant=self.accountant, microbatch=self.microbatch, learning_rate=rule, augment=self.augment,
            views=self.views, averaging=self.averaging, raw=self.raw, public_buffers=self.public_buffers,
            seed=self.seed,
        )  # fmt: skip

    def _units(self, data: Any) -> int:
        """The public number of units: the population, where it is stated."""
        if self.population is not None:
            return self.population
        return len(self.users) if self.users is not None else as_rows(data).size

    def _weights(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def _schedule(self, data: Any) -> tuple[int, float]:
        """Batch size and epochs, chosen where the user left them open (and kept, so that a report can say them)."""
        if self.batch_size is None or (self.epochs is None and self.steps is None):
            size, epochs = planning.planned_schedule(
                self.budget, self._units(data), self._weights(), batch_size=self.batch_size, epochs=self.epochs
            )
            self.batch_size, self.epochs = size, self.epochs or epochs
        return self.batch_size, 1.0 if self.epochs is None else self.epochs

    def plan_report(self, data: Any) -> planning.PlanReport:
        """What the budget can buy with this model and schedule, from public facts; nothing is spent.

        Args:
            data: What will be trained on; only its size counts, and the shapes of its rows, which the model must take.
        """
        units = self._units(data)
        linear = planning.weights_of_linear(self.model, self.loss, as_rows(data))
        batch_size, epochs = self._schedule(data)
        sampler, steps = make_schedule(
            units, batch_size=batch_size, epochs=epochs, steps=self.steps, sampling=self.sampling, population=units,
            noise=self.noise,
        )  # fmt: skip
        plan = make_plan(
            self.budget, sampler, steps, accountant=self.accountant, noise_multiplier=self.noise_multiplier,
            noise=self.noise,
            before=components_event(self.model, self.budget, sampler.adjacency, users=self.users is not None),
        )  # fmt: skip
        return planning.plan_report(plan, self._weights(), units, linear=linear)

    def _optimizer(self, parameters: list[Any]) -> tuple[torch.optim.Optimizer, Rate[Any] | None]:
        rate, made = self.learning_rate, self.optimizer
        if made is None or isinstance(made, str):
            name = made or "sgd"
            if isinstance(rate, (int, float, np.number)):
                return optimizer_named(name, check_positive("learning_rate", float(rate)))(parameters), None
            if name == "momentum" and rate is None:
                raise InvalidInput(
                    "momentum needs a learning rate of your own: the automatic rate sets every step's length from the "
                    "gradient of that step, and momentum would apply it to those before (8 points lost on digits)."
                )
            return optimizer_named(name)(parameters), rate or (AutomaticRate() if name == "sgd" else None)
        if not isinstance(rate, (int, float, np.number)):
            if rate is None and made is torch.optim.SGD:
                return optimizer_named("sgd")(parameters), AutomaticRate()
            if rate is None and isinstance(made, partial) and made.func is torch.optim.SGD and not _with_rate(made):
                raise InvalidInput(
                    "this SGD has no learning rate, and torch's own, 0.001, gets nowhere with clipped gradients: give "
                    "it one (partial(torch.optim.SGD, lr=...)), or leave optimizer= out for a rate that finds itself."
                )
            return made(parameters), rate
        raise InvalidInput(
            "give the learning rate to the optimizer you make: as a number, learning_rate= goes with an optimiser by "
            "name, or with the default SGD."
        )

    def _loop(self, private: Private, validation: Any, watchers: Sequence[Callback]) -> None:
        plan = private.plan
        epochs = max(1.0, self.epochs or 1.0)
        epoch = max(1, round(plan.steps / epochs)) if self.steps is None else max(1, plan.steps // 10)
        epoch = self.validate_every or epoch
        every = max(1, plan.steps // REPORTS)

        def report() -> None:
            step, last = private.steps_taken, private.steps_taken == plan.steps
            validate = validation is not None and (step % epoch == 0 or last)
            if validate or step % every == 0 or last:
                entry = self.entry(private)
                with private.averaged() if validate else nullcontext():  # who is told of a score sees what was scored
                    if validate:
                        entry["validation"] = evaluate(self.model, self.loss, validation)
                    private.history.append(entry)
                    for watcher in watchers:
                        watcher.report(entry)
                private.renew_chance()

        private.on_step = report

        loss = self._each_loss.loss
        private.chance.holders += (loss,)
        silent = FailingRows(self.model, self._losses, private.engine, loss)
        private.kept = silent.kept
        watched: LossWatch | Callable[[Any], Tensor] = self._losses
        if plan.private:
            watched = LossWatch(self.model, silent, loss, private.stirs, self._each_loss.anew)
            private.tested.append(watched.schedule)
        for batch in private:
            silent.step(private, batch, watched(batch))

    def _losses(self, batch: Any) -> Tensor:
        """One loss per row of ``batch``."""
        inputs, target = inputs_and_target(batch)
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            losses = self._each_loss(self.model(*inputs), target)
        return losses.float() if self.autocast else losses

    @cached_property
    def _each_loss(self) -> PerSample:
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
        if callable(self.progress):
            return [*watchers, ToldProgress(self.progress)]
        return [*watchers, ProgressBar(private.plan.steps)] if self.progress else watchers


def _with_rate(made: partial[Any]) -> bool:
    """Whether who makes an optimiser states its rate."""
    return bool(made.args) or "lr" in made.keywords


def _entered(stack: ExitStack, watcher: Callback) -> Callback:
    """A watcher that is told of steps; one that has nothing but `report` need not be entered."""
    entered: Callback = stack.enter_context(watcher) if hasattr(watcher, "__enter__") else watcher
    return entered
