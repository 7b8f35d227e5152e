"""Renyi divergences of events: ``D_a = ln E_Q[(dP/dQ)^a] / (a - 1)``, at most, over all neighbours.

=====================================  ============================================================================
event                                  bound
=====================================  ============================================================================
Gaussian                               ``a / (2 s^2)``
Laplace                                Mironov 2017, Proposition 6
PureDP                                 randomised response, which dominates every ``epsilon``-DP mechanism
ZeroConcentrated                       ``rho a``
PoissonSampled Gaussian, add-remove    Mironov, Talwar and Zhang 2019, section 3.3
sampled Gaussian, replace-one          Wang, Balle and Kasiviswanathan 2019, Theorem 27 (fixed size); it only needs the
                                       outputs with the unit, without it and with another pairwise close, so it covers
                                       Poisson samples of vectors in a ball around 0 too
sampled PureDP, Laplace                PureDP at ``ln(1 + q (e^eps - 1))``
RandomStopping                         `stopping`
=====================================  ============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from sordina.accounting.special import Array

_TERMS = 1024
"""Terms of a series after which an order is given up."""
_EXACT = 256
"""Largest order at which the central moments of Theorem 27 are computed."""


def gaussian(noise: float, orders: Array) -> Array:
    """``a / (2 s^2)``."""
    return orders / (2 * noise**2)


def response(epsilon: float, orders: Array) -> Array:
    """Randomised response that tells the truth with probability ``e^eps / (1 + e^eps)``."""
    truth, lie = -math.log1p(math.exp(-epsilon)), -float(np.logaddexp(0.0, epsilon))
    moment = np.logaddexp(orders * truth + (1 - orders) * lie, orders * lie + (1 - orders) * truth)
    return np.maximum(moment, 0.0) / (orders - 1)


def laplace(noise: float, orders: Array) -> Array:
    """``ln(a/(2a-1) e^((a-1)/b) + (a-1)/(2a-1) e^(-a/b)) / (a - 1)``."""
    most = 1 / noise
    upper = np.log(orders) - np.log(2 * orders - 1) + (orders - 1) * most
    lower = np.log(orders - 1) - np.log(2 * orders - 1) - orders * most
    return np.maximum(np.logaddexp(upper, lower), 0.0) / (orders - 1)


def poisson_gaussian(rate: float, noise: float, orders: Array) -> Array:
    """``ln A_a / (a - 1)`` with ``A_a = E_(N(0, s^2)) (1 - q + q e^((2x-1)/(2 s^2)))^a``."""
    logs = _between(lambda whole: _whole_moments(rate, noise, whole), orders)
    broken = orders != np.round(orders)
    if broken.any():
        logs[broken] = np.minimum(logs[broken], _broken_moments(rate, noise, orders[broken]))
    return np.maximum(logs, 0.0) / (orders - 1)


def _between(moments: Callable[[Array], Array], orders: Array) -> Array:
    """``(a - 1) D_a`` at any orders from those at whole ones: it is convex in a, so its chords lie above it."""
    whole = np.unique(np.concatenate([np.floor(orders), np.ceil(orders)]))
    return np.interp(orders, whole, moments(whole))


def _log_binomial(order: Array, index: Array) -> Array:
    logs: Array = gammaln(order + 1) - gammaln(index + 1) - gammaln(order - index + 1)
    return logs


def _whole_moments(rate: float, noise: float, orders: Array) -> Array:
    """The binomial expansion of ``A_a``."""
    index = np.arange(float(orders.max()) + 1)[None, :]
    order = orders[:, None]
    with np.errstate(invalid="ignore"):
        terms = _log_binomial(order, np.minimum(index, order)) + index * math.log(rate)
        terms = terms + (order - index) * math.log1p(-rate) + (index**2 - index) / (2 * noise**2)
    terms[index > order] = -math.inf
    return np.asarray(logsumexp(terms, axis=1))


def _broken_moments(rate: float, noise: float, orders: Array) -> Array:
    """The two series around the point where both parts of the mixture are equal, every term taken positive."""
    middle = noise**2 * math.log(1 / rate - 1) + 0.5
    order, index = orders[:, None], np.arange(float(_TERMS))[None, :]
    rest = order - index
    binomial = _log_binomial(order, index)
    near = binomial + index * math.log(rate) + rest * math.log1p(-rate)
    near += (index**2 - index) / (2 * noise**2) + log_ndtr((middle - index) / noise)
    far = binomial + rest * math.log(rate) + index * math.log1p(-rate)
    far += (rest**2 - rest) / (2 * noise**2) + log_ndtr((rest - middle) / noise)
    total = np.asarray(logsumexp(np.concatenate([near, far], axis=1), axis=1))
    settled = np.maximum(near[:, -1], far[:, -1]) < total - 30
    return np.where(settled, total, math.inf)


def replaced_gaussian(rate: float, noise: float, orders: Array) -> Array:
    """``ln(1 + sum_(j=2..a) C(a, j) q^j T_j) / (a - 1)``, with T_j a bound on the ternary |chi|^j-divergence.

    ``T_2 = min(4 (e^(1/s^2) - 1), 2 e^(1/s^2))`` and ``T_j = min(4 sqrt(B_j' B_j''), 2 e^(j (j-1) / (2 s^2)))``, with
    j' and j'' the even numbers around j and ``B_j = E_Q (dP/dQ - 1)^j``.
    """
    return np.maximum(_between(lambda whole: _ternary_moments(rate, noise, whole), orders), 0.0) / (orders - 1)


def _ternary_moments(rate: float, noise: float, orders: Array) -> Array:
    index = np.arange(2.0, max(float(orders.max()), 2.0) + 1)
    bounds = math.log(2) + index * (index - 1) / (2 * noise**2)
    tight = int(min(index.size, _EXACT - 1))
    central = _central_moments(noise, tight + 3)
    below, above = 2 * (index[:tight] // 2), 2 * -(-index[:tight] // 2)
    narrow = math.log(4) + (central[below.astype(int)] + central[above.astype(int)]) / 2
    narrow[0] = math.log(4) + 1 / noise**2 + math.log(-math.expm1(-1 / noise**2))
    order = orders[:, None]
    terms = np.broadcast_to(bounds, (orders.size, index.size)).copy()
    exact = (order <= _EXACT) & (index <= tight + 1)
    terms = np.where(exact, np.minimum(terms, np.pad(narrow, (0, index.size - tight))), terms)
    terms[:, 0] = np.minimum(bounds[0], narrow[0])
    terms += _log_binomial(order, np.minimum(index, order)) + index * math.log(rate)
    terms[index > order] = -math.inf
    return np.asarray(np.logaddexp(0.0, logsumexp(terms, axis=1)))


def _central_moments(noise: float, most: int) -> Array:
    """``ln E (e^(z/s - 1/(2 s^2)) - 1)^j`` for even j, z standard normal; inf for odd j and where it would take long.

    The trapezoidal rule: the integrand is positive, and entire with Gaussian decay, so that at a spacing of 0.1 the
    rule's error is below rounding.
    """
    logs = np.full(most + 1, math.inf)
    for order in range(2, most + 1, 2):
        end = order / noise + 12
        if end > 5000:
            break
        z = np.arange(-12.0, end, 0.1)
        excess = z / noise - 0.5 / noise**2
        with np.errstate(divide="ignore"):
            size = np.where(excess > 30, excess, np.log(np.abs(np.expm1(np.minimum(excess, 30.0)))))
        logs[order] = float(logsumexp(order * size - z**2 / 2)) + math.log(0.1) - 0.5 * math.log(2 * math.pi)
    return logs
