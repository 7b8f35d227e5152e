"""Who judges: the accountant's protocol and the list of accountants by name."""

from __future__ import annotations

import importlib
from typing import Protocol, runtime_checkable

from sordina.accounting.events import Event
from sordina.arguments import checked
from sordina.errors import InvalidInput
from sordina.types import Adjacency

_WHERE = {
    "pld": ("sordina.accounting.pld", "PLD"),
    "rdp": ("sordina.accounting.rdp", "RDP"),
    "gdp": ("sordina.accounting.gdp", "GDP"),
    "zcdp": ("sordina.accounting.zcdp", "ZCDP"),
    "advanced": ("sordina.accounting.composition", "Advanced"),
    "basic": ("sordina.accounting.composition", "Basic"),
}
NAMES = tuple(_WHERE)
"""Every accountant, tightest first."""


@runtime_checkable
class Accountant(Protocol):
    """A stateless judge of events. Both answers are upper bounds; an event without a sound one is refused."""

    @property
    def name(self) -> str:
        """How the accountant is called on the command line and in records."""
        ...

    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """An epsilon such that ``event`` is (epsilon, delta)-DP; ``inf`` if there is none."""
        ...

    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """A delta such that ``event`` is (epsilon, delta)-DP; 1 if there is none."""
        ...


@checked
def accountant(name: str = "pld") -> Accountant:
    """The accountant called ``name``.

    >>> accountant("pld").name
    'pld'
    """
    if name not in _WHERE:
        raise InvalidInput(f"no accountant is called {name!r}. Choose one of {', '.join(NAMES)}.")
    module, kind = _WHERE[name]
    judge: Accountant = getattr(importlib.import_module(module), kind)()
    return judge
