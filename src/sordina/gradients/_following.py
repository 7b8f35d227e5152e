"""Passes of models and losses, followed by `sordina.gradients._owners`: do operations bring samples together?

A pass is followed when a model or a loss is studied, in batches of several sizes, also behind guards that Python reads
(``if mask.any():``), which are turned around for it; a model's again at random steps and in the last one, with as many
made-up samples as the batch has. What a model still holds of a batch when another one has followed is a memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sordina.errors import Unsupported
from sordina.gradients._asides import held_by
from sordina.gradients._catching import catching
from sordina.gradients._chance import CASES
from sordina.gradients._crowds import crowd_sizes
from sordina.gradients._hooks import Gathering, Tap
from sordina.gradients._owners import Owners
from sordina.gradients._reads import Reads
from sordina.gradients._rehearsal import Maker, batch_sizes, gone_back, rows_in
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients._turns import Site, Turns
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.structure import Structure

if TYPE_CHECKING:
    from sordina.gradients._study import StructureTrial, Study

TOGETHER = "operations bring samples together"
UNSEEN = "it cannot be watched while it runs"


def _together_in(where: str) -> str:
    return f"{TOGETHER} ({where})"


Asked = tuple[Any, torch.Size, int]
"""Where a gradient is asked for on the way back: a tensor or an edge of the graph, its shape, and where samples lie."""


def model_brings_together(
    heard: Callable[[], tuple[Any, Sequence[Tap]]], value: Any, structure: Structure, rows: int, seed: int
) -> str:
    """Where a model and the way back to its taps bring samples together.

    Args:
        heard: The model's forward pass on ``value``: its results and taps.
        value: The arguments, with ``rows`` samples.
        structure: Where they lie, and what Python reads of them.
        rows: How many there are.
        seed: Of what operations are tried with.
    """

    def forward() -> tuple[Any, list[Asked]]:
        result, taps = heard()
        placed = [(tap, place) for tap in taps if (place := structure.taps.get(tap.key)) is not None]
        return result, [(tap.edge, tap.shape, place.dim) for tap, place in placed]

    inputs = list(zip(tensors_in([value]), structure.inputs, strict=True))
    return brought_together(forward, inputs, structure.outputs, rows, structure.reads, seed)


def brought_together(
    forward: Callable[[], tuple[Any, Sequence[Asked]]],
    inputs: Sequence[tuple[Tensor, int | None]],
    outputs: Sequence[SamplePlacement | None],
    rows: int,
    reads: frozenset[Site],
    seed: int = 0,
) -> str:
    """Where a forward pass and its way back bring samples together; empty if they do not.

    Args:
        forward: Gives results, and where to go back to.
        inputs: The tensors among its arguments, and where their samples lie.
        outputs: Where they lie in the results.
        rows: How many samples there are.
        reads: Where Python reads truths about all samples, or any: what it does where they turn is followed too.
        seed: Of what operations are tried with.
    """
    held = [(tensor, dim) for tensor, dim in inputs if dim is not None]

    turns = Turns(pairs=True)
    while (turned := turns.following()) is not None:
        watched = Reads([tensor for tensor, _ in held], rows, turned) if reads else None
        found = _followed(partial(_watched, forward, watched), held, outputs, Owners(rows, seed))
        if watched is not None:
            failed = found == UNSEEN and turned and not _runs(forward, Reads(*watched.begun))  # as a check that fails
            turns.ran(turned, watched.met(calm=False), bool(failed))
            found = "" if failed else found
        if found or turns.too_many:
            return found or _together_in("in too many ways")
    return ""


def _watched(forward: Callable[[], tuple[Any, Sequence[Asked]]], reads: Reads | None) -> tuple[Any, Sequence[Asked]]:
    """A forward pass, of which ``reads`` tell what Python reads."""
    if reads is None:
        return forward()
    with reads:
        return forward()


def _runs(forward: Callable[[], Any], reads: Reads) -> bool:
    """Whether it does not end in an error."""
    try:
        _watched(forward, reads)
    except Exception:
        return False
    return True


def _followed(
    forward: Callable[[], tuple[Any, Sequence[Asked]]],
    held: Sequence[tuple[Tensor, int]],
    outputs: Sequence[SamplePlacement | None],
    owners: Owners,
) -> str:
    try:
        with owners:
            owners.own_chance()
            for tensor, dim in held:
                owners.own(tensor, dim)
            result, asked = forward()
            placed = [(x, y.dim) for x, y in zip(tensors_in([result]), outputs, strict=True) if y is not None]
            if any(owners.foreign(tensor, dim) for tensor, dim in placed):
                return _together_in("forward")
            learned = [(x, dim) for x, dim in placed if x.requires_grad and x.is_floating_point()]
            if any(owners.ownerless(tensor) for tensor, _ in learned):
                return UNSEEN
            upstream = [torch.ones_like(tensor) for tensor, _ in learned]
            for gradient, (_, dim) in zip(upstream, learned, strict=True):
                owners.own(gradient, dim)
            if learned and asked:
                with Gathering():  # a checkpoint is computed again as it was
                    found = gone_back([tensor for tensor, _ in learned], [each for each, _, _ in asked], upstream)
                for got, (_, shape, dim) in zip(found, asked, strict=True):
                    if got is not None and owners.foreign(got.reshape(shape), dim):
                        return _together_in("backward")
        return _together_in(owners.lost) if owners.lost else ""
    except Exception:
        return UNSEEN


def brings_together(trial: StructureTrial, structure: Structure, batches: Sequence[tuple[int, Any]]) -> str:
    """Where operations of the model on trial bring samples together, on whatever rows and however coins fall.

    Args:
        trial: The model, aside.
        structure: What is known of it.
        batches: Numbers of samples, and arguments for as many.
    """
    why, cases = "", CASES if trial.chance.drew else CASES[:1]
    for (rows, value), case in itertools.product(batches, cases):
        trial.chance.begin(case)
        heard = partial(trial.fresh, partial(trial.study.heard, rows, trial.dims, value))
        why = why or model_brings_together(heard, value, structure, rows, trial.study.seed)
    trial.chance.begin(0)
    return why or catching(trial.study.model)


def in_own_precision(study: Study, value: tuple[Any, Any], maker: Maker, wide: bool, found: Structure) -> Structure:
    """What a model does in its own precision only (a scale over the batch against overflow) no double one shows.

    Args:
        study: Of the model.
        value: Arguments, of which nothing but their form is used.
        maker: What makes rows.
        wide: Whether whole numbers come from a range.
        found: What was learned in double precision.

    Returns:
        the same, with what Python reads in this one and where operations bring samples together.
    """
    many, dims = batch_sizes(value)[1], found.inputs
    with study.trial(value, dims, maker, False, wide) as (trial, make, alike):
        try:
            rough, larger = 20.0 if study.recorder.dynamic else 4.0, make(many)
            trial.check_replaced(trial.value, trial.rows, found.outputs, rough)
            trial.check_replaced(larger, many, found.outputs, rough)
            if found.alone or all(each.dtype == torch.float64 for each in study.model.parameters()):
                return found
            reads, why = trial.reads(larger, many, alike, found.outputs)
            found = replace(found, reads=found.reads | reads)
            sizes = crowd_sizes(study.plain, dims, trial.value, rows_in(list(tensors_in([value])), dims) or 0)
            batches = [(size, make(size)) for size in sizes[-1:] or [many]]
            return replace(found, alone=why or brings_together(trial, found, batches))
        except Unsupported:
            raise
        except Exception:
            return found  # it will be said where the model runs on the batch itself


def still_apart(study: Study, value: tuple[Any, Any], structure: Structure, rows: int) -> bool:
    """Whether operations of the model as it is now still keep samples apart, with few samples and with ``rows``.

    In double precision, and in its own.

    Args:
        study: Of the model, from now.
        value: Arguments, of which nothing but their form is used.
        structure: What was learned of such calls.
        rows: How many samples there are.
    """
    tried = set[bool]()
    for maker, double, wide in study.ways(value, structure.inputs):
        if double in tried:
            continue
        try:
            with study.trial(value, structure.inputs, maker, double, wide) as (trial, make, _):
                sizes = [size for size in crowd_sizes(study.plain, structure.inputs, trial.value, rows) if size <= rows]
                batches = [(trial.rows, trial.value), *((size, make(size)) for size in sizes[-1:])]
                found = brings_together(trial, structure, batches)
        except Exception:
            continue  # it does not take such rows
        if found and not found.startswith(UNSEEN):
            return False
        if not found:
            tried.add(double)
    return True


def remembered(trial: StructureTrial, other: tuple[Any, Any]) -> str:
    """Where a model still has values of a batch when the ``other`` has followed; empty if nowhere."""
    after = changed(other, torch.clone)
    trial.snapshot.restore_all()
    samples = [(tensor, dim) for tensor, dim in zip(tensors_in([trial.value]), trial.dims, strict=True)]
    try:
        with Owners(trial.rows, trial.study.seed) as owners:
            for tensor, dim in samples:
                if dim is not None:
                    owners.own(tensor, dim)
            trial.fresh(partial(trial.study.plain, trial.value))
            results = trial.study.plain(after)
            if not all(map(owners.ownerless, results)):
                return "(what it says of the next batch)"
            public = trial.study.public_buffers
            kept = (name for name, each in held_by(trial.study.model) if not owners.ownerless(each))
            return next((name for name in kept if name not in public), "")
    except Exception:
        return ""  # that it cannot be followed is said elsewhere
