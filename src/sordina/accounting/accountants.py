"""Who judges: the accountant's protocol, the list of accountants by name, and the account they judge."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sordina._arguments import checked
from sordina.accounting import events
from sordina.accounting.events import Composed, Event, Repeated
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, Guarantee

# Who judges: the accountant's protocol and the list of accountants by name.

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


# The composer: what has happened so far, and what it costs.


@checked
@dataclass
class Account:
    """Collects events under one adjacency and asks one accountant about all of them together.

    >>> account = Account()
    >>> account.record(events.PoissonSampled(0.01, events.Gaussian(1.0)), count=1000)
    >>> 1.0 < account.epsilon(1e-5) < 2.2
    True
    >>> Account.from_dict(account.to_dict()) == account
    True
    """

    accountant: str = "pld"
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    _counts: dict[Event, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._judge = accountant(self.accountant)
        self.adjacency = Adjacency(self.adjacency)

    def record(self, event: Event, count: int = 1) -> None:
        """Add ``count`` occurrences of ``event``."""
        checked = Repeated(event, count)
        self._counts[event] = self._counts.get(event, 0) + int(checked.count)

    @property
    def event(self) -> Event:
        """Everything recorded so far, as one event."""
        return Composed(tuple(Repeated(event, count) for event, count in self._counts.items()))

    def epsilon(self, delta: float) -> float:
        """The epsilon spent so far at ``delta``."""
        return self._judge.epsilon(self.event, delta, self.adjacency)

    def delta(self, epsilon: float) -> float:
        """The delta spent so far at ``epsilon``."""
        return self._judge.delta(self.event, epsilon, self.adjacency)

    def guarantee(self, delta: float) -> Guarantee:
        """What was spent so far, as a claim."""
        return Guarantee(self.epsilon(delta), delta, self.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture of the account."""
        return {
            "accountant": self.accountant,
            "adjacency": str(self.adjacency),
            "event": events.to_dict(self.event),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Account:
        """The account that `to_dict` pictured."""
        try:
            account = cls(data["accountant"], Adjacency(data["adjacency"]))
            whole = events.from_dict(data["event"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"not a saved account: {error}.") from error
        for part in whole.events if isinstance(whole, Composed) else (whole,):
            if isinstance(part, Repeated):
                account.record(part.event, part.count)
            else:
                account.record(part)
        return account
