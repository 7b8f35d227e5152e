"""Renyi accounting (the moments accountant): divergences of events, their sum, and its conversion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from sordina._arguments import checked
from sordina.accounting._numerics import Array
from sordina.accounting.canonical import Bag, amplified, check_queried, exposed, normal_form, refuse_unsound
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
from sordina.accounting.stopping import stopped_renyi
from sordina.errors import Unsupported
from sordina.privacy import Adjacency, check_delta

# Renyi divergences of events: ``D_a = ln E_Q[(dP/dQ)^a] / (a - 1)``, at most, over all neighbours.
#
# =====================================  ============================================================================
# event                                  bound
# =====================================  ============================================================================
# Gaussian                               ``a / (2 s^2)``
# Laplace                                Mironov 2017, Proposition 6
# PureDP                                 randomised response, which dominates every ``epsilon``-DP mechanism
# ZeroConcentrated                       ``rho a``
# PoissonSampled Gaussian, add-remove    Mironov, Talwar and Zhang 2019, section 3.3
# sampled Gaussian, replace-one          Wang, Balle and Kasiviswanathan 2019, Theorem 27 (fixed size); it only needs
# the
#                                        outputs with the unit, without it and with another pairwise close, so it covers
#                                        Poisson samples of vectors in a ball around 0 too
# sampled PureDP, Laplace                PureDP at ``ln(1 + q (e^eps - 1))``
# RandomStopping                         `stopping`
# =====================================  ============================================================================

_TERMS = 1024
"""Terms of a series after which an order is given up."""
_EXACT = 256
"""Largest order at which the central moments of Theorem 27 are computed."""


def gaussian_divergence(noise: float, orders: Array) -> Array:
    """``a / (2 s^2)``."""
    return orders / (2 * noise**2)


def response_divergence(epsilon: float, orders: Array) -> Array:
    """Randomised response that tells the truth with probability ``e^eps / (1 + e^eps)``."""
    truth, lie = -math.log1p(math.exp(-epsilon)), -float(np.logaddexp(0.0, epsilon))
    moment = np.logaddexp(orders * truth + (1 - orders) * lie, orders * lie + (1 - orders) * truth)
    return np.maximum(moment, 0.0) / (orders - 1)


def laplace_divergence(noise: float, orders: Array) -> Array:
    """``ln(a/(2a-1) e^((a-1)/b) + (a-1)/(2a-1) e^(-a/b)) / (a - 1)``."""
    most = 1 / noise
    upper = np.log(orders) - np.log(2 * orders - 1) + (orders - 1) * most
    lower = np.log(orders - 1) - np.log(2 * orders - 1) - orders * most
    return np.maximum(np.logaddexp(upper, lower), 0.0) / (orders - 1)


def poisson_gaussian_divergence(rate: float, noise: float, orders: Array) -> Array:
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


def replaced_gaussian_divergence(rate: float, noise: float, orders: Array) -> Array:
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


# Renyi accounting (the moments accountant): divergences add up, and the best order converts to (epsilon, delta).

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
        return gaussian_divergence(event.noise_multiplier, orders)
    if isinstance(event, Laplace):
        return laplace_divergence(event.noise_multiplier, orders)
    if isinstance(event, PureDP):
        return response_divergence(event.epsilon, orders)
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
        return response_divergence(amplified(event).epsilon, orders)
    noise = event.event.noise_multiplier
    if isinstance(event, FixedSizeSampled):
        return replaced_gaussian_divergence(event.batch_size / event.population, noise, orders)
    if adjacency is Adjacency.REPLACE_ONE:
        return replaced_gaussian_divergence(event.rate, noise, orders)
    return poisson_gaussian_divergence(event.rate, noise, orders)


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


# From a Renyi guarantee to a dominating pair, for what has no other (zero-concentrated events, random stopping).
#
# A Renyi curve bounds delta at every epsilon >= 0 for both directions. The true curve, as a function of ``e^epsilon``,
# is convex, so it lies below the lower convex hull of that bound; the hull, mirrored, is the curve of a pair whose
# losses are the hull's corners. Divergences are added up before, so nothing is lost among such events; something is
# lost when the pair is composed with others.

_POINTS = 600
_LEAST = 1e-30
"""Where the curve may end: the mass beyond counts as lost."""
_ROUNDING = 1e-15
"""Absolute error of the curve, on the safe side."""
_REACH = 600.0


@dataclass(frozen=True)
class CornerLoss:
    """Losses ``corners`` >= 0 with tail masses under P and Q *beyond* each; only the part >= 0, to be mirrored."""

    corners: tuple[float, ...]
    upper: tuple[float, ...]
    lower: tuple[float, ...]

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """Steps at the corners; beyond the last one only lost mass remains."""
        at = np.searchsorted(np.array(self.corners), thresholds, side="right")
        upper = np.array([self.upper[0], *self.upper])[at]
        lower = np.array([self.lower[0], *self.lower])[at]
        return np.where(thresholds == math.inf, 0.0, upper), np.where(thresholds == math.inf, 0.0, lower)

    def span(self, tail: float) -> tuple[float, float]:
        """The corners end where next to nothing is left."""
        return -self.corners[-1], self.corners[-1]

    @property
    def leak(self) -> float:
        """What is left beyond the last corner."""
        return self.upper[-1]

    @property
    def scale(self) -> float:
        """The largest corner."""
        return self.corners[-1]


def corner_loss(orders: Array, divergences: Array) -> CornerLoss:
    """The loss that dominates everything with these Renyi divergences."""
    last = epsilon_from(orders, divergences, _LEAST)
    if last > _REACH:
        raise Unsupported(
            f"a zero-concentrated or randomly stopped event of epsilon above {_REACH:g} cannot be composed by pld. "
            "Use the accountant rdp."
        )
    losses = np.linspace(0.0, max(last, 1e-9), _POINTS)
    deltas = np.array([delta_from(orders, divergences, float(loss)) for loss in losses])
    return CornerLoss(*corners_of(losses, np.minimum(deltas * (1 + 1e-9) + _ROUNDING, 1.0)))


def corners_of(losses: Array, deltas: Array) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """The fields of a `CornerLoss` whose curve is the lower convex hull of ``deltas``, as a function of ``e^loss``.

    Args:
        losses: From 0 on, increasing.
        deltas: Upper bounds on delta there.
    """
    odds, kept = _hull(np.exp(losses), deltas)
    lower = np.append(-np.diff(kept) / np.diff(odds), 0.0)
    upper = kept + odds * lower
    return tuple(np.log(odds).tolist()), tuple(upper.tolist()), tuple(lower.tolist())


def _hull(points: Array, values: Array) -> tuple[Array, Array]:
    """The corners of the lower convex hull, from left to right."""
    kept: list[int] = []
    for new in range(points.size):
        while len(kept) > 1:
            first, middle = kept[-2], kept[-1]
            chord = (values[new] - values[first]) * (points[middle] - points[first])
            if (values[middle] - values[first]) * (points[new] - points[first]) < chord:
                break
            kept.pop()
        kept.append(new)
    return points[kept], values[kept]
