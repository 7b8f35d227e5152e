"""Who judges: accountants, the account they judge, what groups of units cost, and all accountants side by side.

Groups: what an event costs for several units at once.

========================  =========================================================================================
event                     for a group of s
========================  =========================================================================================
Gaussian, Laplace         the sensitivity is s times as large, so the multiplier is divided by s
PureDP                    ``s eps``
ApproximateDP             ``(s eps, s e^((s-1) eps) delta)``, 000 chapter 1
ZeroConcentrated          ``s^2 rho`` (Bun and Steinke 2016, Proposition 27)
PoissonSampled Gaussian   `GroupSampled`: a binomial number of the group's units takes part
anything else             none; `group_epsilon` then goes through the (epsilon, delta) of one unit
========================  =========================================================================================
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sordina._arguments import checked
from sordina.accounting import events
from sordina.accounting._numerics import falling_root
from sordina.accounting.canonical import normal_form
from sordina.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    Repeated,
    ZeroConcentrated,
)
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Guarantee, check_delta

# Who judges: the accountant's protocol and the list of accountants by name.

_WHERE = {
    "pld": ("sordina.accounting.pld", "PLD"),
    "rdp": ("sordina.accounting.rdp", "RDP"),
    "gdp": ("sordina.accounting.composition", "GDP"),
    "zcdp": ("sordina.accounting.composition", "ZCDP"),
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
    return _judge(name)


def _judge(name: str) -> Accountant:
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


# Groups: what an event costs for several units at once.


@checked
def group(event: Event, size: int) -> Event:
    """``event`` as a group of ``size`` units meets it.

    >>> group(Gaussian(3.0), 3)
    Gaussian(noise_multiplier=1.0)
    """
    if size < 1 or size != int(size):
        raise InvalidInput(f"a group has at least one member, got {size}.")
    if size == 1:
        return event
    if isinstance(event, Composed):
        return Composed(tuple(group(part, size) for part in event.events))
    if isinstance(event, Repeated):
        return Repeated(group(event.event, size), event.count)
    return _grouped(event, int(size))


def _grouped(event: Event, size: int) -> Event:
    if isinstance(event, Gaussian | Laplace):
        return type(event)(event.noise_multiplier / size)
    if isinstance(event, PureDP):
        return PureDP(size * event.epsilon)
    if isinstance(event, ApproximateDP):
        claim = Guarantee(event.epsilon, event.delta).group(size)
        return ApproximateDP(claim.epsilon, claim.delta)
    if isinstance(event, ZeroConcentrated):
        return ZeroConcentrated(size**2 * event.rho)
    if isinstance(event, PoissonSampled) and isinstance(event.event, Gaussian):
        return GroupSampled(event.rate, size, event.event)
    raise Unsupported(f"no event describes {type(event).__name__} for a group. Use group_epsilon.")


@checked
def group_epsilon(
    event: Event,
    delta: float,
    size: int,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> float:
    """The epsilon of ``event`` at ``delta`` for a group of ``size``: the group's own event where there is one.

    Else the least ``s eps`` with ``s e^((s-1) eps) delta_1 <= delta``, (eps, delta_1) being the guarantee of one unit.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.

    >>> group_epsilon(PureDP(0.5), 0.0, 3)
    1.5
    """
    check_delta(delta)
    judge = _judge(accountant)
    try:
        return judge.epsilon(group(event, size), delta, adjacency)
    except Unsupported:
        if delta == 0:
            return size * judge.epsilon(event, 0.0, adjacency)

    def excess(fraction: float) -> float:
        """How far above delta the group is when one unit gets ``delta / fraction``, in logarithms."""
        epsilon = judge.epsilon(event, delta / fraction, adjacency)
        return math.log(size / fraction) + (size - 1) * epsilon

    fraction = falling_root(excess, size, 1e200, 1e-3)
    return size * judge.epsilon(event, delta / fraction, adjacency) if excess(fraction) <= 0 else math.inf


# The same event before every accountant, as rows and as a picture.


@dataclass(frozen=True)
class Verdict:
    """What one accountant says: an epsilon, or why there is none."""

    accountant: str
    epsilon: float | None
    note: str


def compare(event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> list[Verdict]:
    """Every accountant's epsilon at ``delta``, tightest first.

    >>> from sordina.accounting.events import Gaussian
    >>> compare(Gaussian(1.0), 1e-5)[0]
    Verdict(accountant='pld', epsilon=4.37717..., note='the default: tightest')
    """
    verdicts = [_verdict(name, event, delta, adjacency) for name in NAMES]
    return sorted(verdicts, key=lambda verdict: float("inf") if verdict.epsilon is None else verdict.epsilon)


def _verdict(name: str, event: Event, delta: float, adjacency: Adjacency) -> Verdict:
    try:
        epsilon = accountant(name).epsilon(event, delta, adjacency)
    except Unsupported as error:
        return Verdict(name, None, str(error))
    return Verdict(name, epsilon, _note(name, event))


def _note(name: str, event: Event) -> str:
    sampled = any(isinstance(part, PoissonSampled | FixedSizeSampled) for part in normal_form(event))
    if name == "gdp" and sampled:
        return "central limit, raised to pld where too small"
    if name == "zcdp" and sampled:
        return "does not profit from sampling"
    return {
        "pld": "the default: tightest",
        "rdp": "best of 156 Renyi orders",
        "gdp": "exact",
        "zcdp": "one rho for all orders",
        "advanced": "delta split optimised, never above basic",
        "basic": "epsilons add up",
    }[name]


def plot(
    make_event: Callable[[int], Event],
    steps: int,
    delta: float,
    path: Path,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> None:
    """Epsilon against the number of steps, for every accountant that has an answer, saved as ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = np.unique(np.geomspace(1, max(steps, 2), 12).astype(int))
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name in NAMES:
        try:
            judge = accountant(name)
            epsilons = [judge.epsilon(make_event(int(count)), delta, adjacency) for count in counts]
        except Unsupported:
            continue
        axes.loglog(counts, epsilons, marker="o", markersize=3, label=name)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot write the plot to {path}: {error}.") from error
    finally:
        pyplot.close(figure)
