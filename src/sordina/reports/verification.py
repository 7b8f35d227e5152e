"""Whether a run's claim can be checked against the run itself: only then may a page call it PRIVATE.

A claim is verified if the folder says that a run of Sordina ended there, its ``privacy.json`` names the very model
beside it, and the epsilon it states is no smaller than the one computed anew from the events it lists. Anything else,
such as a model from elsewhere with a number written beside it, is a claim and no more. What this cannot find is a
folder that somebody forged with care: nothing in it is signed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordina.accounting import Event, accountant, from_dict
from sordina.errors import SordinaError
from sordina.run_folder import MODEL_HASH, RUN, FolderState, read_claim, state_of
from sordina.types import Adjacency

_SLACK = 1e-6
"""Relative difference that two versions of an accountant may have."""


@dataclass(frozen=True)
class Verification:
    """Whether a claim was verified, and if not, why; ``other_model`` if it speaks of another model altogether."""

    verified: bool
    why: str = ""
    other_model: bool = False


def verify(folder: Path, privacy: dict[str, Any]) -> Verification:
    """Check the claim of ``folder``.

    Args:
        folder: The folder of a run.
        privacy: What its ``privacy.json`` says.
    """
    if not privacy:
        return Verification(False, "no privacy.json is there")
    if not (folder / RUN).is_file() or MODEL_HASH not in privacy:
        return Verification(False, "the folder does not say which model the claim is about")
    condition = state_of(folder)
    if condition.state is not FolderState.FINISHED:
        return Verification(False, f"the run has not ended ({condition.state})")
    try:
        read_claim(folder)
    except SordinaError:
        return Verification(False, "privacy.json speaks of another model than the one beside it", other_model=True)
    return _verify_epsilon(privacy)


def _verify_epsilon(privacy: dict[str, Any]) -> Verification:
    if privacy.get("epsilon") is None:
        return Verification(True)
    if "event" not in privacy:
        return Verification(False, "privacy.json lists no events that its epsilon follows from")
    details = privacy.get("details") or {}
    told = {name: privacy.get(name) or details.get(name) for name in ("accountant", "adjacency", "delta")}
    try:
        event = from_dict(numbers(privacy["event"]))
        adjacency = Adjacency(told["adjacency"] or Adjacency.ADD_REMOVE)
        epsilon = _epsilon(event, str(told["accountant"] or "pld"), float(told["delta"] or 0.0), adjacency)
        claimed = float(privacy["epsilon"])
    except (SordinaError, TypeError, ValueError, KeyError, OverflowError):
        return Verification(False, "the events in privacy.json cannot be read")
    if not epsilon <= claimed * (1 + _SLACK):
        return Verification(False, "the events in privacy.json cost more than it claims")
    return Verification(True)


@functools.lru_cache(maxsize=1024)
def _epsilon(event: Event, name: str, delta: float, adjacency: Adjacency) -> float:
    return accountant(name).epsilon(event, delta, adjacency)


def numbers(value: Any) -> Any:
    """Plain data with the text "inf" turned into the number that JSON does not know.

    >>> numbers({"eta": "inf", "kinds": ["inf", 1]})
    {'eta': inf, 'kinds': [inf, 1]}
    """
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value
