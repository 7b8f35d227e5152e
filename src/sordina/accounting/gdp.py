"""Gaussian accounting: one number, mu, of the Gaussian shift that is as hard to tell apart (Dong, Roth and Su 2022).

Gaussians are exact, ``mu = 1/s``, and ``mu^2`` adds up; an epsilon-DP mechanism is mu-GDP with
``Phi(mu/2) = e^eps / (1 + e^eps)``. For sampled Gaussians the central limit (Bu et al. 2020) is only an approximation,
and can be too small; there the answer is raised to that of privacy loss distributions, so that it is always sound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordina._arguments import checked
from sordina.accounting._numerics import log_ndtr, ndtri
from sordina.accounting.canonical import Bag, amplified, check_queried, exposed, normal_form, pure, refuse_unsound
from sordina.accounting.events import Event, FixedSizeSampled, Gaussian, Laplace, PoissonSampled, PureDP, Shuffled
from sordina.accounting.gaussian import gaussian_delta, gaussian_epsilon
from sordina.accounting.pld import PLD
from sordina.accounting.rdp import split_leak
from sordina.errors import Unsupported
from sordina.privacy import Adjacency, check_delta


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
