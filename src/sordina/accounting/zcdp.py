"""Zero-concentrated accounting: one number, rho, adds up (Bun and Steinke 2016).

A Gaussian is ``1/(2 s^2)``-zCDP and an epsilon-DP mechanism ``eps^2/2``-zCDP. The definition speaks of all orders, and
at high orders sampling does not help: a sampled Gaussian costs as much as the Gaussian itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordina._arguments import checked
from sordina.accounting._numerics import Array
from sordina.accounting.canonical import Bag, amplified, check_queried, exposed, normal_form, refuse_unsound
from sordina.accounting.events import (
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Shuffled,
    ZeroConcentrated,
)
from sordina.accounting.rdp import delta_from, epsilon_from, pure_epsilon, split_leak
from sordina.errors import Unsupported
from sordina.privacy import Adjacency, check_delta


@dataclass(frozen=True)
class ZCDP:
    """Zero-concentrated differential privacy.

    >>> round(ZCDP().epsilon(Gaussian(1.0), 1e-5), 3)
    4.728
    """

    name: str = "zcdp"

    @checked
    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least epsilon over all orders."""
        check_delta(delta)
        bag = normal_form(event)
        if exposed(bag):
            return math.inf
        leak, rest = split_leak(bag)
        spent = rho(rest, adjacency)
        if delta < leak:
            return math.inf
        if not spent:
            return 0.0
        if delta == leak:
            return pure_epsilon(rest)
        orders = _orders(spent, -math.log(delta - leak))
        return epsilon_from(orders, spent * orders, (delta - leak) / (1 - leak))

    @checked
    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """The least delta over all orders."""
        check_queried(epsilon)
        bag = normal_form(event)
        if exposed(bag):
            return 1.0
        leak, rest = split_leak(bag)
        spent = rho(rest, adjacency)
        if not spent:
            return leak
        epsilon = min(epsilon, 1e100)
        orders = 1 + np.geomspace(1e-3, 1e3, 4001) * max(1.0, epsilon / spent)
        return min(1.0, leak + (1 - leak) * delta_from(orders, spent * orders, epsilon))


def rho(bag: Bag, adjacency: Adjacency) -> float:
    """The sum of all parts."""
    return math.fsum(count * _rho(event, adjacency) for event, count in bag.items())


def _rho(event: Event, adjacency: Adjacency) -> float:
    if isinstance(event, Gaussian):
        return 0.5 / event.noise_multiplier**2
    if isinstance(event, Laplace):
        return 0.5 / event.noise_multiplier**2
    if isinstance(event, PureDP):
        return event.epsilon**2 / 2
    if isinstance(event, ZeroConcentrated):
        return event.rho
    if isinstance(event, Shuffled):  # at high orders shuffling does not help either
        refuse_unsound(event, adjacency)
        return event.epsilon**2 / 2
    if isinstance(event, PoissonSampled | FixedSizeSampled):
        refuse_unsound(event, adjacency)
        if isinstance(event.event, Gaussian):
            return _rho(event.event, adjacency)
        return amplified(event).epsilon ** 2 / 2
    raise Unsupported(f"the zcdp accountant does not know {type(event).__name__}. Use pld or rdp.")


def _orders(spent: float, log: float) -> Array:
    """Orders around ``1 + sqrt(ln(1/delta) / rho)``, where the simplest conversion is tightest."""
    return 1 + math.sqrt(log / spent) * np.geomspace(1e-3, 10, 4001)
