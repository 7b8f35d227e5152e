"""Accountants of few numbers: basic and advanced composition, zero-concentrated and Gaussian privacy.

Every event is first given its own epsilon at a share of delta, sampled ones by amplification,
``(ln(1 + q (e^eps - 1)), q delta)``; then the epsilons are composed.

Zero-concentrated accounting: one number, rho, adds up (Bun and Steinke 2016).

A Gaussian is ``1/(2 s^2)``-zCDP and an epsilon-DP mechanism ``eps^2/2``-zCDP. The definition speaks of all orders, and
at high orders sampling does not help: a sampled Gaussian costs as much as the Gaussian itself.

Gaussian accounting: one number, mu, of the Gaussian shift that is as hard to tell apart (Dong, Roth and Su 2022).

Gaussians are exact, ``mu = 1/s``, and ``mu^2`` adds up; an epsilon-DP mechanism is mu-GDP with
``Phi(mu/2) = e^eps / (1 + e^eps)``. For sampled Gaussians the central limit (Bu et al. 2020) is only an approximation,
and can be too small; there the answer is raised to that of privacy loss distributions, so that it is always sound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordina._arguments import checked
from sordina.accounting._numerics import Array, falling_root, log_ndtr, ndtri
from sordina.accounting.canonical import (
    Bag,
    amplified,
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
from sordina.accounting.gaussian import gaussian_delta, gaussian_epsilon
from sordina.accounting.pld import PLD
from sordina.accounting.rdp import RDP, delta_from, epsilon_from, pure_epsilon, split_leak
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


# Zero-concentrated accounting: one number, rho, adds up (Bun and Steinke 2016).


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


# Gaussian accounting: one number, mu, of the Gaussian shift that is as hard to tell apart (Dong, Roth and Su 2022).


@dataclass(frozen=True)
class GDP:
    """Gaussian differential privacy.

    >>> round(GDP().epsilon(Gaussian(1.0), 1e-5), 4)
    4.3772
    """

    name: str = "gdp"

    @checked
    def epsilon(self, event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """Exact for unsampled events, else the larger of the central limit's answer and PLD's."""
        check_delta(delta)
        bag = normal_form(event)
        if exposed(bag):
            return math.inf
        leak, rest = split_leak(bag)
        if not rest:
            return 0.0 if leak <= delta else math.inf
        if delta <= leak:
            return PLD().epsilon(event, delta, adjacency)
        limit = gaussian_epsilon(_multiplier(mu(rest, adjacency)), (delta - leak) / (1 - leak))
        return max(limit, PLD().epsilon(event, delta, adjacency)) if approximate(rest) else limit

    @checked
    def delta(self, event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
        """Exact for unsampled events, else the larger of the central limit's answer and PLD's."""
        check_queried(epsilon)
        bag = normal_form(event)
        if exposed(bag):
            return 1.0
        leak, rest = split_leak(bag)
        limit = leak + (1 - leak) * gaussian_delta(_multiplier(mu(rest, adjacency)), epsilon) if rest else leak
        return max(limit, PLD().delta(event, epsilon, adjacency)) if approximate(rest) else limit


def approximate(bag: Bag) -> bool:
    """Whether the bag holds sampled Gaussians, for which mu is a limit."""
    return any(
        isinstance(event, PoissonSampled | FixedSizeSampled) and isinstance(event.event, Gaussian) for event in bag
    )


def mu(bag: Bag, adjacency: Adjacency) -> float:
    """``sqrt(sum mu_i^2)``."""
    return math.sqrt(math.fsum(count * _mu(event, adjacency) ** 2 for event, count in bag.items()))


def _mu(event: Event, adjacency: Adjacency) -> float:
    if isinstance(event, Gaussian):
        return 1 / event.noise_multiplier
    if isinstance(event, PureDP | Laplace):
        return _pure_mu(pure(event))
    if isinstance(event, Shuffled):  # its tails end at epsilon, not like a Gaussian's: only the answer itself counts
        refuse_unsound(event, adjacency)
        return _pure_mu(event.epsilon)
    if isinstance(event, PoissonSampled | FixedSizeSampled):
        refuse_unsound(event, adjacency)
        if not isinstance(event.event, Gaussian):
            return _pure_mu(amplified(event).epsilon)
        rate = event.rate if isinstance(event, PoissonSampled) else event.batch_size / event.population
        return _limit_mu(rate, event.event.noise_multiplier, adjacency)
    raise Unsupported(f"{type(event).__name__} has no Gaussian guarantee, so gdp cannot judge it. Use pld or rdp.")


def _pure_mu(epsilon: float) -> float:
    """``2 Phi^-1(e^eps / (1 + e^eps))``, from the smaller tail; above 600, as ``Phi(-x) <= e^(-x^2/2)/2``."""
    if epsilon > 600:
        return 2 * math.sqrt(2 * epsilon)
    return -2 * ndtri(1 / (1 + math.exp(epsilon)))


def _limit_mu(rate: float, noise: float, adjacency: Adjacency) -> float:
    """``q sqrt(e^(1/s^2) - 1)`` per step with Poisson samples (Bu et al. 2020, Theorem 5), and for replaced units
    ``q sqrt(2 (e^(1/s^2) Phi(3/(2s)) + 3 Phi(-1/(2s)) - 2))`` (Dong et al., Corollary 5.4)."""
    excess = math.expm1(min(noise**-2, 700.0))
    if adjacency is Adjacency.ADD_REMOVE:
        return rate * math.sqrt(excess)
    far, near = math.exp(log_ndtr(1.5 / noise)), math.exp(log_ndtr(-0.5 / noise))
    return rate * math.sqrt(max(2 * ((1 + excess) * far + 3 * near - 2), 0.0))


def _multiplier(shift: float) -> float:
    return 1 / shift if shift else math.inf
