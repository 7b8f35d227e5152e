"""What happened, as frozen data. Accountants judge events; events never judge themselves.

Every number is relative to a sensitivity *under the adjacency the accountant is asked about*: ``Gaussian(2.0)`` says
that the noise had twice the standard deviation of the largest possible L2 change between neighbours. An event that
an accountant does not know is refused, never skipped.

======================  ===========================================================================================
event                   contract
======================  ===========================================================================================
`Gaussian`              ``N(f(D), (noise_multiplier * S2)^2 I)``; multiplier 0 means no privacy, inf means no output
`Laplace`               ``Lap(f(D), noise_multiplier * S1)``, pure ``1 / noise_multiplier``-DP
`PureDP`                any ``epsilon``-DP mechanism (exponential, randomised response, sparse vector)
`ApproximateDP`         any ``(epsilon, delta)``-DP mechanism
`ZeroConcentrated`      any ``rho``-zCDP mechanism (discrete Gaussian)
`PoissonSampled`        ``event`` on a sample that holds each unit independently with probability ``rate``
`GroupSampled`          ``event`` on such a sample, judged for ``size`` units that come and go together
`FixedSizeSampled`      ``event`` on ``batch`` of ``population`` units, uniform without replacement
`Repeated`              ``event``, ``count`` times, adaptively
`Composed`              all of ``events``, adaptively
`Shuffled`              ``epsilon``-DP answers of ``people`` people, shuffled; ``categories``: by K-ary response
`RandomStopping`        ``event`` run K times, only the best result released; K drawn from a law given by ``eta``
======================  ===========================================================================================

A Poisson sample under replace-one also compares a unit with its absence. There, and only there, the sensitivity must be
the diameter of a ball (in L2, or L1 for Laplace) around the contribution of an absent unit, which is 0: twice the
clipping threshold, even if the clipped vectors lie in a smaller set.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, TypeAlias

from sordina._renamed import renamed
from sordina.errors import InvalidInput

_HUGE = 2**1000
"""No number of an event is larger, infinity apart."""


def _refuse_unless(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidInput(message)


def _numbers(event: object, *names: str) -> None:
    """Refuse fields that are no real numbers; a truth value or a text is none."""
    for name in names:
        value = getattr(event, name)
        number = value if type(value) is float else _as_float(value)
        if number is None or number != number:
            raise InvalidInput(f"{name} of {type(event).__name__} must be a number, got a {type(value).__name__}.")


def _as_float(value: object) -> float | None:
    """A real number as a Python float: one of numpy's own kinds would warn when it meets a large one."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number < _HUGE or number == math.inf else None


def _event(event: object, *inner: object) -> None:
    """Refuse what is no event inside another one."""
    for part in inner:
        if type(part).__name__ not in _KINDS:
            raise InvalidInput(f"{type(event).__name__} is about a privacy event, got a {type(part).__name__}.")


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise of ``noise_multiplier`` times the L2 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _numbers(self, "noise_multiplier")
        if not self.noise_multiplier >= 0:
            raise InvalidInput(f"noise multiplier must be >= 0, got {self.noise_multiplier}.")


@dataclass(frozen=True)
class Laplace:
    """Laplace noise of scale ``noise_multiplier`` times the L1 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _numbers(self, "noise_multiplier")
        if not self.noise_multiplier >= 0:
            raise InvalidInput(f"noise multiplier must be >= 0, got {self.noise_multiplier}.")


@dataclass(frozen=True)
class PureDP:
    """Any mechanism that is ``epsilon``-DP."""

    epsilon: float

    def __post_init__(self) -> None:
        _numbers(self, "epsilon")
        _refuse_unless(self.epsilon >= 0, f"epsilon must be >= 0, got {self.epsilon}.")


@dataclass(frozen=True)
class ApproximateDP:
    """Any mechanism that is ``(epsilon, delta)``-DP."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _numbers(self, "epsilon", "delta")
        _refuse_unless(self.epsilon >= 0, f"epsilon must be >= 0, got {self.epsilon}.")
        _refuse_unless(0 <= self.delta <= 1, f"delta must lie in [0, 1], got {self.delta}.")


@dataclass(frozen=True)
class ZeroConcentrated:
    """Any mechanism that is ``rho``-zCDP: Renyi divergence of order a at most ``rho * a`` for all a > 1."""

    rho: float

    def __post_init__(self) -> None:
        _numbers(self, "rho")
        _refuse_unless(self.rho >= 0, f"rho must be >= 0, got {self.rho}.")


