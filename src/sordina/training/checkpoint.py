"""Checkpoints: everything a killed run needs to go on, in one file.

The generator's state is kept for seeded runs only. A secure generator's key would let whoever reads the checkpoint take
the noise away, so it is never written; a resumed run draws a fresh one. So it is with past noise where noise is
correlated over steps: a resumed run begins a new turn (`sordina.mechanisms.correlated`, breaks). All else in a
checkpoint was released anyway.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO

import torch

from sordina.clipping import falling_norm, online, quantile, sector, trailing, typical_norm
from sordina.errors import InvalidInput
from sordina.training.learning_rates import AutomaticState, DistanceState, RateState, SteadyState
from sordina.training.loop import Private

_FORMAT = 2
_STATES: list[Any] = [
    online.OnlineState, quantile.QuantileState, sector.SectorState, trailing.TrailingState,
    typical_norm.TypicalNormState, falling_norm.FallingNormState, RateState, SteadyState, DistanceState,
    AutomaticState,
]  # fmt: skip
_FORMER = {RateState: "rate", SteadyState: "rate", DistanceState: "distance"}
"""Where these classes lived in 0.1: its checkpoints name them so."""


def save(private: Private, run_id: str, file: BinaryIO) -> None:
    """Write the state of ``private`` into ``file``.

    Args:
        private: The run.
        run_id: Whose checkpoint this is.
        file: Open for writing.
    """
    state = {
        "format": _FORMAT,
        "run": run_id,
        "model": private.model.state_dict(),
        "optimizer": private.optimizer.state_dict(),
        "policies": private.private_step.states,
        "rate": private.rate_state,
        "steps": private.steps_taken,
        "trained": private.trained_steps,
        "lost": private.lost_steps,
        "rng": None if private.releasable else private.rng.bit_generator.state,
        "noise": None if private.releasable else private.noise_state(),
        "history": private.history,
        "average": None if private.average is None else private.average.state(),
    }
    torch.save(state, file)


def restore(private: Private, run_id: str, content: bytes, claimed: int) -> None:
    """Put ``private`` where a checkpoint was taken.

    Steps after the checkpoint are lost but count as spent, unless the run is seeded: then they are repeated with the
    same noise, which reveals nothing new.

    Args:
        private: The run, not begun yet.
        run_id: Whose checkpoint it must be.
        content: The checkpoint.
        claimed: The journal's word on how many steps may have been taken.
    """
    state = _read(private, content)
    if state["format"] != _FORMAT or state["run"] != run_id:
        raise InvalidInput("the checkpoint belongs to another run, or to another version of Sordina.")
    private.model.load_state_dict(state["model"])
    private.check_untrained(restored=True)
    private.optimizer.load_state_dict(state["optimizer"])
    private.private_step.states = list(state["policies"])
    private.rate_state = state["rate"]
    private.history = list(state["history"])
    private.trained_steps = int(state["trained"])
    if private.average is not None:
        private.average.load(state["average"])
    private.earlier.forget()
    private.book(state["steps"])
    if private.releasable:
        private.book_lost(claimed)
    else:
        private.rng.bit_generator.state = state["rng"]
        private.load_noise(state.get("noise"))
    private.lost_steps = int(state["lost"]) + private.steps_taken - int(state["steps"])


def _read(private: Private, content: bytes) -> dict[str, Any]:
    """The state in ``content``, by a reader that runs no code; the policies' and rates' own states are known to it."""
    own = [type(one) for one in (*private.private_step.states, private.rate_state) if one is not None]
    former = [(kind, f"sordina.training.{module}.{kind.__name__}") for kind, module in _FORMER.items()]
    state = read_tensors(content, [*_STATES, *own, *former])
    if state is None or not {"format", "run"} <= state.keys():
        raise InvalidInput("the checkpoint is damaged.")
    return state


def read_tensors(content: bytes, known: Sequence[Any] = ()) -> dict[str, Any] | None:
    """The dictionary that ``torch.save`` wrote, read without running any code; None if it is damaged or anything else.

    Args:
        content: The bytes of the file.
        known: Classes that may occur in it besides tensors and plain data.
    """
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(known)):
            warnings.simplefilter("ignore")
            state = torch.load(io.BytesIO(content), weights_only=True)
    except Exception:
        return None
    return dict(state) if isinstance(state, dict) else None
