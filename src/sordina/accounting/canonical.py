"""Events in canonical form, what composes for free merged; and what no accountant can judge soundly."""

from __future__ import annotations

import math

import numpy as np

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
    RandomStopping,
    Repeated,
    Shuffled,
    ZeroConcentrated,
)
from sordina.accounting.gaussian import combined_multiplier
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency

# Events in normal form: what happened, as a bag of simple events, with everything that composes for free merged.
#
# * Repetitions and compositions are flattened; what releases nothing is dropped.
# * Gaussians merge into one, ``nu^-2 = sum nu_i^-2``; zero-concentrated events into one, ``rho = sum rho_i``.
# * Under one sample the same holds; pure events under one sample add up; Poisson samples of Poisson samples multiply.

Bag = dict[Event, int]

_NONE = 1e-100
"""Multipliers below count as no noise at all: their losses are beyond what floating point can square."""


def check_queried(epsilon: float) -> None:
    """Refuse to ask for the delta of anything but an epsilon >= 0."""
    if not epsilon >= 0:
        raise InvalidInput(f"delta is defined at an epsilon >= 0, got {epsilon}.")


def normal_form(event: Event, merge: bool = True) -> Bag:
    """Simple events and how often each happened; without ``merge``, Gaussians stay as many as they were.

    >>> normal_form(Composed((Repeated(Gaussian(2.0), 4), PoissonSampled(0.0, Gaussian(1.0)))))
    {Gaussian(noise_multiplier=1.0): 1}
    """
    bag: Bag = {}
    _collect(event, 1, bag)
    if not merge:
        return bag
    gaussians = [(part.noise_multiplier, count) for part, count in bag.items() if isinstance(part, Gaussian)]
    rho = math.fsum(part.rho * count for part, count in bag.items() if isinstance(part, ZeroConcentrated))
    merged: Bag = {}
    if gaussians:
        merged[Gaussian(combined_multiplier(noise / math.sqrt(count) for noise, count in gaussians))] = 1
    if rho:
        merged[ZeroConcentrated(rho)] = 1
    merged |= {part: count for part, count in bag.items() if not isinstance(part, Gaussian | ZeroConcentrated)}
    return merged


def exposed(bag: Bag) -> bool:
    """Whether some part of the bag has no noise at all."""
    return any(_exposed(part) for part in bag)


def _exposed(event: Event) -> bool:
    if isinstance(event, Gaussian | Laplace):
        return event.noise_multiplier < _NONE
    if isinstance(event, PureDP | Shuffled):
        return math.isinf(event.epsilon)
    if isinstance(event, ApproximateDP):
        return math.isinf(event.epsilon) or event.delta == 1
    if isinstance(event, ZeroConcentrated):
        return math.isinf(event.rho)
    if isinstance(event, PoissonSampled | FixedSizeSampled | GroupSampled):
        return _exposed(event.event)
    if isinstance(event, RandomStopping):
        return exposed(normal_form(event.event))
    return False


def _collect(event: Event, count: int, bag: Bag) -> None:
    if count == 0:
        return
    if isinstance(event, Repeated):
        _collect(event.event, count * int(event.count), bag)
    elif isinstance(event, Composed):
        for part in event.events:
            _collect(part, count, bag)
    else:
        for part, times in _simple(event).items():
            bag[part] = bag.get(part, 0) + count * times


def _simple(event: Event) -> Bag:
    """One event that is neither repeated nor composed, simplified."""
    if isinstance(event, PoissonSampled):
        return _poisson(event)
    if isinstance(event, FixedSizeSampled):
        return _fixed(event)
    if isinstance(event, GroupSampled):
        return _group(event)
    if _silent(event):
        return {}
    if not isinstance(
        event, Gaussian | Laplace | PureDP | ApproximateDP | ZeroConcentrated | RandomStopping | Shuffled
    ):
        raise Unsupported(f"no accountant knows the event {type(event).__name__}.")
    return {event: 1}


def _silent(event: Event) -> bool:
    if isinstance(event, Gaussian | Laplace):
        return math.isinf(event.noise_multiplier)
    if isinstance(event, PureDP | Shuffled):
        return event.epsilon == 0
    if isinstance(event, ApproximateDP):
        return event.epsilon == 0 and event.delta == 0
    return isinstance(event, ZeroConcentrated) and event.rho == 0


def _poisson(event: PoissonSampled) -> Bag:
    if event.rate == 1:
        return normal_form(event.event)
    inner = _one(event.event, "PoissonSampled") if event.rate > 0 else None
    if inner is None:
        return {}
    if isinstance(inner, PoissonSampled):
        return {PoissonSampled(event.rate * inner.rate, inner.event): 1}
    return {PoissonSampled(event.rate, inner): 1}


