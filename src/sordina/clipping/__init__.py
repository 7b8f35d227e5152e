"""How one sample's influence is bounded, and how the bound adapts. See `policy` for the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sordina._arguments import checked
from sordina.clipping.automatic import Automatic
from sordina.clipping.falling_norm import FallingNorm
from sordina.clipping.fixed import Fixed
from sordina.clipping.online import Online, Rails
from sordina.clipping.per_layer import Part, PerLayer, arrange, by_module
from sordina.clipping.policy import Decay, Policy, policy_facts
from sordina.clipping.quantile import Quantile
from sordina.clipping.sector import Follow, Sector, diameter
from sordina.clipping.trailing import Trailing
from sordina.clipping.typical_norm import TypicalNorm
from sordina.errors import InvalidInput

__all__ = [
    "Automatic",
    "Decay",
    "FallingNorm",
    "Fixed",
    "Follow",
    "Online",
    "Part",
    "PerLayer",
    "Policy",
    "Quantile",
    "Rails",
    "Sector",
    "Trailing",
    "TypicalNorm",
    "arrange",
    "by_module",
    "diameter",
    "named",
    "policy_facts",
]


# Policies by the names the command line knows.

_MAKERS: dict[str, Callable[..., Policy[Any]]] = {
    "typical-norm": TypicalNorm,
    "falling-norm": FallingNorm,
    "online": Online,
    "fixed": Fixed,
    "quantile": Quantile,
    "automatic": Automatic,
    "trailing": Trailing,
    "sector": Sector,
}

NAMES = tuple(_MAKERS)


@checked
def named(name: str, threshold: float | None = None) -> Policy[Any]:
    """The policy called ``name``, with ``threshold`` as its (first) threshold where one is given.

    >>> named("fixed", 0.5)
    Fixed(threshold=0.5)
    """
    if name not in _MAKERS:
        raise InvalidInput(f"unknown clipping {name!r}: choose one of {', '.join(NAMES)}.")
    maker = _MAKERS[name]
    if threshold is None:
        return maker()
    if maker is Automatic:
        raise InvalidInput(f"{name} clipping has no threshold to set.")
    return maker(threshold=threshold)
