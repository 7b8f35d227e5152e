"""The removal test: one sample is replaced by something very different, and the others may not notice.

It sees what no gradient shows: statistics taken without one, a maximum over the batch, the capacity of an expert, a
loss divided by its mean. The shapes stay the same, so that a sound model gives the same numbers to the last bit. Where
they differ, chance and rounding are ruled out first: both runs are repeated with dropout off, and in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any

import torch
from torch import Tensor, nn

from sordina.gradients._rehearsal import Dims, Snapshot, WithoutChance, aside, moved, replaced
from sordina.gradients._tracing import changed, tensors_in
from sordina.gradients.one_by_one import SamplePlacement, SamplePlacements
from sordina.gradients.structure import ADVICE, CHANGES, Mixing, others_same

CHANCE = SystemRandom()
EVERY = 64
"""How many batches lie, in the long run, between two removal tests."""
Run = Callable[[Any], list[Tensor]]
"""From arguments to the tensors of a result."""


class RemovalSchedule:
    """Random times: the first at once, the next soon, then on average every ``every`` calls.

    >>> schedule = Schedule(every=8)
    >>> schedule.due(), sum(schedule.due() for _ in range(10_000)) > 800
    (True, True)
    """

    def __init__(self, every: int = EVERY, at_once: bool = True) -> None:
        """On average every ``every`` calls; not ``at_once``, from the beginning."""
        self.every = every
        self.window, self.left = (1, 1) if at_once else (every, CHANCE.randint(1, 2 * every - 1))

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
    """Whether replacing one sample of ``value`` changes what ``run`` says of another.

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
    sample = CHANCE.randrange(rows)
    other = CHANCE.choice([row for row in range(rows) if row != sample])
    twin = replaced(value, dims, sample, other, CHANCE.choice(CHANGES))

    def fresh(which: Any) -> list[Tensor]:
        before.restore()
        return run(which)

    with torch.no_grad(), aside(model):
        if others_same(seen, fresh(twin), places, sample, rows):
            return False
        with WithoutChance():
            pair = fresh(value), fresh(twin)
            if others_same(*pair, places, sample, rows):
                return False
            try:
                with moved(model, None, double=True):
                    return not others_same(fresh(_doubled(value)), fresh(_doubled(twin)), places, sample, rows)
            except Exception:
                return not others_same(*pair, places, sample, rows, rough=20)


def _doubled(value: Any) -> Any:
    return changed(value, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


class LossWatch:
    """The removal test on the losses themselves, for a loop that knows how they are computed."""

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
        if others_change(
            self.model, lambda value: [self.losses(value)], batch, dims, where, rows, [losses.detach()], before
        ):
            raise Mixing(
                "samples mix: replacing one sample changes the losses of others, so no per-sample bound exists, and "
                f"none holds for the steps since this began. {ADVICE}"
            )
