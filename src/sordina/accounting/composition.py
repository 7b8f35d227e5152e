"""The textbook accountants: basic and advanced composition of per-event (epsilon, delta).

Every event is first given its own epsilon at a share of delta, sampled ones by amplification,
``(ln(1 + q (e^eps - 1)), q delta)``; then the epsilons are composed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordina._arguments import checked
from sordina.accounting._numerics import falling_root
from sordina.accounting.canonical import (
    Bag,
    amplified_epsilon,
    check_queried,
    exposed,
    normal_form,
    pure,
    refuse_unsound,
)
from sordina.accounting.events import (
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
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.accounting.rdp import RDP, split_leak
from sordina.accounting.zcdp import ZCDP
from sordina.errors import Unsupported
from sordina.privacy import Adjacency, check_delta

_SHARES = np.concatenate([np.geomspace(1e-4, 0.5, 12), 1 - np.geomspace(1e-4, 0.4, 12)])
"""Candidates for the part of delta that advanced composition spends on composing."""


@dataclass(frozen=True)
class Basic:
    """Epsilons add up, deltas add up: delta is shared equally among the Gaussian events."""

    name: str = "basic"

    @checked
    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """``sum_i eps_i``."""
        return _epsilon(event, delta, adjacency, _basic)

    @checked
    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least delta at which `epsilon` is at most ``epsilon``."""
        return _delta(self, event, epsilon, adjacency)


@dataclass(frozen=True)
class Advanced:
    """``sqrt(2 ln(1/d') sum eps_i^2) + sum eps_i (e^eps_i - 1)`` (Dwork, Rothblum and Vadhan 2010), or basic if less.

    Spends d' of delta on composing and the rest on the events, in the best proportion.
    """

    name: str = "advanced"

    @checked
    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least over all proportions."""
        return _epsilon(event, delta, adjacency, _advanced)

    @checked
    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least delta at which `epsilon` is at most ``epsilon``."""
        return _delta(self, event, epsilon, adjacency)


Spent = list[tuple[float, int]]
"""Epsilons and how often each was spent."""


def _basic(bag: Bag, delta: float, adjacency: Adjacency) -> float:
    return math.fsum(epsilon * count for epsilon, count in _spent(bag, delta, adjacency))


def _advanced(bag: Bag, delta: float, adjacency: Adjacency) -> float:
    best = _basic(bag, delta, adjacency)
    if delta == 0:
        return best
    shares = _SHARES if any(_noisy(event) for event in bag) else [1.0]
    for share in shares:
        if share * delta < sys.float_info.min:
            continue
        spent = _spent(bag, (1 - float(share)) * delta, adjacency)
        squares = math.fsum(count * epsilon**2 for epsilon, count in spent)
        drift = math.fsum(count * epsilon * math.expm1(min(epsilon, 700.0)) for epsilon, count in spent)
        best = min(best, math.sqrt(-2 * math.log(share * delta) * squares) + drift)
    return best


def _epsilon(
    event: Event, delta: float, adjacency: Adjacency, composed: Callable[[Bag, float, Adjacency], float]
) -> float:
    check_delta(delta)
    bag = normal_form(event, merge=False)
    if exposed(bag):
        return math.inf
    leak, rest = split_leak(bag)
    if delta < leak:
        return math.inf
    return composed(rest, (delta - leak) / (1 - leak), adjacency)


def _delta(judge: Basic | Advanced, event: Event, epsilon: float, adjacency: Adjacency) -> float:
    check_queried(epsilon)
    if judge.epsilon(event, 0.0, adjacency) <= epsilon:
        return 0.0
    return falling_root(lambda delta: judge.epsilon(event, delta, adjacency) - epsilon, 1e-300, 1.0, 1e-6)


def _noisy(event: Event) -> bool:
    """Whether an event needs a share of delta to have an epsilon."""
    if isinstance(event, PoissonSampled | FixedSizeSampled):
        return _noisy(event.event)
    return not isinstance(event, PureDP | Laplace)


def _spent(bag: Bag, delta: float, adjacency: Adjacency) -> Spent:
    noisy = sum(count for event, count in bag.items() if _noisy(event))
    return [(_alone(event, delta / max(noisy, 1), adjacency), count) for event, count in bag.items()]


def _alone(event: Event, delta: float, adjacency: Adjacency) -> float:
    """The epsilon of one event at its share of delta."""
    if isinstance(event, PureDP | Laplace):
        return pure(event)
    if isinstance(event, Gaussian):
        return gaussian_epsilon(event.noise_multiplier, delta)
    if isinstance(event, ZeroConcentrated):
        return ZCDP().epsilon(event, delta, adjacency)
    if isinstance(event, RandomStopping):
        return RDP().epsilon(event, delta, adjacency)
    if isinstance(event, Shuffled):
        from sordina.accounting.pld import PLD

        return PLD().epsilon(event, delta, adjacency)
    if isinstance(event, PoissonSampled | FixedSizeSampled):
        refuse_unsound(event, adjacency)
        rate = event.rate if isinstance(event, PoissonSampled) else event.batch_size / event.population
        return amplified_epsilon(_alone(event.event, min(delta / rate, 1.0), adjacency), rate)
    raise Unsupported(f"basic and advanced composition do not know {type(event).__name__}.")
