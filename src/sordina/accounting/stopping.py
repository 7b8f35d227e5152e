"""Random stopping: run a random number K of times, release only the best (Papernot and Steinke 2022).

K is drawn from a truncated negative binomial ``P[K = k] ~ (1-g)^k prod_(l<k) (l + eta)/(l + 1)`` for k >= 1 (eta = 1 is
geometric, eta = 0 logarithmic), or from a Poisson distribution (eta = inf), where K = 0 releases nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from sordina._arguments import checked
from sordina.accounting._numerics import Array, falling_root
from sordina.accounting.events import Event, RandomStopping
from sordina.errors import InvalidInput

POISSON = math.inf


def mean_runs(eta: float, gamma: float) -> float:
    """``E[K] = eta (1/g - 1) / (1 - g^eta)``, Definition 1.

    >>> mean_runs(1.0, 0.1)
    10.0
    """
    if gamma == 1:
        return 1.0
    odds = (1 - gamma) / gamma
    if abs(eta) < 1e-9:
        return odds / -math.log(gamma)
    return eta * odds / -math.expm1(eta * math.log(gamma))


@checked
def stopping(event: Event, mean: float, eta: float = 1.0) -> RandomStopping:
    """``event`` repeated a random number of times with the given mean.

    >>> from sordina.accounting.events import NOTHING
    >>> stopping(NOTHING, mean=25, eta=1.0).gamma
    0.04
    """
    if not (math.isfinite(mean) and mean >= 1):
        raise InvalidInput(f"the mean number of runs must be at least 1, got {mean}.")
    if not eta > -1:
        raise InvalidInput(f"eta must be above -1, got {eta}.")
    if math.isinf(eta):
        return RandomStopping(event, eta, 1.0, float(mean))
    if eta == 1:
        return RandomStopping(event, eta, 1 / mean, float(mean))
    gamma = 1.0 if mean == 1 else falling_root(lambda one: mean_runs(eta, one) - mean, 1e-30, 1.0, 1e-12)
    return RandomStopping(event, eta, gamma, mean_runs(eta, gamma))


def draw_runs(stop: RandomStopping, generator: np.random.Generator) -> int:
    """How often to run: K, by inversion of its distribution.

    Args:
        stop: How the number of runs is distributed.
        generator: A secure generator, or a seeded one in tests.
    """
    if math.isinf(stop.eta):
        return int(generator.poisson(stop.mean))
    level, runs = generator.random(), 0
    for mass in _masses(stop):
        runs += 1
        level -= mass
        if level < 0:
            break
    return runs


def _masses(stop: RandomStopping) -> Iterator[float]:
    """``P[K = 1], P[K = 2], ...`` until what is left is far below the resolution of a random number."""
    eta, keep = stop.eta, 1 - stop.gamma
    if keep == 0:
        mass = 1.0
    elif abs(eta) < 1e-9:
        mass = keep / -math.log(stop.gamma)
    else:
        mass = keep * eta / math.expm1(-eta * math.log(stop.gamma))
    runs = 1
    while mass > 1e-25 * stop.gamma:
        yield mass
        mass *= keep * (runs + eta) / (runs + 1)
        runs += 1


def at_least(stop: RandomStopping, runs: int) -> float:
    """``P[K >= runs]``."""
    if math.isinf(stop.eta):
        logs = [k * math.log(stop.mean) - stop.mean - math.lgamma(k + 1) for k in range(runs)]
        return max(0.0, 1 - math.fsum(math.exp(log) for log in logs))
    return max(0.0, 1 - math.fsum(itertools.islice(_masses(stop), runs - 1)))


def stopped_renyi(
    stop: RandomStopping, orders: Array, once: Array, deltas_once: Callable[[list[float]], list[float]]
) -> Array:
    """The Renyi divergences of the search, from those of one run, ``once``, at the same ``orders``.

    Truncated negative binomial, Theorem 2, for any order l':
    ``D_l + (1 + eta) ((1 - 1/l') D_l' + ln(1/g) / l') + ln E[K] / (l - 1)``.
    Poisson, Theorem 6: ``D_l + E[K] delta + ln E[K] / (l - 1)`` with delta that of one run at ``ln(1 + 1/(l - 1))``.
    A divergence of a higher order bounds that of a lower one.
    """
    if math.isinf(stop.eta):
        mean = stop.mean
        bound = once + mean * np.array(deltas_once([math.log1p(1 / (order - 1)) for order in orders]))
    else:
        mean = max(stop.mean, mean_runs(stop.eta, stop.gamma))
        other = (1 - 1 / orders) * once - math.log(stop.gamma) / orders
        bound = once + (1 + stop.eta) * float(other.min())
    bound = bound + math.log(mean) / (orders - 1)
    return np.minimum.accumulate(bound[::-1])[::-1]
