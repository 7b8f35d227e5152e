"""What a hypothesis about a mechanism allows a test: trade-off curves of (epsilon, delta), Gaussian noise, events.

A test of "in" against "out" has a power (how often it finds a member) and a size (how often it accuses a non-member).
A mechanism limits the two against each other (Dong, Roth and Su 2022): a test of power ``b`` has a size of at least
``least_size(b)``, whichever of the two data sets is called "in". The function is convex, does not fall, and is all that
the bounds of `sordina.auditing.one_run` know of a mechanism.

====================  =====================================================  =======================================
hypothesis            least size of power b                                  level that is searched
====================  =====================================================  =======================================
(epsilon, delta)-DP   ``max(e^-eps (b - delta), 1 - delta - e^eps (1 - b))``  epsilon, delta as claimed
mu-Gaussian DP        ``Phi(Phi^-1(b) - mu)``                                mu
events of the noise   the largest of the first line over many               the noise multiplier: the curve comes from
multiplier s          ``(eps, delta_s(eps))``                                 the accountant, which rounds delta up
====================  =====================================================  =======================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from sordina.accounting.accountants import accountant
from sordina.accounting.events import Event
from sordina.accounting.gaussian import gaussian_epsilon
from sordina.accounting.pld import PLD
from sordina.auditing.scores import FloatArray
from sordina.privacy import Adjacency

MULTIPLIERS = tuple(float(value) for value in 0.05 * 1.02 ** np.arange(0, 350))
"""Where a family of events is tried: 0.05 to about 50 in steps of 2 %, rounded to the side that lowers the bound."""
_EPSILONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_LARGEST = 60.0
"""No epsilon above this is searched: e^60 is out of any audit's reach."""


class TradeOff(Protocol):
    """What one hypothesis allows."""

    def least_size(self, power: float) -> float:
        """The least size of a test of this power; infinite above 1, which no test has."""
        ...


Refutes = Callable[[TradeOff], bool]
"""Whether the evidence refutes a hypothesis, at the risk that was given to it."""


class HypothesisFamily(Protocol):
    """Hypotheses in order, from no leakage to much."""

    def epsilon_refuted(self, refutes: Refutes, delta: float) -> float:
        """The largest epsilon at ``delta`` whose hypothesis is refuted; 0 if none is."""
        ...


@dataclass(frozen=True)
class ApproximateTradeOff:
    """(epsilon, delta)-DP."""

    epsilon: float
    delta: float

    def least_size(self, power: float) -> float:
        """The larger of the two lines, one for each data set in the role of "in".

        >>> ApproximateTradeOff(0.0, 0.0).least_size(0.25)
        0.25
        """
        if power > 1:
            return math.inf
        odds = math.exp(self.epsilon)
        return max(0.0, (power - self.delta) / odds, 1 - self.delta - odds * (1 - power))


@dataclass(frozen=True)
class GaussianTradeOff:
    """mu-Gaussian DP: Gaussian noise of multiplier 1/mu."""

    mu: float

    def least_size(self, power: float) -> float:
        """``Phi(Phi^-1(power) - mu)``."""
        return math.inf if power > 1 else float(ndtr(ndtri(power) - self.mu))


@dataclass(frozen=True)
class AccountedTradeOff:
    """A privacy curve known at some points: ``(epsilons[i], deltas[i])``-DP for every i at once."""

    odds: FloatArray
    deltas: FloatArray

    def least_size(self, power: float) -> float:
        """The largest of what the points say."""
        if power > 1:
            return math.inf
        first = (power - self.deltas) / self.odds
        second = 1 - self.deltas - self.odds * (1 - power)
        return max(0.0, float(first.max()), float(second.max()))


@lru_cache(maxsize=2048)
def accounted(event: Event, adjacency: Adjacency) -> AccountedTradeOff:
    """The curve of ``event``, from the accountant: its deltas are upper bounds, so nothing is refuted by rounding.

    Args:
        event: What the mechanism does.
        adjacency: Between which data sets.
    """
    deltas = [_delta(event, epsilon, adjacency) for epsilon in _EPSILONS]
    return AccountedTradeOff(np.exp(np.array(_EPSILONS)), np.array(deltas))


@lru_cache(maxsize=50_000)
def _delta(event: Event, epsilon: float, adjacency: Adjacency) -> float:
    """An upper bound, on the coarsest grid that the accountant uses."""
    return PLD(tolerance=math.inf).delta(event, epsilon, adjacency)


@dataclass(frozen=True)
class AnyMechanism:
    """Every (epsilon, delta)-DP mechanism, whatever it does: what a claim says that names no mechanism."""

    def epsilon_refuted(self, refutes: Refutes, delta: float) -> float:
        """Bisection to 1e-3, rounded down."""
        return bisected(lambda epsilon: refutes(ApproximateTradeOff(epsilon, delta)), 0.0, _LARGEST)


@dataclass(frozen=True)
class GaussianDPFamily:
    """mu-Gaussian DP for some mu."""

    def epsilon_refuted(self, refutes: Refutes, delta: float) -> float:
        """The epsilon of the largest mu that is refuted."""
        mu = bisected(lambda value: refutes(GaussianTradeOff(value)), 0.0, 40.0)
        return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


@dataclass(frozen=True)
class NoiseFamily:
    """The mechanisms ``event(s)`` that differ in their noise multiplier s only.

    Args:
        event: What the mechanism does at a noise multiplier.
        adjacency: Between which data sets.
    """

    event: Callable[[float], Event]
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def epsilon_refuted(self, refutes: Refutes, delta: float) -> float:
        """The epsilon of the least multiplier of the grid whose curve is refuted."""
        return self.epsilon_where(lambda event: refutes(accounted(event, self.adjacency)), delta)

    def epsilon_where(self, refuted: Callable[[Event], bool], delta: float) -> float:
        """The epsilon of the least multiplier of the grid that is refuted: the true one is below it, and leaks more."""
        low, high = -1, len(MULTIPLIERS)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if refuted(self.event(MULTIPLIERS[middle])) else (middle, high)
        if high == len(MULTIPLIERS):
            return 0.0
        return accountant("pld").epsilon(self.event(MULTIPLIERS[high]), delta, self.adjacency)


def bisected(refuted: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-3) -> float:
    """The largest level that ``refuted`` says yes to, from below; ``low`` if it says no there already.

    >>> round(bisected(lambda level: level < 2.5, 0.0, 60.0), 2)
    2.5
    """
    if not refuted(low):
        return low
    while high - low > tolerance:
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def total_variation(event: Event, adjacency: Adjacency) -> float:
    """The most by which ``event`` lets power exceed size: its delta at epsilon 0.

    Args:
        event: What the mechanism does.
        adjacency: Between which data sets.
    """
    return _delta(event, 0.0, adjacency)
