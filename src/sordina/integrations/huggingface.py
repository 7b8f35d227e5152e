"""`PrivateTrainer`: the interface of `transformers.Trainer`, under a privacy budget.

    trainer = PrivateTrainer(
        model=model, args=TrainingArguments("runs/notes", per_device_train_batch_size=32), train_dataset=notes,
        processing_class=tokenizer, budget=sd.Budget(epsilon=3, delta=1e-5),
    )
    trainer.train()
    trainer.save_model()      # the weights, privacy.json, and a card with the guarantee

What stays: model, arguments, data, collator, callbacks, loggers, evaluation, checkpoints, resuming, saving. What
changes is what must. Batches are drawn at random by Sordina; their expected size is ``per_device_train_batch_size``
times ``gradient_accumulation_steps``, and the former is what is in memory at once. The loss is taken per text, every
text's gradient is clipped, noise is added, every step is booked before its batch is drawn. Nothing that is computed
from the raw batches (the training loss, gradient norms, times) is logged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from sordina import private_files
from sordina.accounting.ledger import Ledger
from sordina.clipping import Policy
from sordina.clipping.per_layer import PerLayer
from sordina.errors import InvalidInput, Unsupported
from sordina.gradients.checks import to_training_mode
from sordina.gradients.removal import LossWatch
from sordina.gradients.structure import Mixing
from sordina.integrations.output_folder import OwnCheckpoints, remove_card, weights_file, write_card
from sordina.integrations.padding import WidthCheck, public_widths, right_padding, virtual_tokens
from sordina.integrations.refusals import (
    CHECKPOINTING,
    DEFAULT_CLIPPING,
    MovedCheck,
    batch_size_of,
    check_reached,
    check_saved,
    check_seen,
    refuse_arguments,
    refuse_watching,
)
from sordina.integrations.text_batches import TextItems, TextLimits, WatchedCollator
from sordina.integrations.text_losses import base_of, first_losses, loss_for, losses_of_batch
from sordina.privacy import Budget, Guarantee
from sordina.run_folder import INNER, FolderState, state_of
from sordina.sampling import Users
from sordina.training.batches import as_rows
from sordina.training.callbacks import StopTraining
from sordina.training.loop import Private
from sordina.training.losses import FailingRows
from sordina.training.run import Run, weights_digest
from sordina.training.run_keeper import RunKeeper, described
from sordina.training.trainer import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    import accelerate as _accelerate  # noqa: F401 - transformers' own message about it is longer than this one
    import transformers
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, get_last_checkpoint
except ImportError as error:
    raise Unsupported(
        "Hugging Face's trainer needs transformers and accelerate: pip install 'sordina[llm]'."
    ) from error

__all__ = ["RUN_FOLDER", "PrivateTrainer"]

log = logging.getLogger("sordina")
RUN_FOLDER = INNER
"""In ``output_dir``: journal, checkpoint, model and claim of the run. A hub's uploads leave it out."""
_OURS = ("compute_loss", "training_step", "get_train_dataloader", "get_batch_samples")
"""Methods of `transformers.Trainer` that private training does without."""
_ON_TRAINING_DATA = (
    "the eval_dataset is the training data: its scores are raw values of the people the guarantee is for, computed "
    "without noise. Give held-out items."
)
_CHANGED = (
    "NO CLAIM WAS WRITTEN into %s: the weights are not those that the private training ended with, so its guarantee "
    "does not speak of them."
)
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForConditionalGeneration": "text2text-generation",
}


