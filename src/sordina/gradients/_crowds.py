"""Batches that a study tries besides a few random rows: large ones, and companies of whole numbers.

A statistic that hides among few samples may show among many (the capacity of an expert, sizes that a number divides),
so models are tried with `CROWDS` where a forward pass is cheap. Rows of many whole numbers (images as bytes) are too
much alike: drawn at random, each holds the least and the largest number there is, and the largest of a batch is that of
every row. So there are companies in which all numbers lie close to one end and one row, or all others, at the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sordina.gradients._rehearsal import LOUD, Dims, all_whole, chosen, is_whole, replaced, rows_in, scaled
from sordina.gradients._tracing import changed, tensors_in

CROWDS = 64, 120
"""Batch sizes that many numbers divide."""
ROOM, FEW_WEIGHTS = 1 << 16, 1 << 20
"""They are tried in several ways where all arguments have at most so many values, and the model weights."""
WORK = 1 << 30
"""In fewer ways they are tried where a forward pass takes at most so many multiplications."""
Trials = tuple[Any, list[tuple[list[int], Any]]]
"""Arguments, and for some samples arguments that differ in these."""


def crowd_trials(
    model: nn.Module,
    run: Callable[[Any], object],
    make: Callable[[int], Any],
    dims: Dims,
    few: Any,
    generator: torch.Generator,
) -> Iterator[Trials]:
    """Large batches: one of many samples is replaced, or all but the last tenth are made large.

    Args:
        model: What is tried; where it takes too much work there are no trials.
        run: Its forward pass.
        make: Makes arguments for a number of samples.
        dims: Where the samples lie in the arguments.
        few: Arguments for a few samples.
        generator: Where random numbers come from.
    """
    room = _room(model, dims, few)
    if not room and not _affordable(run, dims, few):
        return
    small, large = CROWDS
    crowd = make(small)
    for value in (crowd, *([chosen(crowd, dims, [0] * small)] if room else []), make(large)):
        rows, whole = rows_in(list(tensors_in([value])), dims) or 0, all_whole(value, dims)
        sample = int(torch.randint(rows, (), generator=generator))
        changes = LOUD[:2] if room else LOUD[:1]
        twins = [([sample], replaced(value, dims, sample, (sample + 1) % rows, change, whole)) for change in changes]
        gone = list(range(rows - rows // 10))  # who comes late may find no room
        yield value, [*twins, (gone, scaled(value, dims, gone, 1e4, whole))]


def _room(model: nn.Module, dims: Dims, value: Any) -> bool:
    """Whether arguments and model are small."""
    tensors = list(tensors_in([value]))
    rows = rows_in(tensors, dims) or 1
    values = sum(x.numel() // rows for x, dim in zip(tensors, dims, strict=True) if dim is not None)
    return values * max(CROWDS) <= ROOM and sum(each.numel() for each in model.parameters()) <= FEW_WEIGHTS


def _affordable(run: Callable[[Any], object], dims: Dims, value: Any) -> bool:
    """Whether little is computed for each sample."""
    return _work(run, dims, value) * max(CROWDS) <= WORK


def _work(run: Callable[[Any], object], dims: Dims, value: Any) -> float:
    """About how many multiplications are done for a sample; infinitely many where nobody can tell."""
    try:
        with Work() as work:
            run(value)
    except Exception:
        return math.inf  # it cannot be watched
    return float(work.done / (rows_in(list(tensors_in([value])), dims) or math.nan))


def crowd_sizes(run: Callable[[Any], object], dims: Dims, few: Any, rows: int) -> list[int]:
    """Large batches in which operations are followed: some do other things there; ``rows`` is what the user has."""
    most = WORK / 8 / max(1.0, _work(run, dims, few))
    return sorted({int(size) for size in (min(CROWDS[0], most), min(rows, most)) if size > MANY})


MANY = 8
"""From so many samples on a batch is large."""


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts about how many multiplications are done in here; a function of shapes only."""

    def __init__(self) -> None:
        """Nothing is done yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and count."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        inner = 16  # what is written, and kept for a way back, takes longer than a multiplication
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            inner = args["add" in name].shape[-1]  # of (a, b), or of (added, a, b)
        elif name == "convolution":
            inner = max(1, args[1][0].numel())
        elif "attention" in name:
            inner = 2 * args[1].shape[-2]
        if not any(each.alias_info for each in func._schema.returns):  # else it is a view
            self.done += inner * max((x.numel() for x in tensors_in([result])), default=0)
        return result


def company_trials(value: Any, dims: Dims, generator: torch.Generator) -> Iterator[Trials]:
    """For each tensor of whole numbers companies close to one end of its range, with one or most rows at the other."""
    tensors = list(tensors_in([value]))
    rows = rows_in(tensors, dims) or 0
    for place, (tensor, dim) in enumerate(zip(tensors, dims, strict=True)):
        if dim is None or rows < 2 or not is_whole(tensor):
            continue
        own = tensor.long()
        low, high = max(int(own.min()), 0), max(int(own.max()), 0)
        above = own - low
        sample = int(torch.randint(rows, (), generator=generator))
        some = [sample], [row for row in range(rows) if row != sample]
        for numbers, end in ((low + above // 16, high), (high - above // 16, low), (low + above % 2, high)):
            company = torch.where(own < 0, own, numbers)  # negative ones may stand for something
            filled = [company.index_fill(dim, torch.tensor(gone, device=tensor.device), end) for gone in some]
            twins = [(gone, _with(value, place, far)) for gone, far in zip(some, filled, strict=True)]
            yield _with(value, place, company), twins


def missing_trials(value: Any, dims: Dims, generator: torch.Generator) -> Iterator[Trials]:
    """For each tensor of whole numbers a sample of which all are -1, as what is missing may be."""
    tensors = list(tensors_in([value]))
    sample = int(torch.randint(rows_in(tensors, dims) or 1, (), generator=generator))
    for place, (tensor, dim) in enumerate(zip(tensors, dims, strict=True)):
        if dim is not None and is_whole(tensor) and tensor.is_signed():
            index = torch.tensor([sample], device=tensor.device)
            yield value, [([sample], _with(value, place, tensor.index_fill(dim, index, -1)))]


def _with(value: Any, place: int, numbers: Tensor) -> Any:
    """The arguments with another tensor at a place."""
    places = iter(range(place + 1))
    return changed(value, lambda tensor: numbers.to(tensor.dtype) if next(places, None) == place else tensor)
