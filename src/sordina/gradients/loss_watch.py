"""The removal test on the losses themselves, for a loop that knows how they are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from sordina.gradients._carried import CARRIED, Stir, carried
from sordina.gradients._footprints import Footprints, followed
from sordina.gradients._kept_state import KeptState
from sordina.gradients._rehearsal import Dims, Doubled, Snapshot, part, scaled
from sordina.gradients._tracing import tensors_in
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.removal import CHANCE, RemovalSchedule, others_change
from sordina.gradients.structure import ADVICE, Mixing

_BEFORE = 3
"""So many samples are computed before a batch, each with a larger one."""


class LossWatch:
    """The removal test on the losses themselves, for a loop that knows how they are computed."""

    checking = 0
    """How many tests are running: meanwhile a model runs one sample at a time if it did so before."""

    def __init__(
        self,
        model: nn.Module,
        losses: Callable[[Any], Tensor],
        loss: Any = None,
        stirs: Callable[[], Sequence[Stir]] = list,
    ) -> None:
        """Watch ``losses``, a function of a batch, computed with ``model`` and ``loss``, which may keep a state.

        ``stirs`` gives what may be done before and may not matter.
        """
        self.model, self.losses, self.loss, self.stirs = model, losses, loss, stirs
        self.schedule, self.footprints = RemovalSchedule(), Footprints()
        self._plain = str(getattr(loss, "__module__", None)).startswith("torch.")

    def __call__(self, batch: Any) -> Tensor:
        """The losses of ``batch``; refuses those of which one depends on another sample."""
        due, trail = self.schedule.due(), self.footprints.trail()
        before = Snapshot(self.model) if due else None
        kept = KeptState(self.loss) if due else None
        with followed(None if self._plain else trail):
            losses = self.losses(batch)
        if not due and not self._plain and self.footprints.new(trail):
            del losses
            self.schedule.force()
            return self(batch)
        times = Doubled.times
        if before is not None and kept is not None and losses.dim() == 1 and len(losses) > 1:
            self._check(batch, losses, before, kept)
            self.footprints.learn(trail)
            if Doubled.times > times:
                del losses
                before.restore()
                kept.restore()
                return self.losses(batch)
        return losses

    def _check(self, batch: Any, losses: Tensor, before: Snapshot, kept: KeptState) -> None:
        rows, after = len(losses), KeptState(self.loss)

        def run(value: Any) -> list[Tensor]:
            kept.restore()
            return [self.losses(value)]

        dims = tuple(0 if tensor.shape[:1] == (rows,) else None for tensor in tensors_in([batch]))
        where = (SamplePlacement(0, True),)
        LossWatch.checking += 1
        try:
            changes = others_change(self.model, run, batch, dims, where, rows, [losses.detach()], before)
            if not changes:
                self._check_carried(batch, dims, rows, before, kept)
        finally:
            after.restore()
            LossWatch.checking -= 1
        if changes:
            raise Mixing(
                "samples mix: without one sample the losses of others change, so no per-sample bound exists, and "
                f"none holds for the steps since this began. {ADVICE}"
            )

    def _check_carried(self, batch: Any, dims: Dims, rows: int, before: Snapshot, kept: KeptState) -> None:
        """Single samples are computed before the batch, or others read: its losses may not notice."""
        some = CHANCE.sample(range(rows), min(rows, _BEFORE))
        alone = [part(each, dims, row) for row in some for each in (batch, scaled(batch, dims, [row], 1e4, False))]

        def begin() -> None:
            before.restore()
            kept.restore()

        for stirs in ([partial(self.losses, each) for each in alone], self.stirs()):
            run = partial(self._said, batch)
            if stirs and carried(self.model, run, stirs, before.generators, begin):
                raise Mixing(CARRIED.format("loss says"))

    def _said(self, batch: Any) -> list[Tensor]:
        return [self.losses(batch)]