class PrivateTrainer(transformers.Trainer):
    """`transformers.Trainer` whose training is differentially private.

    Args:
        model: A `transformers` model with a head, or one with an adapter of `peft`: what is frozen costs nothing.
        args: The `transformers.TrainingArguments`; what would void the guarantee is refused with the reason.
        data_collator: Makes a batch of a list of items, each in a row of its own; tested by removal.
        train_dataset: Items by number; one item is one record (or one of a user's).
        eval_dataset: Held-out items; the guarantee does not cover them.
        processing_class: The tokenizer.
        budget: What the whole run may cost; an infinite epsilon trains without privacy.
        clipping: A policy of `sordina.clipping`; None takes the default.
        users: Who owns each item, for a guarantee per person instead of per item.
        ledger: Where the whole price is reserved before the first batch is drawn.
        dataset_budget: The ledger's data set to book on.
        population: The public number of units that the sampling rate is computed from; None takes the number of items.
        sampling: "poisson" (add-remove neighbours) or "fixed-size" (replace-one neighbours).
        noise_multiplier: More noise than the budget needs; less is refused.
        accountant: Who judges the cost.
        loss: A function of the model's output and the batch, one value per text; None takes the task's own.
        public_length: The loss of a text is the sum over its tokens by this number; None takes their mean.
        noise_seed: Makes the noise repeatable, for tests; such a model must not be released. ``args.seed`` leaves noise
            secret.
        rest: As in `transformers.Trainer`: compute_metrics, callbacks, optimizers, ...
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        budget: Budget,
        clipping: Policy[Any] | PerLayer | None = None,
        users: Users | None = None,
        ledger: Ledger | None = None,
        dataset_budget: str | None = None,
        population: int | None = None,
        sampling: str = "poisson",
        noise_multiplier: float | None = None,
        accountant: str = "pld",
        loss: Any = None,
        public_length: int | None = None,
        noise_seed: int | None = None,
        **rest: Any,
    ) -> None:
        if args is not None:
            refuse_arguments(args)
        if not isinstance(budget, Budget):
            raise InvalidInput(f"budget is a Budget, such as sordina.Budget(epsilon=3, delta=1e-5), got {budget!r}.")
        if rest.get("model_init") is not None:
            raise Unsupported(
                "model_init is for searches, of which every trial spends: give model=, or sordina.Search."
            )
        if rest.get("compute_loss_func") is not None:
            raise Unsupported("compute_loss_func averages over a batch: give loss=, which returns one value per text.")
        if train_dataset is not None:
            _check_drawable(train_dataset, users)
        self.budget, self.clipping, self.users = budget, clipping, users
        self.ledger, self.dataset_budget = ledger, dataset_budget
        self.sampling: dict[str, Any] = {
            "sampling": sampling, "population": population, "noise_multiplier": noise_multiplier,
            "accountant": accountant, "seed": noise_seed,
        }  # fmt: skip
        self.loss, self.public_length = loss, public_length
        self.recipe: dict[str, Any] | None = None
        """How the run was asked for, if a command did: kept in the run's folder."""
        self.control: Any = None
        self.run: Run | None = None
        """What the training left behind: the guarantee and how it came about."""
        self._saved: set[str] = set()
        """Hashes of the files that the weights of the run were saved to."""
        super().__init__(
            model=model, args=args, data_collator=data_collator, train_dataset=train_dataset,
            eval_dataset=eval_dataset, processing_class=processing_class, **rest,
        )  # fmt: skip
        refuse_arguments(self.args)
        self._refuse_training_data(self.eval_dataset)
        self._checkpoints = OwnCheckpoints(Path(self.args.output_dir), self.run_folder)
        for name in _OURS:
            if getattr(type(self), name) is not getattr(transformers.Trainer, name):
                raise Unsupported(
                    f"{name} is not used in private training, so a class of your own that replaces it would do "
                    "nothing: give loss= (one value per text), data_collator= or train_dataset=."
                )

    @property
    def guarantee(self) -> Guarantee:
        """What the trained model guarantees."""
        if self.run is None:
            raise InvalidInput("nothing was trained yet: call train().")
        return self.run.guarantee

    @property
    def run_folder(self) -> Path:
        """Where the run keeps its journal, checkpoint and claim."""
        return Path(self.args.output_dir) / RUN_FOLDER

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """Train until the planned steps are taken.

        Args:
            resume_from_checkpoint: True goes on with the run in ``output_dir``, from its last checkpoint: steps after
                it are lost and stay paid for. An earlier checkpoint is refused, since its steps would be drawn twice.
            trial: Not for private training.
            ignore_keys_for_eval: As in `transformers.Trainer`.
        """
        if trial is not None:
            raise Unsupported("every trial of a search spends: use sordina.Search, which counts them.")
        if self.run is not None:
            raise InvalidInput("this trainer has trained already, and a second time would spend again: make a new one.")
        resume = self._resumes(resume_from_checkpoint)
        limit = TextLimits.of(self.model).length
        longest = None if limit is None else limit - virtual_tokens(self.model)
        with right_padding(self.processing_class, self.data_collator), public_widths(self.data_collator, longest):
            self.run = self._trained(resume, ignore_keys_for_eval)
        return self._output(self.run)

    def _trained(self, resume: bool, ignore_keys_for_eval: Any) -> Run:
        private = self._bind()
        try:
            private.keeper = RunKeeper.open(
                private, folder=self.run_folder, resume=resume, ledger=self.ledger, dataset_budget=self.dataset_budget,
                settings=self._run_settings(), recipe=self.recipe,
            )  # fmt: skip
        except BaseException:
            private.close()
            raise
        self.is_in_train = True
        try:
            self._begin(private, resume)
            if private.steps_taken < private.plan.steps:
                with suppress(StopTraining):
                    self._loop(private, ignore_keys_for_eval)
            self._end(private)
            run = private.finish()
        except BaseException as error:
            private.keeper.failed(error)
            raise
        finally:
            private.close()
            self.is_in_train = False
        return run

    # ---- before anything is spent

    def _bind(self) -> Private:
        """Model, optimiser and data bound to the budget, after everything that can be found wrong was refused."""
        model, args = self.model, self.args
        refuse_arguments(args)
        if hasattr(model, "_orig_mod"):
            raise Unsupported("torch.compile hides the layers that are listened to: give the model itself.")
        if getattr(base_of(model), "is_gradient_checkpointing", False):
            raise Unsupported(CHECKPOINTING)
        if args.max_grad_norm == DEFAULT_CLIPPING:
            log.info("max_grad_norm is left out: every text's gradient is clipped instead, by clipping=.")
        if math.isfinite(self.budget.epsilon):
            refuse_watching(self.callback_handler.callbacks, model)
        self._refuse_training_data(self.eval_dataset)
        limits = TextLimits.of(model)
        items = self._items()
        limits.check(items)
        device = next(model.parameters()).device
        collator = WatchedCollator(self.data_collator, device)
        batch, rows = collator.rehearse(items[0], limits)
        if not self.accelerator._models:
            self.accelerator.prepare_model(model, evaluation_mode=True)
        to_training_mode(model)
        optimizer = self.create_optimizer()
        self._collator = collator
        self._each = self.loss or loss_for(model, self.public_length, args.label_smoothing_factor)
        check_reached(model, optimizer, lambda: first_losses(model, batch, self._each))
        check_saved(model)
        self._widths = WidthCheck(model, self._losses, self.data_collator, device, limits.length)
        if math.isfinite(self.budget.epsilon):
            self._widths.rehearse(items, limits)
        texts = as_rows(items, collator)  # together whatever their lengths: WidthCheck looks whether that matters
        if math.isfinite(self.budget.epsilon):
            texts.check_apart(self.users)
            collator.look_through(items)
        texts.check_alike()
        private = make_private(
            model, optimizer, texts, budget=self.budget, batch_size=batch_size_of(args), epochs=args.num_train_epochs,
            steps=args.max_steps if args.max_steps > 0 else None, clipping=self.clipping, users=self.users,
            microbatch=args.per_device_train_batch_size, **self.sampling,
        )  # fmt: skip
        known = all(_from_libraries(each) for each in (self.data_collator, self.loss) if each is not None)
        private.own_loop = not known
        private.chance.holders += (self._each,)
        try:
            if private.engine is not None:
                check_seen(model, private.engine, lambda: self._losses(batch), rows)
                private.engine.rehearse(lambda: self._losses(batch), rows)
        except BaseException:
            private.close()
            raise
        return private

    def _items(self) -> TextItems:
        if self.train_dataset is None:
            raise InvalidInput("training needs a train_dataset.")
        _check_drawable(self.train_dataset, self.users)
        self._set_signature_columns_if_needed()
        return TextItems(self.train_dataset, self._signature_columns if self.args.remove_unused_columns else None)

    def _run_settings(self) -> dict[str, Any]:
        """What decides about the run and is not in the plan."""
        args = self.args
        return {
            "loop": "huggingface",
            "loss": described(self.loss) if self.loss is not None else described(self._each),
            "schedule": [str(args.lr_scheduler_type), args.warmup_steps, described(args.lr_scheduler_kwargs)],
            "bf16": bool(args.bf16),
            "collator": type(self.data_collator).__name__,
        }

    def _resumes(self, asked: str | bool | None) -> bool:
        state = state_of(self.run_folder).state
        fresh = state is FolderState.FRESH
        if not asked:
            if state in (FolderState.OPEN, FolderState.FINISHED):
                raise InvalidInput(
                    f"{self.args.output_dir} holds a run already: go on with resume_from_checkpoint=True, or choose "
                    "another output_dir (another run spends again)."
                )
            if fresh:
                self._checkpoints.refuse_any()
            return False
        last = get_last_checkpoint(self.args.output_dir) if Path(self.args.output_dir).is_dir() else None
        if isinstance(asked, str):
            chosen = Path(asked).resolve()
            if chosen not in [Path(each).resolve() for each in (last, self.run_folder, self.args.output_dir) if each]:
                raise InvalidInput(
                    f"a private run goes on from its last checkpoint only: the steps after {chosen.name} were drawn "
                    "and are paid for. Give resume_from_checkpoint=True, with the output_dir of the run."
                )
        if fresh:
            raise InvalidInput(f"{self.args.output_dir} holds no run to resume.")
        self._checkpoints.read()
        return True

    def _refuse_training_data(self, held: Any) -> None:
        """Refuse to score on the data that are trained on, where a guarantee is to hold for them."""
        if math.isinf(self.budget.epsilon) or held is None or self.train_dataset is None:
            return
        trained = self.train_dataset
        for each in held.values() if isinstance(held, Mapping) else [held]:
            mark = getattr(each, "_fingerprint", None)  # of `datasets`: the same data have the same
            same = each is trained or (mark is not None and mark == getattr(trained, "_fingerprint", None))
            if same or getattr(each, "dataset", None) is trained or _shares_items(each, trained):
                raise InvalidInput(_ON_TRAINING_DATA)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As in `transformers.Trainer`; the training data are refused.

        Args:
            eval_dataset: Held-out items, or the name of one of several such sets; None takes those of the trainer.
        """
        self._refuse_training_data(self.eval_dataset)
        self._refuse_training_data(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    # ---- the loop

    def _losses(self, batch: dict[str, Any]) -> Tensor:
        return losses_of_batch(self.model, batch, self._each)

    def _begin(self, private: Private, resume: bool) -> None:
        """The state that callbacks look at; on resuming, with what was logged up to the last checkpoint."""
        args, steps = self.args, private.plan.steps
        self.create_scheduler(num_training_steps=steps, optimizer=private.optimizer)
        last = self._checkpoints.last() if resume else None
        if last is not None and (path := last / "trainer_state.json").is_file():
            self.state = transformers.TrainerState.load_from_json(str(path))
        with _quiet_schedule():
            for _ in range(private.steps_taken):
                self.lr_scheduler.step()
        self.state.max_steps, self.state.global_step = steps, private.steps_taken
        self.state.num_train_epochs = max(1, math.ceil(self._epoch(private, steps)))
        self.state.train_batch_size = args.per_device_train_batch_size
        self.state.compute_steps(args, steps)
        self.state.is_local_process_zero = self.state.is_world_process_zero = True
        self._logged = self.state.global_step
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, private.optimizer, self.lr_scheduler
        self._moved = MovedCheck(self.model)

    def _epoch(self, private: Private, step: int) -> float:
        sampler: Any = private.plan.sampler
        return float(step * batch_size_of(self.args) / sampler.population)

    def _loop(self, private: Private, ignore: Any) -> None:
        """Draw, record, step: the private step is `Private`'s own."""
        losses = FailingRows(self.model, self._losses, private.engine)
        private.kept = losses.kept
        watched = LossWatch(self.model, losses, stirs=private.stirs) if private.plan.private else losses
        if isinstance(watched, LossWatch):
            private.tested.append(watched.schedule)
        private.on_step = lambda: self._after_step(private, ignore)
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        self.state.epoch = self._epoch(private, private.steps_taken)
        if self.args.eval_on_start:
            self._evaluated(ignore)
        self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        for batch in private:
            private.hold()  # before anybody tries the model in double precision
            if self._collator.mixed:
                raise Mixing(f"{self._collator.mixed} None holds for the steps since this began.")
            if private.plan.private:
                self._widths.look(self._collator.items)
            losses.step(private, batch, watched(batch))

    def _after_step(self, private: Private, ignore: Any) -> None:
        """After every step, also one whose batch was empty: everything here depends on released values only."""
        args, handler = self.args, self.callback_handler
        rate = float(private.optimizer.param_groups[0]["lr"])
        self._moved.after_step(rate)
        with _quiet_schedule():
            self.lr_scheduler.step()
        before, step = self.state.epoch or 0.0, private.steps_taken
        last = step == private.plan.steps
        self.state.global_step, self.state.epoch = step, self._epoch(private, step)
        self.control = handler.on_optimizer_step(args, self.state, self.control)
        self.control = handler.on_step_end(args, self.state, self.control)
        self._report(private, rate, ignore)
        if last or math.floor(self.state.epoch + 1e-9) > math.floor(before + 1e-9):
            self.control = handler.on_epoch_end(args, self.state, self.control)
            self._report(private, rate, ignore)
            if not last:
                self.control = handler.on_epoch_begin(args, self.state, self.control)
        if self.control.should_training_stop or (self.control.should_epoch_stop and last):
            raise StopTraining
        if not last:
            self.control = handler.on_step_begin(args, self.state, self.control)
        private.renew_chance()

    def _evaluated(self, ignore: Any) -> dict[str, Any]:
        """The scores on held-out data; afterwards every module is in the mode it was in."""
        modes = [(module, module.training) for module in self.model.modules()]
        metrics: dict[str, Any] = self._evaluate(None, ignore, skip_scheduler=True)
        for module, mode in modes:
            module.training = mode
        return metrics

    def _report(self, private: Private, rate: float, ignore: Any) -> None:
        """Log, evaluate and save where a callback asked for it."""
        if self.control.should_log and self.state.global_step > self._logged:
            self._logged = self.state.global_step
            entry = self._entry(private, rate)
            private.history.append({"step": private.steps_taken, "steps": private.plan.steps, **entry})
            self.log({name: value for name, value in entry.items() if value is not None})
        self.control.should_log = False
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            metrics = self._evaluated(ignore)
            better = self._determine_best_metric(metrics=metrics, trial=None)
            if str(getattr(self.args.save_strategy, "value", self.args.save_strategy)) == "best":
                self.control.should_save = better
            private.history.append({
                "step": private.steps_taken, "steps": private.plan.steps,
                "validation": {name.removeprefix("eval_"): value for name, value in metrics.items() if _number(value)},
            })  # fmt: skip
        if self.control.should_save:
            self.control.should_save = False
            private.check_untrained()
            self._save_checkpoint(self.model, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    @staticmethod
    def _entry(private: Private, rate: float) -> dict[str, float | None]:
        """What is logged of a step: released values only, so no training loss and no time."""
        epsilon = private.so_far.epsilon
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "threshold": float(private.private_step.thresholds[0]) if private.plan.private else None,
            "learning_rate": rate,
        }

    def _end(self, private: Private) -> None:
        """The best model of those released, if asked for: choosing by other data than the training's costs nothing."""
        if private.engine is not None:
            private.engine.close()
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return
        if self._checkpoints.holds(best):
            self._load_best_model()
        else:
            log.warning("%s is not as this run wrote it, and is not loaded: the weights of the last step stay.", best)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._checkpoints.begin(name)
        super()._save_checkpoint(model, trial)
        self._checkpoints.wrote(name)

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: how far random numbers were used up tells who was drawn, and no run needs them to go on."""

    def _output(self, run: Run) -> Any:
        metrics = {"train_steps": run.steps, "epsilon": run.epsilon, "delta": run.delta, "epoch": self.state.epoch}
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        return TrainOutput(run.steps, math.nan, metrics)

    # ---- what is left behind

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as `transformers` does; after training, with ``privacy.json`` and a card that carries the guarantee.

        Args:
            output_dir: The folder; None takes that of the arguments.
        """
        super().save_model(output_dir, _internal_call=True)
        if self.run is not None and self.run.weights == weights_digest(self.model):
            self._saved.add(private_files.sha256(weights_file(Path(output_dir or self.args.output_dir))))
        elif self.run is None:
            remove_card(Path(output_dir or self.args.output_dir))
        if not _internal_call:
            self.create_model_card(output_dir=output_dir)
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Model save")

    def create_model_card(self, *unused: Any, output_dir: str | None = None, **options: Any) -> None:
        """Write the card with the guarantee, beside weights that the training ended with and this trainer saved.

        Without a finished training there is nothing to claim, and no card; nor beside other weights.

        Args:
            output_dir: The folder; None takes that of the arguments.
            unused: As in `transformers.Trainer`, ignored.
            options: ``tags`` are added; the rest is ignored.
        """
        if self.run is None:
            return
        folder = Path(output_dir or self.args.output_dir)
        if private_files.sha256(weights_file(folder)) not in self._saved:
            log.warning(_CHANGED, folder)
            remove_card(folder)
            return
        base = base_of(self.model)
        name = str(getattr(getattr(base, "config", None), "_name_or_path", "") or "")
        kind = type(base).__name__
        task = next((task for end, task in _TASKS.items() if kind.endswith(end)), "text-generation")
        tags = options.get("tags") or []
        write_card(
            folder, self.run.claim, base=name, architecture=kind, task=task,
            tags=[tags] if isinstance(tags, str) else list(tags),
            classes=getattr(getattr(base, "config", None), "num_labels", None),
        )  # fmt: skip

    def hyperparameter_search(self, *unused: Any, **options: Any) -> Any:
        """Refused: every trial spends.

        Args:
            unused: Not looked at.
            options: Not looked at.
        """
        raise Unsupported("every trial of a search spends: use sordina.Search, which counts them.")


def _check_drawable(data: Any, users: Users | None) -> None:
    """Refuse data that nobody can draw from at random, and owners of other data."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise Unsupported("a stream of texts cannot be drawn from at random: give a data set with a length.")
    if not len(data):
        raise InvalidInput("the training data are empty: there is nobody to train on.")
    if users is not None and (owned := len(np.asarray(users.owners))) != len(data):
        raise InvalidInput(f"users name the owners of {owned} items, the data have {len(data)}.")


def _from_libraries(part: Any) -> bool:
    """Whether a collator or a loss is transformers' or ours: what one of the user's own does is partly their word."""
    module = str(getattr(part, "__module__", type(part).__module__))
    return module.split(".")[0] in ("transformers", "sordina")


def _shares_items(held: Any, trained: Any) -> bool:
    """Whether two lists hold the same objects: one is a part of the other. No value is looked at."""
    if not isinstance(held, (list, tuple)) or not isinstance(trained, (list, tuple)):
        return False
    return not {id(item) for item in trained}.isdisjoint(id(item) for item in held)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def _quiet_schedule() -> Iterator[None]:
    """Schedulers warn if the optimiser took no step before: where one resumes, it did in another process."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