@dataclass(frozen=True)
class PoissonSampled:
    """``event`` on a Poisson sample: each unit takes part independently with probability ``rate``."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        _numbers(self, "rate")
        _event(self, self.event)
        _refuse_unless(0 <= self.rate <= 1, f"sample rate must lie in [0, 1], got {self.rate}.")


@dataclass(frozen=True)
class GroupSampled:
    """``event`` on a Poisson sample, for ``size`` units at once: each takes part independently, all come and go.

    Args:
        rate: The probability with which a unit takes part.
    """

    rate: float
    size: int
    event: Event

    def __post_init__(self) -> None:
        _numbers(self, "rate", "size")
        _event(self, self.event)
        _refuse_unless(0 <= self.rate <= 1, f"sample rate must lie in [0, 1], got {self.rate}.")
        _refuse_unless(
            1 <= self.size < math.inf and int(self.size) == self.size, f"a group has members, got size {self.size}."
        )


@renamed(batch="batch_size")
@dataclass(frozen=True)
class FixedSizeSampled:
    """``event`` on ``batch_size`` units drawn uniformly without replacement from ``population``."""

    batch_size: int
    population: int
    event: Event

    def __post_init__(self) -> None:
        _numbers(self, "batch_size", "population")
        _event(self, self.event)
        _refuse_unless(
            0 <= self.batch_size <= self.population and self.population > 0,
            f"batch_size must lie in [0, population], got {self.batch_size} of {self.population}.",
        )


@dataclass(frozen=True)
class Repeated:
    """``event``, ``count`` times."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _numbers(self, "count")
        _event(self, self.event)
        _refuse_unless(
            self.count >= 0 and not math.isinf(self.count) and int(self.count) == self.count,
            f"count must be a whole number >= 0, got {self.count}.",
        )


@dataclass(frozen=True)
class Composed:
    """All of ``events``; the empty composition releases nothing."""

    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        _refuse_unless(isinstance(self.events, tuple), "Composed is about a tuple of privacy events.")
        _event(self, *self.events)


@dataclass(frozen=True)
class RandomStopping:
    """``event`` run a random number of times, only the best outcome released (Papernot and Steinke 2022).

    The number of runs is drawn from a truncated negative binomial with parameters ``eta`` (0: logarithmic,
    1: geometric) and ``gamma``, or, with ``eta = inf``, from a Poisson distribution of mean ``mean``.
    """

    event: Event
    eta: float
    gamma: float
    mean: float

    def __post_init__(self) -> None:
        _numbers(self, "eta", "gamma", "mean")
        _event(self, self.event)
        _refuse_unless(self.eta > -1, f"eta must be above -1, got {self.eta}.")
        _refuse_unless(0 < self.gamma <= 1, f"gamma must lie in (0, 1], got {self.gamma}.")
        _refuse_unless(1 <= self.mean < math.inf, f"the mean number of runs must be at least 1, got {self.mean}.")


@dataclass(frozen=True)
class Shuffled:
    """One ``epsilon``-DP answer of each of ``people`` people, in an order that says nothing (replace-one neighbours).

    ``categories`` is K if every answer is a randomised response over K categories, 0 if it is any other. How many
    people there are is public, and all of them answer through a shuffler that is trusted to shuffle.
    """

    epsilon: float
    people: int
    categories: int = 0

    def __post_init__(self) -> None:
        _numbers(self, "epsilon", "people", "categories")
        _refuse_unless(self.epsilon >= 0, f"epsilon must be >= 0, got {self.epsilon}.")
        _refuse_unless(
            1 <= self.people < 2**53 and int(self.people) == self.people,
            f"people must be a whole number of at least 1, got {self.people}.",
        )
        _refuse_unless(
            self.categories == 0 or (2 <= self.categories < 2**53 and int(self.categories) == self.categories),
            f"categories must be 2 or more, or 0 for any randomiser, got {self.categories}.",
        )


Event: TypeAlias = (
    Gaussian
    | Laplace
    | PureDP
    | ApproximateDP
    | ZeroConcentrated
    | PoissonSampled
    | GroupSampled
    | FixedSizeSampled
    | Repeated
    | Composed
    | RandomStopping
    | Shuffled
)

NOTHING = Composed()
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Gaussian, Laplace, PureDP, ApproximateDP, ZeroConcentrated,
        PoissonSampled, GroupSampled, FixedSizeSampled, Repeated, Composed, RandomStopping, Shuffled,
    )
}  # fmt: skip

_FIELDS = {name: tuple(field.name for field in fields(kind)) for name, kind in _KINDS.items()}
_STORED = {"batch_size": "batch"}
"""Fields whose key in ledgers and run folders is an older word: what is stored does not change with names."""


def to_dict(event: Event) -> dict[str, Any]:
    """A JSON-ready picture of an event; `from_dict` reads it back unchanged.

    >>> from_dict(to_dict(PoissonSampled(0.01, Gaussian(1.0)))) == PoissonSampled(0.01, Gaussian(1.0))
    True
    """
    data: dict[str, Any] = {"kind": type(event).__name__}
    for field in fields(event):
        value, key = getattr(event, field.name), _STORED.get(field.name, field.name)
        if isinstance(value, tuple):
            data[key] = [to_dict(part) for part in value]
        else:
            data[key] = to_dict(value) if type(value).__name__ in _KINDS else value
    return data


def from_dict(data: dict[str, Any]) -> Event:
    """The event that `to_dict` pictured; refuses anything else.

    Args:
        data: What `to_dict` gave.
    """
    try:
        kind = _KINDS[data["kind"]]
        arguments: dict[str, Any] = {}
        for name in _FIELDS[data["kind"]]:
            value = data[_STORED.get(name, name)]
            if isinstance(value, list):
                value = tuple(from_dict(part) for part in value)
            elif isinstance(value, dict):
                value = from_dict(value)
            arguments[name] = value
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InvalidInput(f"not a privacy event: {json.dumps(data, default=str)[:120]}.") from error
    event: Event = kind(**arguments)
    return event
