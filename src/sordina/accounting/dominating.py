"""Which pair dominates which event, under which adjacency: the table at the top of `pairs`, as code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sordina.accounting.binomial import BinomialLoss
from sordina.accounting.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomStopping,
    Shuffled,
    ZeroConcentrated,
)
from sordina.accounting.losses import GaussianLoss, LaplaceLoss, Loss, ResponseLoss
from sordina.accounting.normal import Bag
from sordina.accounting.pairs import Added, Pair, Plain, Removed, TwoSided
from sordina.accounting.refusals import refuse_fixed_size, refuse_opaque_poisson, refuse_shuffled
from sordina.accounting.shuffled import shuffle_loss
from sordina.errors import Unsupported
from sordina.types import Adjacency


@dataclass(frozen=True)
class Term:
    """``count`` times a pair; ``mirrored`` if only its losses >= 0 count and those below are their mirror image."""

    pair: Pair
    count: int
    mirrored: bool = False


Direction = tuple[Term, ...]


def dominating(bag: Bag, adjacency: Adjacency) -> tuple[Direction, ...]:
    """What to judge: two directions under add-remove (unit in P, unit in Q) if sampling tells them apart, else one."""
    vague: Bag = {event: count for event, count in bag.items() if isinstance(event, ZeroConcentrated | RandomStopping)}
    clear = {event: count for event, count in bag.items() if event not in vague}
    corners = (_cornered(vague, adjacency),) if vague else ()
    if adjacency is Adjacency.REPLACE_ONE:
        return (tuple(_replaced(event, count) for event, count in clear.items()) + corners,)
    removed = tuple(_present(event, count, Removed) for event, count in clear.items()) + corners
    added = tuple(_present(event, count, Added) for event, count in clear.items()) + corners
    return (removed,) if removed == added else (removed, added)


def _cornered(bag: Bag, adjacency: Adjacency) -> Term:
    """All that has only a Renyi guarantee, together."""
    from sordina.accounting.profile import corner_loss
    from sordina.accounting.rdp import ORDERS, curve

    return Term(Plain(corner_loss(ORDERS, curve(bag, adjacency, ORDERS))), 1, mirrored=True)


def loss_of(event: Event) -> Loss:
    """The loss of an event that is not sampled."""
    if isinstance(event, Gaussian):
        return GaussianLoss(event.noise_multiplier)
    if isinstance(event, Laplace):
        return LaplaceLoss(event.noise_multiplier)
    if isinstance(event, PureDP):
        return ResponseLoss(event.epsilon)
    if isinstance(event, ApproximateDP):
        return ResponseLoss(event.epsilon, event.delta)
    raise Unsupported(f"the pld accountant does not know {type(event).__name__}.")


def _present(event: Event, count: int, sampled: Callable[[Loss, float], Pair]) -> Term:
    if isinstance(event, PoissonSampled):
        return Term(sampled(loss_of(event.event), event.rate), count)
    if isinstance(event, GroupSampled) and isinstance(event.event, Gaussian):
        noise = event.event.noise_multiplier
        return Term(Plain(BinomialLoss(noise, event.rate, event.size, swapped=sampled is Added)), count)
    refuse_fixed_size(event)
    refuse_shuffled(event)
    return Term(Plain(loss_of(event)), count)


def _replaced(event: Event, count: int) -> Term:
    if isinstance(event, Shuffled):
        return Term(Plain(shuffle_loss(event)), count, mirrored=True)
    if isinstance(event, FixedSizeSampled):
        return Term(Removed(loss_of(event.event), event.batch / event.population), count, mirrored=True)
    if isinstance(event, PoissonSampled):
        if isinstance(event.event, Gaussian):
            return Term(TwoSided(event.event.noise_multiplier, event.rate), count)
        refuse_opaque_poisson(event)
        return Term(Removed(loss_of(event.event), event.rate), count, mirrored=True)
    return Term(Plain(loss_of(event)), count)


def largest_loss(direction: Direction) -> float:
    """The sum of the largest finite losses: with this epsilon, delta is what leaks."""
    return math.fsum(term.count * term.pair.span(0.0)[1] for term in direction)


def leak(direction: Direction) -> float:
    """The probability that some loss is infinite."""
    kept = math.fsum(term.count * math.log1p(-min(term.pair.leak, 1 - 1e-15)) for term in direction)
    return max(0.0, -math.expm1(kept))
