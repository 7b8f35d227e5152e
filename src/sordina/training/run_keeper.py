"""What keeps a run: its settings, its folder, its reservation in a ledger, its checkpoints and its end."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import re
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sordina.accounting.events import NOTHING
from sordina.accounting.ledger import Ledger, Reservation
from sordina.errors import InvalidInput, SordinaError, TrainingFailed
from sordina.journal import BLOCK
from sordina.plan import check_whole
from sordina.run_folder import CHECKPOINT, MODEL, PRIVACY, RECIPE, RunFolder, read_claim
from sordina.training import checkpoint
from sordina.training.loop import Private
from sordina.training.reservations import check_pair, refuse_settled_by_others, reserve_once, settle_once
from sordina.training.run import Run

# What decides what a run does and claims, as plain data: two runs with the same settings are the same run.
#
# Names and shapes of the data are among them, their values never are: a hash of them would be a release.

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def settings_of(private: Private) -> dict[str, Any]:
    """The settings of ``private``.

    Args:
        private: The run, not begun yet.
    """
    plan, users = private.plan, private.users
    groups = private.optimizer.param_groups
    return {
        "epsilon": plan.budget.epsilon,
        "delta": plan.budget.delta,
        "steps": plan.steps,
        "noise_multiplier": plan.noise_multiplier,
        "sampler": described(plan.sampler),
        "unit": str(plan.unit),
        "accountant": plan.accountant,
        "clipping": [[list(part.names), described(part.policy)] for part in private.private_step.parts],
        "learning_rate": described(private.rule),
        "optimizer": [type(private.optimizer).__name__, *(_options(group) for group in groups)],
        "model": [
            type(private.model).__name__,
            *([name, list(value.shape), str(value.dtype)] for name, value in private.model.named_parameters()),
        ],
        "trained": [name for name, value in private.model.named_parameters() if value.requires_grad],
        "data": [private.rows.size, *_columns(private.rows.source)],
        "users": None if users is None else [len(users), users.rows_per_user],
        "microbatch": private.microbatch,
        "noise": "secret" if private.releasable else hashlib.sha256(repr(_state(private)).encode()).hexdigest(),
        "raw": private.raw is not None,
        **({} if private.augment is None else {"augment": described(private.augment), "views": private.views}),
        **({} if private.average is None else {"averaging": described(private.average.rule)}),
        **({} if plan.noise is None else {"correlated_noise": described(plan.noise)}),
        **({} if plan.before is None else {"before": described(plan.before)}),
    }


def described(value: Any) -> Any:
    """``value`` as plain data that is the same in every process.

    >>> described({"f": described, "n": 1.5})
    {'f': 'sordina.training.run_keeper.described', 'n': 1.5}

    Args:
        value: A number, a text, a function, a data class, or a collection of such.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, (Tensor, np.ndarray)):
        content = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        return [list(content.shape), str(content.dtype), hashlib.sha256(content.tobytes()).hexdigest()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [described(one) for one in value]
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: described(value) for key, value in group.items() if key != "params"}


def _columns(source: Any) -> list[Any]:
    tensors = source if isinstance(source, tuple) else ()
    return [[list(tensor.shape[1:]), str(tensor.dtype)] for tensor in tensors]


def _state(private: Private) -> Any:
    """Of a seeded generator: whoever has it can repeat the run, which is not for release anyway."""
    return described(private.rng.bit_generator.state)


# What keeps a run: its folder, its reservation in a ledger, its checkpoints and its end.
#
# Order of a life: options checked, folder held and settings stored, budget reserved, checkpoint restored, steps claimed
# in the journal and taken, checkpoints; then the last checkpoint, model, ``privacy.json``, settlement, done. A run
# that is killed anywhere is resumed from there, and pays for every step that somebody may have seen.

log = logging.getLogger("sordina")
PARTS = 50
"""A run is claimed and saved in about so many parts, so that a crash loses about one of them."""
RARELY = 200
"""At least every so many steps there is a checkpoint, whatever it costs."""
_TEAM = "team"
_SHARE, _FREE = 0.02, 1.0
"""Other checkpoints may take this share of a run's time, or so many seconds in all."""


