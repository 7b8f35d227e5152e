"""Discrete Laplace and discrete Gaussian noise for integer queries, sampled exactly.

Without a generator the noise of up to `VETTED_UP_TO` components comes from OpenDP, whose samplers are proved and
reviewed, draw from the operating system and cannot be seeded. With a generator, and for more components (OpenDP takes
10 to 15 microseconds each, ours 1 to 2), it comes from `sordina.mechanisms.exact`. Both follow the same law exactly.
Scales are multiples of a power of two, rounded up from the real value by a factor below ``1 + 2^-38``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

from sordina._arguments import checked
from sordina.accounting import events
from sordina.errors import InvalidInput
from sordina.mechanisms import exact
from sordina.mechanisms.mechanism import number, open_integers, settle, source, tail, whole, word
from sordina.privacy import Adjacency, Guarantee, Trust, Unit, check_delta, check_epsilon

VETTED_UP_TO = 10_000
_LARGEST_VALUE = 1 << 61
_LARGEST_NOISE_SCALE = 2.0**45


@checked
@dataclass(frozen=True)
class DiscreteLaplace:
    """Adds noise ``P(k) ~ exp(-|k| epsilon / S1)`` to integers whose L1 distance between neighbours is at most S1.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.

    >>> round(DiscreteLaplace(sensitivity=1, epsilon=1).probability(0), 6)
    0.462117
    """

    sensitivity: int
    epsilon: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def __post_init__(self) -> None:
        settle(
            self,
            sensitivity=whole("sensitivity", self.sensitivity),
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            adjacency=word("adjacency", Adjacency, self.adjacency),
            unit=word("unit", Unit, self.unit),
            trust=word("trust", Trust, self.trust),
        )
        _fraction(self.sensitivity / self.epsilon)

    @property
    def scale(self) -> float:
        """``S1 / epsilon``, rounded up to the fraction that is sampled."""
        numerator, denominator = _fraction(self.sensitivity / self.epsilon)
        return numerator / denominator

    @property
    def guarantee(self) -> Guarantee:
        """Pure epsilon-DP."""
        return Guarantee(self.epsilon, 0.0, self.adjacency, self.unit, self.trust)

    def event(self) -> events.Event:
        """Pure epsilon-DP: not `events.Laplace`, for at small scales discrete noise composes a little worse."""
        return events.PureDP(self.epsilon)

    def probability(self, output: int, value: int = 0) -> float:
        """``tanh(1 / (2 scale)) exp(-|output - value| / scale)``."""
        return math.tanh(1 / (2 * self.scale)) * math.exp(-abs(output - value) / self.scale)

    def error_bound(self, confidence: float, size: int = 1) -> int:
        """No component of ``size`` is off by more, with probability ``confidence``.

        ``P(|Z| >= m) = 2 a^m / (1 + a)`` with ``a = exp(-1/scale)``; the answer is m - 1 for the least m that suffices.
        """
        chance = tail(confidence, size) * (1 + math.exp(-1 / self.scale)) / 2
        return math.ceil(-math.log(chance) * self.scale * (1 + 1e-12)) - 1

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """Integer ``value`` with independent discrete Laplace noise on every component."""
        integers, close = _open_counts(value)
        if rng is None and integers.size <= VETTED_UP_TO:
            return close(_through_opendp("laplace", integers, self.scale))
        fraction = _fraction(self.sensitivity / self.epsilon)
        noise = exact.discrete_laplace(*fraction, integers.size, source(rng))
        return close(integers + noise.reshape(integers.shape))


def zcdp_log_delta(rho: float, epsilon: float) -> float:
    """Log of a delta for which every rho-zCDP mechanism is (epsilon, delta)-DP.

    Canonne, Kamath and Steinke 2020, Proposition 12: for every a > 1, ``delta = e^{(a-1)(a rho - epsilon)} / (a - 1)
    (1 - 1/a)^a``. Any a is sound; the best is searched.
    """

    def log_delta(log_order: float) -> float:
        less = math.exp(log_order)
        order = 1 + less
        return less * (order * rho - epsilon) - math.log(less) - order * math.log1p(1 / less)

    guess = math.log(max(epsilon / rho, 1.0) + 1.0)
    return float(minimize_scalar(log_delta, bounds=(-20.0, guess + 20.0), method="bounded").fun)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest rho (to 1e-9, rounded down) that `zcdp_log_delta` turns into (epsilon, delta).

    >>> round(zcdp_rho(1.0, 1e-5), 5)
    0.03056
    """
    epsilon = min(epsilon, 1e100)
    low, high = 0.0, epsilon + 1.0
    target = math.log(delta) - 1e-9
    while zcdp_log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_log_delta(middle, epsilon) <= target else (low, middle)
    return low


