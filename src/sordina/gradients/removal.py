"""The removal test: one sample is replaced by something very different, or some are taken away; others may not notice.

It sees what no gradient shows: statistics taken without one, a maximum over the batch, the capacity of an expert, a
loss divided by its mean or by the size of the batch. Where a sample is replaced the shapes stay the same, so that a
sound model gives the same numbers to the last bit. Where they differ, chance and rounding are ruled out first: both
runs are repeated with dropout off, and in double precision.

A backward pass may mix where the forward pass does not (a hook on a tensor, a backward of one's own): so now and then
the way back is gone too, from everybody's results but one's, and that one may not be met on it (`backward_mixes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import SystemRandom
from typing import Any

import torch
from torch import Tensor, nn

from sordina.gradients._rehearsal import (
    CASES,
    CHANGES,
    Dims,
    Snapshot,
    WithoutChance,
    aside,
    moved,
    part,
    replaced,
    rows_of,
)
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.one_by_one import SamplePlacement, SamplePlacements, others_same, part_same
from sordina.gradients.structure import ADVICE, Mixing

CHANCE = SystemRandom()
EVERY = 64
"""How many batches lie, in the long run, between two removal tests."""
Run = Callable[[Any], list[Tensor]]
"""From arguments to the tensors of a result."""
Same = Callable[..., bool]
"""Whether two lists of tensors say the same of the samples that stayed."""


class RemovalSchedule:
    """Random times: the first at once, the next soon, then more and more seldom, on average every ``every`` calls.

    >>> schedule = RemovalSchedule(every=8)
    >>> schedule.due(), sum(schedule.due() for _ in range(10_000)) > 800
    (True, True)
    """

    def __init__(self, every: int = EVERY, first: int = 1) -> None:
        """On average every ``every`` calls in the long run, and after about ``first`` calls for the first time."""
        self.every = every
        self.window, self.left = first, CHANCE.randint(1, 2 * first - 1)

    def due(self) -> bool:
        """Whether the time has come; to be asked once per call."""
        self.left -= 1
        if self.left > 0:
            return False
        self.window = min(2 * self.window, self.every)
        self.left = CHANCE.randint(1, 2 * self.window - 1)
        return True


def others_change(
    model: nn.Module,
    run: Run,
    value: Any,
    dims: Dims,
    places: SamplePlacements,
    rows: int,
    seen: Sequence[Tensor],
    before: Snapshot,
) -> bool:
    """Whether replacing one sample of ``value``, or taking some away, changes what ``run`` says of another.

    Args:
        model: What is run; it is left as it was.
        run: Called without gradients.
        value: The arguments, with ``rows`` samples along ``dims``.
        dims: Where the samples lie in the arguments.
        places: Where they lie in the result.
        rows: How many samples there are.
        seen: What ``run`` said of ``value``.
        before: The state of the model before it did.
    """
    change = CHANCE.choice((*CHANGES, None, None))
    if change is None:
        start = CHANCE.randrange(rows)
        count = CHANCE.randint(1, rows - start - (start == 0))
        twin = part(value, dims, start, count)
        same: Same = partial(part_same, places=places, start=start, count=count, rows=rows)
    else:
        sample = CHANCE.randrange(rows)
        other = CHANCE.choice([row for row in range(rows) if row != sample])
        twin = replaced(value, dims, sample, other, change)
        same = partial(others_same, places=places, sample=sample, rows=rows)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), aside(model):
            try:
                before.restore()
                if same(seen, run(twin)):
                    return False
                with torch.enable_grad():  # as the batch itself ran: there are models that ask
                    return _truly(model, run, (value, twin), same, before, change is not None)
            except Exception:
                continue  # it needs gradients inside, or does not take such a row
    return False


def _truly(model: nn.Module, run: Run, pair: tuple[Any, Any], same: Same, before: Snapshot, alike: bool) -> bool:
    """Whether neither chance nor rounding explains why the others' results differ; ``alike`` are shapes in both runs.

    Arguments of the same shapes are rounded alike, so a large difference is none of rounding. Double precision, which
    else decides, may be another way through the model.
    """
    case = CHANCE.choice(CASES)
    with WithoutChance() as chance:

        def played(which: Any) -> tuple[list[Tensor], list[int]]:
            _again(model, before)
            chance.begin(case)
            return [tensor.detach() for tensor in run(which)], chance.seeds()

        (one, seeds), (two, other_seeds) = map(played, pair)
        if set(seeds) != set(other_seeds):
            return True
        if same(one, two):
            return False
        if alike and one[0].device.type == "cpu" and not same(one, two, rough=20):
            return True
        try:
            with moved(model, None, double=True):
                return not same(*(played(_doubled(each))[0] for each in pair))
        except Exception:
            return not same(one, two, rough=20)


def _again(model: nn.Module, before: Snapshot) -> None:
    """As before the batch ran, but without the dropout inside of recurrent layers, which no mode reaches (`aside`)."""
    before.restore()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0


_LOOKED_AT = 16
"""Of so many parameters, drawn anew every time, the gradients are compared."""


def backward_mixes(
    model: nn.Module, run: Run, value: Any, dims: Dims, places: SamplePlacements, rows: int, before: Snapshot
) -> bool:
    """Whether the gradient of all samples' results but one's depends on that one.

    Args:
        model: What is run; it is left as it was.
        run: Called with gradients.
        value: The arguments, with ``rows`` samples along ``dims``.
        dims: Where the samples lie in the arguments.
        places: Where they lie in the result.
        rows: How many samples there are.
        before: The state of the model before it ran.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    sample, other = CHANCE.sample(range(rows), 2)
    twin = replaced(value, dims, sample, other, CHANCE.choice((CHANGES[0], CHANGES[2])))
    case, seed = CHANCE.choice(CASES), CHANCE.getrandbits(62)
    picked = CHANCE.sample(trained, min(_LOOKED_AT, len(trained)))
    draw = torch.Generator()

    def gradients(which: Any) -> list[Tensor]:
        _again(model, before)
        chance.begin(case)
        draw.manual_seed(seed)
        results, upstream = [], []
        for tensor, place in zip(run(which), places, strict=True):
            if (
                place is None
                or not (tensor.requires_grad and tensor.is_floating_point())
                or tensor.shape[place.dim] % rows
            ):
                continue
            drawn = torch.randn(tensor.shape, generator=draw, dtype=torch.float64).to(tensor)
            rows_of(drawn, place.dim, sample, rows).zero_()
            results.append(tensor)
            upstream.append(drawn)
        if not results:
            return []
        found = torch.autograd.grad(results, picked, upstream, allow_unused=True)
        return [one.detach() for one in found if one is not None and not one.is_sparse]

    with aside(model), torch.enable_grad(), WithoutChance(own=draw) as chance:
        try:
            if _near(gradients(value), gradients(twin), 1e-3):
                return False
            with moved(model, None, double=True):
                return not _near(gradients(_doubled(value)), gradients(_doubled(twin)), 1e-6)
        except Exception:
            return False  # no way back from these results, or none in double precision