class RunKeeper:
    """The folder and the reservation of a `Private`, held until `close`."""

    def __init__(
        self, private: Private, folder: RunFolder | None, reservation: Reservation | None, every: int | None
    ) -> None:
        self.private, self.folder, self.reservation = private, folder, reservation
        self._every = every
        self._first = 0
        self._part = max(1, private.plan.steps // PARTS)
        self._begun, self._cost, self._saved = time.perf_counter(), 0.0, 0

    @classmethod
    def open(
        cls,
        private: Private,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
        ledger: Ledger | None = None,
        dataset_budget: str | None = None,
        checkpoint_every: int | None = None,
        settings: dict[str, Any] | None = None,
        recipe: dict[str, Any] | None = None,
    ) -> RunKeeper:
        """Hold folder and reservation of ``private``, and with ``resume`` bring it where it was.

        Args:
            private: The run, bound to model and data, not begun.
            folder: Where it is kept; None keeps nothing.
            resume: Continue the run in ``folder``.
            ledger: Where its whole price is reserved before the first batch is drawn.
            dataset_budget: The data set in the ledger.
            checkpoint_every: Steps between checkpoints; left out, as often as is cheap.
            settings: What matters for the run beyond what ``private`` knows.
            recipe: How the run was asked for, saved as ``recipe.json``.
        """
        check_pair(ledger, dataset_budget)
        if checkpoint_every is not None:
            check_whole("checkpoint_every", checkpoint_every)
        if resume and folder is None:
            raise InvalidInput("resume=True needs the folder of the run to resume: give folder=.")
        if not private.team.leads:
            return cls._following(private)
        try:
            keeper = cls._leading(private, folder, resume, ledger, dataset_budget, checkpoint_every, settings, recipe)
        except BaseException:
            private.team.tell(None)
            raise
        if private.team.size > 1:
            buffer = io.BytesIO()
            checkpoint.save(private, _TEAM, buffer)
            private.team.tell(buffer.getvalue())
        return keeper

    @classmethod
    def _leading(
        cls, private: Private, folder: str | Path | None, resume: bool, ledger: Ledger | None, dataset: str | None,
        every: int | None, settings: dict[str, Any] | None, recipe: dict[str, Any] | None,
    ) -> RunKeeper:  # fmt: skip
        plan, what = private.plan, f"train {type(private.model).__name__}"
        if ledger is not None and dataset is not None and not resume:
            ledger.check(dataset, plan.event(), adjacency=plan.adjacency, unit=plan.unit)
        held, reservation = None, None
        if folder is not None:
            booked = None if ledger is None or dataset is None else [ledger.id, ledger.dataset(dataset).name]
            chosen = settings_of(private) | {"ledger": booked} | (settings or {})
            held = RunFolder.begin(folder, "train", chosen, resume=resume)
            what += f" in {name}" if (name := held.path.resolve().name[:80]).isprintable() else ""
        try:
            if held is None or not held.finished:
                reservation = reserve_once(
                    held, ledger, dataset, plan.event(), what=what, adjacency=plan.adjacency, unit=plan.unit
                )
            if held is not None and recipe is not None and not held.finished:
                held.write_json(RECIPE, recipe)
            keeper = cls(private, held, reservation, every)
            keeper._restore()
            if held is not None and not held.finished:
                refuse_settled_by_others(reservation, held.has(PRIVACY) or private.steps_taken >= plan.steps)
        except BaseException:
            if held is not None and reservation is None and not resume:
                held.forget()
            elif held is not None:
                held.close()
            raise
        return keeper

    @classmethod
    def _following(cls, private: Private) -> RunKeeper:
        """For the other processes of a team: rank 0 keeps the run, and says where it stands."""
        state = private.team.tell(None)
        if state is None:
            raise InvalidInput("the process that leads this run could not begin it; its message says why.")
        checkpoint.restore(private, _TEAM, state, 0)
        return cls(private, None, None, None)

    def _restore(self) -> None:
        private, folder = self.private, self.folder
        if folder is not None:
            private.journal, private.block = folder.journal, min(BLOCK, self._part)
            if folder.finished:
                self._read_finished(folder)
            elif folder.has(CHECKPOINT):
                try:
                    checkpoint.restore(private, folder.run_id, folder.read(CHECKPOINT), folder.journal.claimed)
                except InvalidInput as error:
                    raise InvalidInput(
                        f"the run in {folder.path} cannot be resumed: {error} What it drew counts as spent; begin a "
                        "new run in another folder."
                    ) from error
            elif private.releasable:
                private.book_lost(folder.journal.claimed)
                private.lost_steps = private.steps_taken
            self._saved, self._first = private.steps_taken, private.trained_steps
            self._refuse_untrained(folder)
            if private.lost_steps and not folder.finished:
                log.warning(self._lost())

    def _read_finished(self, folder: RunFolder) -> None:
        """A run that has ended is not taken further: its model and its claim are read."""
        facts = read_claim(folder.path).more
        try:
            self.private.model.load_state_dict(checkpoint.read_tensors(folder.read(MODEL)) or {})
        except (RuntimeError, TypeError) as error:
            raise InvalidInput(f"{folder.path / MODEL} does not hold the weights of this model.") from error
        self.private.check_untrained(restored=True)
        self.private.earlier.forget()
        self.private.book(int(facts["steps"]))
        self.private.lost_steps = int(facts.get("lost_steps", 0))
        self.private.trained_steps = self.private.steps_taken - self.private.lost_steps

    def _lost(self) -> str:
        private = self.private
        return (
            f"{private.lost_steps} of {private.plan.steps} steps were lost when the run was interrupted: they are paid "
            "for and not in the model."
        )

    def _refuse_untrained(self, folder: RunFolder) -> None:
        """All is spent and nothing was learnt: no model is given out at full price without a word."""
        private = self.private
        if private.components_lost and not folder.finished:
            why = (
                f"the run in {folder.path} was interrupted while it found the principal components of its inputs: they "
                "may have been seen, and a second release is not paid for. Begin a new run in another folder."
            )
            settle_once(self.reservation, private.plan.event())
            folder.close_failed(why)
            raise TrainingFailed(why)
        if folder.finished or private.trained_steps or private.steps_taken < private.plan.steps:
            return
        why = (
            f"the run in {folder.path} was interrupted after all its {private.plan.steps} steps were claimed and "
            "before any was saved: its whole price is spent and there is no model. Begin a new run in another folder."
        )
        settle_once(self.reservation, private.plan.event())
        folder.close_failed(why)
        raise TrainingFailed(why)

    def after_step(self, *, last: bool) -> None:
        """Save a checkpoint where one is due: at the end of a part, if it is cheap.

        Args:
            last: Whether the plan is used up; then `finish` is about to save one.
        """
        if self.folder is None or last:
            return
        step, now = self.private.steps_taken, time.perf_counter()
        if self._every is not None:
            due = step % self._every == 0
        else:
            pace = (now - self._begun) / max(1, self.private.trained_steps - self._first)
            cheap = self._cost * min(1 / (_SHARE * pace), self.private.plan.steps / _FREE)
            due = step - self._saved >= min(RARELY, max(self._part, cheap))
        if due:
            self._save(self.folder)
            self._cost = time.perf_counter() - now

    def save(self) -> None:
        """Save a checkpoint now, where there is a folder."""
        if self.folder is not None:
            self._save(self.folder)

    def _save(self, folder: RunFolder) -> None:
        self.private.check_untrained()
        folder.write(CHECKPOINT, lambda file: checkpoint.save(self.private, folder.run_id, file))
        self._saved = self.private.steps_taken

    def finish(self, run: Run) -> None:
        """End the run: last checkpoint, model, claim, settlement, done; may be killed and repeated.

        Args:
            run: What is to be left behind.
        """
        if self.folder is None:
            settle_once(self.reservation, run.event)
        elif not self.folder.finished:
            refuse_settled_by_others(self.reservation)
            self._save(self.folder)
            run.leave(self.folder, lambda: settle_once(self.reservation, run.event))

    def failed(self, error: BaseException) -> None:
        """Say what a run that stopped has spent, and what its ledger holds for it.

        A run with a folder can be resumed, so its reservation is held. One without cannot: it is settled, as nothing if
        nothing was drawn, else in full, because when it stopped may have been decided by what was seen.

        Args:
            error: Why it stopped; an error of ours gets the words added.
        """
        private, told = self.private, ""
        if private.steps_taken:
            told = f" {private.steps_taken} of {private.plan.steps} steps are on record."
        if self.reservation is not None:
            told += f" Reservation {self.reservation.id} on {self.reservation.spend.dataset!r} {self._settled()}."
        elif self.folder is not None:
            told += " The run can be resumed."
        if told and isinstance(error, SordinaError):
            error.args = (f"{error}{told}",)
        elif told:
            log.warning(told.strip())

    def _settled(self) -> str:
        if self.folder is not None:
            return "is held for the run: resume it, or it counts as spent"
        drawn = self.private.steps_taken
        try:
            settle_once(self.reservation, self.private.plan.event() if drawn else NOTHING)
        except SordinaError as error:
            return f"could not be settled and counts as spent ({error})"
        return "was settled in full, since the run cannot be resumed" if drawn else "was settled as unspent"

    def close(self) -> None:
        """Let go of the folder."""
        if self.folder is not None:
            self.folder.close()