@checked
@dataclass(frozen=True)
class DiscreteGaussian:
    """Adds noise ``P(k) ~ exp(-k^2 / (2 sigma^2))`` to integers whose L2 distance between neighbours is at most S2.

    It is ``S2^2 / (2 sigma^2)``-zCDP in any dimension (Canonne, Kamath and Steinke 2020, Theorem 14), and sigma is the
    least for which that gives (epsilon, delta).

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        unit: Whose data the guarantee speaks of: a record or a person.
        trust: Whom the people must trust: nobody but themselves, or whoever adds the noise.

    >>> mechanism = DiscreteGaussian(sensitivity=1, epsilon=1, delta=1e-5)
    >>> round(mechanism.sigma, 2), round(mechanism.rho, 4)
    (4.05, 0.0306)
    """

    sensitivity: float
    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit = Unit.RECORD
    trust: Trust = Trust.CENTRAL

    def __post_init__(self) -> None:
        sensitivity = number("sensitivity", self.sensitivity)
        if not 1 <= sensitivity < math.inf:
            raise InvalidInput(f"two different integer vectors are at least 1 apart, got sensitivity {sensitivity}.")
        settle(
            self,
            sensitivity=sensitivity,
            epsilon=check_epsilon(number("epsilon", self.epsilon)),
            delta=check_delta(number("delta", self.delta)),
            adjacency=word("adjacency", Adjacency, self.adjacency),
            unit=word("unit", Unit, self.unit),
            trust=word("trust", Trust, self.trust),
        )
        if self.delta < 1e-250:
            raise InvalidInput(
                f"Gaussian noise needs a delta of at least 1e-250, got {self.delta}: use DiscreteLaplace."
            )
        _fraction(self.sigma)

    @cached_property
    def _sigma(self) -> tuple[int, int]:
        return _fraction(self.sensitivity / math.sqrt(2 * zcdp_rho(self.epsilon, self.delta)))

    @property
    def sigma(self) -> float:
        """The parameter sigma; the standard deviation is a little below it."""
        return self._sigma[0] / self._sigma[1]

    @property
    def rho(self) -> float:
        """The zCDP cost of one release."""
        return self.sensitivity**2 / (2 * self.sigma**2)

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta)-DP, by way of zCDP."""
        return Guarantee(self.epsilon, self.delta, self.adjacency, self.unit, self.trust)

    def event(self) -> events.Event:
        """rho-zCDP."""
        return events.ZeroConcentrated(self.rho)

    def probability(self, output: int, value: int = 0) -> float:
        """``exp(-(output - value)^2 / (2 sigma^2))`` over its sum."""
        return math.exp(-(((output - value) / self.sigma) ** 2) / 2) / self._total

    @cached_property
    def _total(self) -> float:
        """``sum_k exp(-k^2 / (2 sigma^2))``, for sigma > 1 by Poisson's formula: both sums are done after 12 terms."""
        k = np.arange(1, 13)
        if self.sigma <= 1:
            return 1 + 2 * float(np.exp(-((k / self.sigma) ** 2) / 2).sum())
        return math.sqrt(2 * math.pi) * self.sigma * (1 + 2 * float(np.exp(-2 * (math.pi * self.sigma * k) ** 2).sum()))

    def error_bound(self, confidence: float, size: int = 1) -> int:
        """No component of ``size`` is off by more, with probability ``confidence``.

        ``P(Z >= m) <= P(N >= m - 1)`` for N normal with the same sigma (ibid., section 4).
        """
        return math.ceil(-float(ndtri(tail(confidence, size) / 2)) * self.sigma)

    def release(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """Integer ``value`` with independent discrete Gaussian noise on every component."""
        integers, close = _open_counts(value)
        if rng is None and integers.size <= VETTED_UP_TO:
            return close(_through_opendp("gaussian", integers, self.sigma))
        noise = exact.discrete_gaussian(*self._sigma, integers.size, source(rng))
        return close(integers + noise.reshape(integers.shape))


def _fraction(scale: float) -> tuple[int, int]:
    """``(numerator, power of two)`` whose quotient is ``scale``, rounded up by a factor below ``1 + 2^-38``."""
    if not 2.0**-40 <= scale <= _LARGEST_NOISE_SCALE:
        raise InvalidInput(f"a noise scale of {scale:.3g} is out of range for integers: rescale the query.")
    exponent = max(0, 40 - math.frexp(scale)[1])
    return math.ceil(math.ldexp(scale * (1 + 2.0**-48), exponent)), 1 << exponent


def _open_counts(value: Any) -> tuple[NDArray[np.int64], Any]:
    integers, close = open_integers(value)
    if integers.size and (integers.max() > _LARGEST_VALUE or integers.min() < -_LARGEST_VALUE):
        raise InvalidInput(f"integers beyond {_LARGEST_VALUE} in size are not supported.")
    return integers, close


def _through_opendp(
    law: Literal["laplace", "gaussian"], integers: NDArray[np.int64], scale: float
) -> NDArray[np.int64]:
    """OpenDP's release of a vector of integers. Enables its feature "contrib", under which its samplers ship."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian, make_laplace
    from opendp.metrics import l1_distance, l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    make, metric = (make_laplace, l1_distance) if law == "laplace" else (make_gaussian, l2_distance)
    measurement = make(vector_domain(atom_domain(T="i64")), metric(T="i64"), scale=scale)
    return np.array(measurement(integers.ravel().tolist()), dtype=np.int64).reshape(integers.shape)
