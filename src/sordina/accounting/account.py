"""The composer: what has happened so far, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sordina.accounting import events
from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.events import Composed, Event, Repeated
from sordina.arguments import checked
from sordina.errors import InvalidInput
from sordina.types import Adjacency, Guarantee


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
        self._judge = _accountant(self.accountant)
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
