"""How one sample's influence is bounded, and how the bound adapts. See `policy` for the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sordina._arguments import checked
from sordina.clipping.automatic import Automatic
from sordina.clipping.fixed import Fixed
from sordina.clipping.online import Online, Rails
from sordina.clipping.per_layer import Part, PerLayer, arrange, by_module
from sordina.clipping.policy import Decay, Policy
from sordina.clipping.quantile import Quantile
from sordina.clipping.sector import Follow, Sector, diameter
from sordina.clipping.trailing import Trailing
from sordina.errors import InvalidInput

__all__ = [
    "Automatic",
    "Decay",
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
    "arrange",
    "by_module",
    "diameter",
    "named",
]


# Policies by the names the command line knows.

_MAKERS: dict[str, tuple[Callable[..., Policy[Any]], str | None]] = {
    "online": (Online, "initial"),
    "fixed": (Fixed, "C"),
    "quantile": (Quantile, "initial"),
    "automatic": (Automatic, None),
    "trailing": (Trailing, "initial"),
    "sector": (Sector, "high"),
}

NAMES = tuple(_MAKERS)


@checked
def named(name: str, threshold: float | None = None) -> Policy[Any]:
    """The policy called ``name``, with ``threshold`` as its (first) threshold where one is given.

    >>> named("fixed", 0.5)
    Fixed(C=0.5)
    """
    if name not in _MAKERS:
        raise InvalidInput(f"unknown clipping {name!r}: choose one of {', '.join(NAMES)}.")
    maker, field = _MAKERS[name]
    if threshold is None:
        return maker()
    if field is None:
        raise InvalidInput(f"{name} clipping has no threshold to set.")
    return maker(**{field: threshold})
