"""Policies by the names the command line knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sordina.arguments import checked
from sordina.clipping.automatic import Automatic
from sordina.clipping.fixed import Fixed
from sordina.clipping.online import Online
from sordina.clipping.policy import Policy
from sordina.clipping.quantile import Quantile
from sordina.clipping.sector import Sector
from sordina.clipping.trailing import Trailing
from sordina.errors import InvalidInput

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
