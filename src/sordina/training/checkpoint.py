"""Checkpoints: everything a killed run needs to go on, written whole or not at all.

The generator's state is kept for seeded runs only. A secure generator's key would let whoever reads the checkpoint take
the noise away, so it is never written; a resumed run draws a fresh one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from sordina import randomness
from sordina.clipping import online, quantile, sector, trailing
from sordina.errors import InvalidInput
from sordina.training.distance import DistanceState
from sordina.training.private import Private
from sordina.training.rate import RateState, SteadyState

_FORMAT = 1
_STATES: list[Any] = [
    online.OnlineState, quantile.QuantileState, sector.SectorState, trailing.TrailingState, RateState,
    SteadyState, DistanceState,
]  # fmt: skip


def atomically(path: Path, write: Any) -> None:
    """Call ``write(temporary)`` and move the result to ``path``: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def save(private: Private, path: Path, extra: dict[str, Any]) -> None:
    """Write the state of ``private`` and ``extra`` (plain data of the caller) to ``path``."""
    state = {
        "format": _FORMAT,
        "fingerprint": fingerprint(private),
        "model": private.model.state_dict(),
        "optimizer": private.optimizer.state_dict(),
        "policies": private.private_step.states,
        "rate": private.rate_state,
        "steps": private.steps_taken,
        "rng": None if private.releasable else private.rng.bit_generator.state,
        "extra": extra,
    }
    atomically(path, lambda temporary: torch.save(state, temporary))


def load(private: Private, path: Path, claimed: int) -> dict[str, Any]:
    """Restore ``private`` from ``path`` and return the caller's ``extra``.

    ``claimed`` is the journal's word on how many steps may have been taken. Steps after the checkpoint are lost but
    count as spent, unless the run is seeded: then they are repeated with the same noise, which reveals nothing new.
    """
    with torch.serialization.safe_globals(_STATES):
        state = torch.load(path, weights_only=True)
    if state["format"] != _FORMAT or state["fingerprint"] != fingerprint(private):
        raise InvalidInput(
            f"{path} belongs to another run (plan, clipping or model differ). Resume with the options the run was "
            "started with, or choose another folder."
        )
    private.model.load_state_dict(state["model"])
    private.optimizer.load_state_dict(state["optimizer"])
    private.private_step.states = list(state["policies"])
    private.rate_state = state["rate"]
    if private.releasable:
        private.book(max(claimed, state["steps"]))
    else:
        private.rng.bit_generator.state = state["rng"]
        private.book(state["steps"])
    extra: dict[str, Any] = state["extra"]
    return extra


def fingerprint(private: Private) -> str:
    """What must agree for a run to be the same run."""
    shapes = [tuple(parameter.shape) for parameter in private.model.parameters()]
    policies = [part.policy for part in private.private_step.parts]
    return repr((private.plan, policies, private.rule, shapes, randomness.releasable(private.rng)))
