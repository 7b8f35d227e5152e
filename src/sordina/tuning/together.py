"""Several runs of a search at once, on a `Stack`: the loop of `sordina.Trainer` for many small networks.

Each run keeps a journal. A group that was killed starts over; runs with secret noise then count the steps they may have
taken as spent and take the rest, as a single run without a checkpoint does. Seeded runs repeat the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sordina.errors import TrainingFailed
from sordina.training import MetricsFile, Private, StopTraining, Trainer, evaluate
from sordina.training.batches import inputs_and_target
from sordina.training.journal import Journal
from sordina.training.losses import Loss, per_sample, row_by_row
from sordina.training.trainer import REPORTS
from sordina.tuning.run import FAILED, Brief, Order, leave
from sordina.tuning.stacked import Stack
from sordina.tuning.watchers import Best, Diverging


@dataclass(eq=False)
class _Member:
    """A run of the group."""

    order: Order
    trainer: Trainer
    private: Private
    best: Best
    diverging: Diverging
    metrics: MetricsFile
    batches: Iterator[Any]
    stopped: str | None = None

    def next(self) -> Any:
        """The next batch, or None when the run has ended."""
        if self.stopped:
            return None
        try:
            return next(self.batches, None)
        except TrainingFailed:  # of released weights: this run is over, the others go on
            self.stopped = FAILED
            self.private.book(self.private.plan.steps)
            return None


def perform_together(brief: Brief, orders: Sequence[Order], train: Any, validation: Any) -> None:
    """Do several runs as one computation; the same results on disk as from one by one."""
    members = [_member(brief, order, train) for order in orders]
    stack = Stack([member.trainer.model for member in members])
    loss = row_by_row(per_sample(members[0].trainer.loss))
    held_out = validation if brief.selection.exact else None
    for member in members:
        member.metrics.__enter__()
    try:
        while active := [(member, batch) for member in members if (batch := member.next()) is not None]:
            _step(stack, members, active, loss)
            for member, _ in active:
                _watch(brief, member, held_out)
    finally:
        for member in members:
            member.metrics.__exit__(None, None, None)
    for member in members:
        leave(brief, member.order, member.trainer, member.private.plan.event(), member.best, member.stopped)


def _member(brief: Brief, order: Order, train: Any) -> _Member:
    folder = brief.place(order)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = brief.make(order)
    private = trainer.private(train)
    private.journal = Journal.open(folder / "journal.jsonl")
    if private.releasable:
        private.book(min(private.journal.claimed, private.plan.steps))
    return _Member(
        order, trainer, private, Best(trainer.model, folder / "best.pt", brief.patience), Diverging(trainer.model),
        MetricsFile(folder / "metrics.jsonl"), iter(private),
    )  # fmt: skip


def _step(stack: Stack, members: Sequence[_Member], active: Sequence[tuple[_Member, Any]], loss: Loss) -> None:
    batches: dict[int, tuple[Tensor, Tensor]] = {}
    for member, batch in active:
        (x,), y = inputs_and_target(batch)
        batches[members.index(member)] = (x, y)
    for (member, _), tape in zip(active, stack.record(batches, loss), strict=True):
        member.private.step_with(tape)


def _watch(brief: Brief, member: _Member, validation: Any) -> None:
    private, steps = member.private, member.private.plan.steps
    step = private.steps_taken
    last = step == steps
    validate = validation is not None and (step % (brief.validate_every or max(1, steps // 10)) == 0 or last)
    if not (validate or last or step % max(1, steps // REPORTS) == 0):
        return
    entry = member.trainer.entry(private)
    if validate:
        entry["validation"] = evaluate(member.trainer.model, member.trainer.loss, validation)
    member.metrics.report(entry)
    try:
        member.best.report(entry)
        member.diverging.report(entry)
    except StopTraining:
        member.stopped = "diverged" if member.diverging.stopped else "no longer improving"
        private.book(steps)
