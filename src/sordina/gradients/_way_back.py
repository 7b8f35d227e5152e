"""The way back is followed too: hooks, and backward passes of one's own, may begin to mix where nothing else changes.

What PyTorch does there by itself is no function that could be followed, so that most models leave no footprints on
their way back. Where a call did something there for the first time, it is gone again with other gradients, and with
some samples alone (`backward_mixes`), before anything is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import GradientEdge

from sordina.gradients._footprints import Footprints, Trail, followed
from sordina.gradients._hooks import Tap
from sordina.gradients._rehearsal import Attributes, Snapshot
from sordina.gradients._tracing import changed
from sordina.gradients.one_by_one import Apart
from sordina.gradients.removal import backward_mixes
from sordina.gradients.structure import ADVICE, Mixing, Structure

if TYPE_CHECKING:
    from sordina.gradients._calls import Calls

_TIMES, _UNTOLD = 2, 4
"""How often it is tested, and how often tried where it cannot be told."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class ModelCall:
    """One call of the model, as far as the way back needs it."""

    value: tuple[Any, Any]
    structure: Structure
    rows: int
    edges: list[GradientEdge | None]
    """Where the tensors of the result lie in the graph."""
    apart: Apart | None = None
    """How to go back, if each sample ran alone."""
    taps: list[Tap] = field(default_factory=list)
    tested: bool = False
    """Whether its way back was tested when it was made."""
    before: Attributes | None = None
    """The attributes of a model that changes them."""


class WayBack:
    """What the ways back of a model's calls did so far."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.footprints = calls, Footprints()

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
