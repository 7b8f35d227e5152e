"""The way back is followed too: hooks, and backward passes of one's own, may begin to mix where nothing else changes.

What PyTorch does there by itself is no function that could be followed, so that most models leave no footprints on
their way back. Where a call did something there for the first time, it is gone again with other gradients, and with
some samples alone (`backward_mixes`), before anything is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordina.gradients._footprints import Footprints, Trail, followed
from sordina.gradients._rehearsal import Snapshot
from sordina.gradients._tracing import changed
from sordina.gradients.removal import backward_mixes
from sordina.gradients.structure import ADVICE, Mixing

if TYPE_CHECKING:
    from sordina.gradients._calls import Calls, ModelCall

_TIMES, _UNTOLD = 2, 4
"""How often it is tested, and how often tried where it cannot be told."""


class WayBack:
    """What the ways back of a model's calls did so far."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.footprints = calls, Footprints()

    def trail(self) -> Trail | None:
        """Of a way back that begins; PyTorch's own modules without hooks do nothing there that could be switched."""
        return None if self.calls.switches.plain else self.footprints.trail()

    def went(self, trail: Trail, made: Sequence[ModelCall]) -> bool:
        """Refuse calls that mix on their way back; whether this one was new.

        Args:
            trail: What was done on it.
            made: The calls of the step, those that were tested when they were made among them.
        """
        together = [call for call in made if call.rows > 1 and not call.structure.alone]
        new = bool(together) and not all(call.tested for call in together) and self.footprints.new(trail)
        if new:
            with followed(None):
                for call in together:
                    self._test(call)
        if together and (new or all(call.tested for call in together)):
            self.footprints.learn(trail)
        return new

    def _test(self, call: ModelCall) -> None:
        found = list[bool | None]()
        while found.count(False) < _TIMES:
            found.append(self._mixes(call))
            if found[-1] or found.count(None) == _UNTOLD:
                raise Mixing(
                    "samples mix: on the way back something is done that was not before, and the gradients of samples "
                    f"depend on one another, or nobody can tell, so no per-sample bound exists. {ADVICE}"
                )

    def _mixes(self, call: ModelCall) -> bool | None:
        """Whether gradients mix, from the state that the model was in when it was called."""
        model, structure = self.calls.model, call.structure
        value = changed(call.value, lambda each: each.detach().requires_grad_(each.requires_grad))
        after = Snapshot(model)
        if call.before is not None:
            call.before.restore()
        try:
            before = Snapshot(model)
            return backward_mixes(
                model, self.calls.unheard, value, structure.inputs, structure.outputs, call.rows, before
            )
        finally:
            after.restore()
