"""Renyi accounting (the moments accountant): divergences add up, and the best order converts to (epsilon, delta)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sordina.accounting import renyi
from sordina.accounting.events import (
    ApproximateDP,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomStopping,
    Shuffled,
    ZeroConcentrated,
)
from sordina.accounting.normal import Bag, amplified, check_queried, exposed, normal_form
from sordina.accounting.refusals import refuse_unsound
from sordina.accounting.special import Array
from sordina.accounting.stopping import stopped_renyi
from sordina.arguments import checked
from sordina.errors import Unsupported
from sordina.types import Adjacency, check_delta

ORDERS = np.array([1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64)) + [128.0, 256.0, 512.0, 1024.0])
"""The orders of dp-accounting, so that the two agree."""


@dataclass(frozen=True)
class RDP:
    """Renyi differential privacy.

    >>> from sordina.accounting.events import Repeated
    >>> round(RDP().epsilon(Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1000), 1e-5), 3)
    2.101
    """

    name: str = "rdp"

    @checked
    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least epsilon over all orders."""
        check_delta(delta)
        bag = normal_form(event)
        if exposed(bag):
            return math.inf
        leak, rest = split_leak(bag)
        if not rest:
            return 0.0 if leak <= delta else math.inf
        if delta <= leak:
            return pure_epsilon(rest) if delta == leak else math.inf
        return epsilon_from(ORDERS, curve(rest, adjacency, ORDERS), (delta - leak) / (1 - leak))

    @checked
    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least delta over all orders."""
        check_queried(epsilon)
        bag = normal_form(event)
        if exposed(bag):
            return 1.0
        leak, rest = split_leak(bag)
        if not rest:
            return leak
        return min(1.0, leak + (1 - leak) * delta_from(ORDERS, curve(rest, adjacency, ORDERS), epsilon))


def split_leak(bag: Bag) -> tuple[float, Bag]:
    """The probability that an (epsilon, delta)-DP part leaks all, and the bag with those parts made pure.

    The worst such part leaks with probability delta and is epsilon-DP otherwise (Kairouz et al. 2015), so the deltas
    compose as ``1 - prod (1 - delta_i)``.
    """
    kept = 0.0
    rest: Bag = {}
    for event, count in bag.items():
        if isinstance(event, ApproximateDP):
            kept += count * math.log1p(-event.delta)
            event = PureDP(event.epsilon)
        elif isinstance(event, PoissonSampled | FixedSizeSampled) and isinstance(event.event, ApproximateDP):
            kept += count * math.log1p(-amplified(event).delta)
            event = PureDP(amplified(event).epsilon)
        rest[event] = rest.get(event, 0) + count
    return -math.expm1(kept), {event: count for event, count in rest.items() if event != PureDP(0.0)}


def curve(bag: Bag, adjacency: Adjacency, orders: Array) -> Array:
    """The Renyi divergences of everything in the bag, at ``orders``."""
    key = tuple(orders)
    total = np.zeros(orders.size)
    for event, count in bag.items():
        total = total + count * np.asarray(_once(event, adjacency, key))
    return total


@lru_cache(maxsize=256)
def _once(event: Event, adjacency: Adjacency, key: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(_renyi(event, adjacency, np.array(key)))


def _renyi(event: Event, adjacency: Adjacency, orders: Array) -> Array:
    if isinstance(event, Gaussian):
        return renyi.gaussian(event.noise_multiplier, orders)
    if isinstance(event, Laplace):
        return renyi.laplace(event.noise_multiplier, orders)
    if isinstance(event, PureDP):
        return renyi.response(event.epsilon, orders)
    if isinstance(event, ZeroConcentrated):
        return event.rho * orders
    if isinstance(event, PoissonSampled | FixedSizeSampled):
        return _sampled(event, adjacency, orders)
    if isinstance(event, RandomStopping):
        return _stopped(event, adjacency, orders)
    if isinstance(event, Shuffled):
        from sordina.accounting.shuffled import shuffle_renyi  # which bounds by corners, as `profile` does

        refuse_unsound(event, adjacency)
        return shuffle_renyi(event, orders)
    raise Unsupported(f"the rdp accountant does not know {type(event).__name__}.")


def _sampled(event: PoissonSampled | FixedSizeSampled, adjacency: Adjacency, orders: Array) -> Array:
    refuse_unsound(event, adjacency)
    if not isinstance(event.event, Gaussian):
        return renyi.response(amplified(event).epsilon, orders)
    noise = event.event.noise_multiplier
    if isinstance(event, FixedSizeSampled):
        return renyi.replaced_gaussian(event.batch / event.population, noise, orders)
    if adjacency is Adjacency.REPLACE_ONE:
        return renyi.replaced_gaussian(event.rate, noise, orders)
    return renyi.poisson_gaussian(event.rate, noise, orders)


def _stopped(event: RandomStopping, adjacency: Adjacency, orders: Array) -> Array:
    leak, rest = split_leak(normal_form(event.event))
    if leak:
        raise Unsupported("random stopping over an (epsilon, delta)-DP event: the theorem needs a Renyi guarantee.")
    from sordina.accounting.pld import deltas_at  # pld judges what has only a Renyi guarantee by this module

    def deltas_once(epsilons: list[float]) -> list[float]:
        return deltas_at(event.event, epsilons, adjacency)

    return stopped_renyi(event, orders, curve(rest, adjacency, orders), deltas_once)


def pure_epsilon(bag: Bag) -> float:
    """The epsilon at delta = 0: the sum over pure parts, inf if any other part is there."""
    total = 0.0
    for event, count in bag.items():
        if isinstance(event, PoissonSampled | FixedSizeSampled) and not isinstance(event.event, Gaussian):
            total += count * amplified(event).epsilon
        elif isinstance(event, PureDP | Laplace | Shuffled):
            total += count * (1 / event.noise_multiplier if isinstance(event, Laplace) else event.epsilon)
        else:
            return math.inf
    return total


def epsilon_from(orders: Array, divergences: Array, delta: float) -> float:
    """The least epsilon, ``D_a + ln(1 - 1/a) - ln(a delta)/(a - 1)`` (Canonne, Kamath and Steinke 2020, Prop. 12).

    0 if total variation alone is at most delta: ``TV <= sqrt(1 - e^-KL)`` (Bretagnolle and Huber) and KL <= D_a.
    """
    if float(-np.expm1(-divergences.min())) <= delta**2:
        return 0.0
    if delta == 0:
        return math.inf
    candidates = divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(candidates.min()))


def delta_from(orders: Array, divergences: Array, epsilon: float) -> float:
    """The least delta, by the same two bounds."""
    variation = math.sqrt(-math.expm1(-float(divergences.min())))
    if math.isinf(epsilon):
        return 0.0
    epsilon = min(epsilon, 1e300)
    logs = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(1.0, variation, math.exp(min(float(logs.min()), 0.0)))
