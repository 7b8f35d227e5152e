"""Runs side by side: small networks as one batched computation, others in processes that share the cores.

Workers are spawned, not forked, so that no secure stream, thread or lock is inherited. A worker whose parent has died
ends at once: what it was doing is in its journal.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordina._memory import bound_cache, keep_freed
from sordina._stacked_models import LinearStack
from sordina.errors import InvalidInput, TrainingFailed
from sordina.gradients._hooks import own_class
from sordina.journal import Journal
from sordina.training import MetricsFile, Private, StopTraining, Trainer, evaluate
from sordina.training.batches import inputs_and_target
from sordina.training.losses import Loss, per_sample, row_by_row
from sordina.training.trainer import REPORTS
from sordina.tuning.runner import FAILED, Brief, RunOrder, leave, perform
from sordina.tuning.watchers import Watchers

# Several small networks trained as one batched computation: one forward and one backward pass for all of them.
#
# For a network of a few thousand weights a step is mostly overhead, and a search has many such steps. Here the weights
# of R networks of one architecture live side by side in tensors of shape (R, out, in), each network draws its own
# Poisson batch (padded to the longest; padding never enters a sum), and ``torch.bmm`` does the layers of all. What is
# private stays as it is for a single run: every network has its own sampler, policy, noise and account, and gets a tape
# of its own from the common pass. So R stacked runs are R runs, in law and in cost.

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Softplus, nn.Identity)
MOST_WEIGHTS = 30_000
"""Where stacking stops to pay: measured by ``python benchmarks/stacked.py``."""


def layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain feed-forward network of linear layers and activations; None if it is anything else."""
    parts = [model] if isinstance(model, nn.Linear) else list(model) if isinstance(model, nn.Sequential) else []
    parts = [part for part in parts if not (isinstance(part, nn.Dropout) and part.p == 0)]
    body = parts[1:] if parts and isinstance(parts[0], nn.Flatten) else parts
    known = all(own_class(part) in (nn.Linear, *ACTIVATIONS) for part in body)
    known &= own_class(model).forward in (nn.Linear.forward, nn.Sequential.forward)
    trainable = all(parameter.requires_grad for parameter in model.parameters())
    return parts if body and known and trainable and any(isinstance(part, nn.Linear) for part in body) else None


def stacked_networks(models: Sequence[nn.Module]) -> LinearStack:
    """Plain networks of linear layers as one, and each of them a view of it.

    Args:
        models: Of one architecture.
    """
    found = [layers(model) for model in models]
    if not found or any(one is None or str(one) != str(found[0]) for one in found):
        raise InvalidInput("only plain networks of linear layers and of one architecture can be stacked.")
    return LinearStack([one for one in found if one is not None])


def stackable(trainer: Trainer) -> bool:
    """Whether runs like this one are worth stacking, and can be."""
    plain = (
        trainer.augment is None and trainer.users is None and trainer.microbatch is None and trainer.autocast is None
    )
    weights = sum(parameter.numel() for parameter in trainer.model.parameters())
    return plain and weights <= MOST_WEIGHTS and layers(trainer.model) is not None


# Several runs of a search at once, on a `LinearStack`: the loop of `sordina.Trainer` for many small networks.
#
# Each run keeps a journal. A group that was killed starts over; runs with secret noise then count the steps they may
# have taken as spent and take the rest, as a single run without a checkpoint does. Seeded runs repeat the same steps.


@dataclass(eq=False)
class _Member:
    """A run of the group."""

    order: RunOrder
    trainer: Trainer
    private: Private
    watchers: Watchers
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


def perform_together(brief: Brief, orders: Sequence[RunOrder], train: Any, validation: Any) -> None:
    """Do several runs as one computation; the same results on disk as from one by one."""
    members = [_member(brief, order, train) for order in orders]
    stack = stacked_networks([member.trainer.model for member in members])
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
        if member.private.average is not None:
            member.private.average.adopt()
        leave(brief, member.order, member.trainer, member.private.plan.event(), member.watchers.best, member.stopped)


def _member(brief: Brief, order: RunOrder, train: Any) -> _Member:
    folder = brief.place(order)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = brief.make(order)
    private = trainer.private(train)
    private.journal = Journal.open(folder / "journal.jsonl")
    if private.releasable:
        private.book_lost(private.journal.claimed)
    watchers = brief.watchers(order, trainer.model)
    return _Member(order, trainer, private, watchers, MetricsFile(folder / "metrics.jsonl"), iter(private))


def _step(stack: LinearStack, members: Sequence[_Member], active: Sequence[tuple[_Member, Any]], loss: Loss) -> None:
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
    try:
        with private.averaged() if validate else nullcontext():
            if validate:
                entry["validation"] = evaluate(member.trainer.model, member.trainer.loss, validation)
            member.metrics.report(entry)
            for watcher in member.watchers:
                watcher.report(entry)
    except StopTraining:
        member.stopped = member.watchers.stopped
        private.book(steps)


# Runs side by side: processes that share the cores, each loading the data once.

Source = Callable[[], tuple[Any, Any]]
"""Where training and validation data come from; called once per process."""


@dataclass(frozen=True)
class Given:
    """Data that are there already."""

    train: Any
    validation: Any

    def __call__(self) -> tuple[Any, Any]:
        """The two parts."""
        return self.train, self.validation


def carry_out(brief: Brief, groups: Sequence[Sequence[RunOrder]], source: Source, workers: int) -> None:
    """Do all groups of runs; a group of several is one batched computation.

    Args:
        brief: What the runs have in common.
        groups: The runs.
        source: Training and validation data.
        workers: How many processes, and so how many threads each has: fewer groups do not change it, since a search
            that stops at random must not compute differently by how many runs there are.
    """
    if workers == 1:
        train, validation = source()
        for group in groups:
            _carry_out(brief, group, train, validation)
        return
    try:
        packed = pickle.dumps((brief, source))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the search cannot be sent to worker processes ({error}): define the trainer at the top of a module, or "
            "use workers=1."
        ) from error
    threads = max(1, cores() // workers)
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(packed, threads)
    ) as pool:
        tasks = [pool.submit(_task, list(group)) for group in groups]
        try:
            for task in as_completed(tasks):
                task.result()
        except BrokenProcessPool as error:
            raise TrainingFailed(
                "a worker process died. Runs that had ended are kept; go on with resume=True (--resume)."
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _carry_out(brief: Brief, group: Sequence[RunOrder], train: Any, validation: Any) -> None:
    if brief.stacked:
        perform_together(brief, group, train, validation)
        return
    for order in group:
        perform(brief, order, train, validation)


_here: dict[str, Any] = {}


def _prepare(packed: bytes, threads: int) -> None:
    """In a fresh worker: watch the parent, take a share of the cores, be careful with memory, load the data."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(threads)
    keep_freed()
    bound_cache()
    brief, source = pickle.loads(packed)
    _here["brief"], _here["data"] = brief, source()


def _leave_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _task(group: list[RunOrder]) -> None:
    _carry_out(_here["brief"], group, *_here["data"])