def _fixed(event: FixedSizeSampled) -> Bag:
    if event.batch_size == event.population:
        return normal_form(event.event)
    inner = _one(event.event, "FixedSizeSampled") if event.batch_size > 0 else None
    return {} if inner is None else {FixedSizeSampled(event.batch_size, event.population, inner): 1}


def _group(event: GroupSampled) -> Bag:
    if event.size == 1 or event.rate == 0:
        return _poisson(PoissonSampled(event.rate, event.event))
    inner = _one(event.event, "GroupSampled")
    if inner is None:
        return {}
    if not isinstance(inner, Gaussian):
        raise Unsupported(f"GroupSampled of {type(inner).__name__}: only Gaussian noise is known for groups.")
    if event.rate == 1:
        return {Gaussian(inner.noise_multiplier / event.size): 1}
    return {GroupSampled(event.rate, event.size, inner): 1}


def _one(event: Event, sampling: str) -> Event | None:
    """What happened under one sample, as a single simple event."""
    bag = normal_form(event)
    if not bag:
        return None
    if all(isinstance(part, Laplace | PureDP) for part in bag) and (len(bag) > 1 or max(bag.values()) > 1):
        return PureDP(math.fsum(pure(part) * count for part, count in bag.items()))
    part, count = next(iter(bag.items()))
    samplable = Gaussian | Laplace | PureDP | ApproximateDP
    if len(bag) == 1 and count == 1 and isinstance(part, samplable):
        return part
    if len(bag) == 1 and count == 1 and isinstance(part, PoissonSampled) and sampling == "PoissonSampled":
        return part
    names = ", ".join(sorted({type(part).__name__ for part in bag}))
    raise Unsupported(
        f"{sampling} of {names}: no sound bound is known for sampling this. "
        "Sample one Gaussian, Laplace, PureDP or ApproximateDP event, or Gaussians only."
    )


def pure(event: Event) -> float:
    """The epsilon of a Laplace or pure event."""
    if isinstance(event, Laplace):
        return 1 / event.noise_multiplier if event.noise_multiplier else math.inf
    assert isinstance(event, PureDP)
    return event.epsilon


def amplified(event: PoissonSampled | FixedSizeSampled) -> ApproximateDP:
    """What sampling makes of an (epsilon, delta)-DP event: ``(ln(1 + q (e^eps - 1)), q delta)`` (Balle et al. 2018).

    >>> round(amplified(PoissonSampled(0.01, PureDP(1.0))).epsilon, 5)
    0.01704
    """
    rate = event.rate if isinstance(event, PoissonSampled) else event.batch_size / event.population
    inner = event.event
    if isinstance(inner, ApproximateDP):
        return ApproximateDP(amplified_epsilon(inner.epsilon, rate), rate * inner.delta)
    return ApproximateDP(amplified_epsilon(pure(inner), rate), 0.0)


def amplified_epsilon(epsilon: float, rate: float) -> float:
    """``ln(1 + q (e^eps - 1))`` without overflow."""
    if epsilon > 30:
        return float(np.logaddexp(math.log(rate) + epsilon, math.log1p(-rate))) if rate < 1 else epsilon
    return math.log1p(rate * math.expm1(epsilon))


# Combinations of sampling and adjacency for which no sound bound is known, refused in one place.


def refuse_unsound(event: Event, adjacency: Adjacency) -> None:
    """Refuse a sampled event that has no guarantee under ``adjacency``."""
    if adjacency is Adjacency.ADD_REMOVE:
        refuse_fixed_size(event)
        refuse_shuffled(event)
    elif isinstance(event, PoissonSampled):
        refuse_opaque_poisson(event)


def refuse_fixed_size(event: Event) -> None:
    """Fixed-size samples keep their size, so adding a unit has no meaning for them."""
    if isinstance(event, FixedSizeSampled):
        raise Unsupported(
            "fixed-size sampling has no guarantee under add-remove neighbours: the batch keeps its size, so a unit can "
            "only be replaced. Use adjacency replace-one, or Poisson sampling."
        )


def refuse_shuffled(event: Event) -> None:
    """How many answers are shuffled is public, so a person can only be replaced."""
    if isinstance(event, Shuffled):
        raise Unsupported(
            "shuffled answers have no guarantee under add-remove neighbours: how many people answered is public. Use "
            "adjacency replace-one."
        )


def refuse_opaque_poisson(event: PoissonSampled) -> None:
    """Under replace-one a Poisson sample also compares a unit with its absence; a bare epsilon says nothing of that."""
    if not isinstance(event.event, Gaussian | Laplace):
        raise Unsupported(
            f"Poisson sampling of {type(event.event).__name__} under replace-one neighbours: its guarantee does not "
            "cover an absent unit. Use adjacency add-remove, fixed-size sampling, or Gaussian or Laplace noise."
        )