def _near(one: Sequence[Tensor], two: Sequence[Tensor], tolerance: float) -> bool:
    """Whether two lists of gradients are the same up to rounding; what is not finite tells nothing."""
    size = sum(float(each.double().square().sum()) for each in one) ** 0.5
    if len(one) != len(two) or not size < float("inf"):
        return True
    gaps = [float((a.double() - b.double()).norm()) for a, b in zip(one, two, strict=True) if a.shape == b.shape]
    return not max(gaps, default=0.0) > tolerance * size


def _doubled(value: Any) -> Any:
    return changed(value, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


class LossWatch:
    """The removal test on the losses themselves, for a loop that knows how they are computed."""

    checking = 0
    """How many tests are running: meanwhile a model runs one sample at a time if it did so before."""

    def __init__(self, model: nn.Module, losses: Callable[[Any], Tensor]) -> None:
        """Watch ``losses``, a function of a batch, computed with ``model``."""
        self.model, self.losses = model, losses
        self.schedule = RemovalSchedule()

    def __call__(self, batch: Any) -> Tensor:
        """The losses of ``batch``; refuses those of which one depends on another sample."""
        due = self.schedule.due()
        before = Snapshot(self.model) if due else None
        losses = self.losses(batch)
        if before is not None and losses.dim() == 1 and len(losses) > 1:
            self._check(batch, losses, before)
        return losses

    def _check(self, batch: Any, losses: Tensor, before: Snapshot) -> None:
        rows = len(losses)
        dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors_in([batch]))
        where = (SamplePlacement(0, True),)
        LossWatch.checking += 1
        try:
            changes = others_change(
                self.model, lambda value: [self.losses(value)], batch, dims, where, rows, [losses.detach()], before
            )
        finally:
            LossWatch.checking -= 1
        if changes:
            raise Mixing(
                "samples mix: without one sample the losses of others change, so no per-sample bound exists, and "
                f"none holds for the steps since this began. {ADVICE}"
            )
