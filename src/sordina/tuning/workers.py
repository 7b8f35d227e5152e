"""Runs side by side: processes that share the cores, each loading the data once.

Workers are spawned, not forked, so that no secure stream, thread or lock is inherited. A worker whose parent has died
ends at once: what it was doing is in its journal.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

from sordina._memory import bound_cache, keep_freed
from sordina.errors import InvalidInput, TrainingFailed
from sordina.tuning.batched_runner import perform_together
from sordina.tuning.runner import Brief, RunOrder, perform

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
