"""Random walks: a token with the model goes from party to party, and each sees it only when it comes by.

Cyffers and Bellet 2022. The holder makes one noisy step and hands the token on,

    theta  <-  theta - eta (g_u(theta) + sigma L z),          |g_u| <= L,

on the complete graph to a party drawn uniformly, on the ring to the next one. Network privacy: v sees the token at its
own visits, and here, which costs nothing, *also the whole path*; everybody sees the model at the end if it is
published.

**Amplification by iteration** (Feldman, Mironov, Talwar and Thakurta 2018, Theorem 22). If all steps are contractions
(convex, beta-smooth losses and eta <= 2 / beta), a difference of eta L that u's step makes can be worn off over the k
noisy steps until the next one who matters takes the token: Renyi divergence ``alpha / (2 sigma^2 k)`` at order alpha.
A step of u is worn off before the next visit of v *or of u itself*, so that contributions add up; that several of them
fall between two visits of v is then no matter (adding up bounds that run over each other's steps would be wrong).

**Ring.** The path is known, ``k = (v - u) mod n``: `ZeroConcentrated` with ``rho = C / (2 sigma^2 k)`` for C rounds.

**Complete graph.** k is geometric with chance 2/n, independently for each contribution. The view with its path is a
mixture over paths that do not depend on the data, so its divergence is, without any condition on its size,

    exp((alpha - 1) D)  <=  E exp(c sum_j 1/k_j)  <=  (E exp(c / k))^C,        c = (alpha - 1) alpha / (2 sigma^2),

for at most C contributions of u (weak convexity, as we read the paper, is the first term of this). A party's number of
steps must be *capped*: afterwards it only adds noise. The published end is one more visit, at a distance b from u's
last step of which no value has a chance above 1/n; Hoelder's inequality separates it from the rest (`_ended`).

What needs care: *clipping* is no contraction, so losses must be convex, smooth and Lipschitz by themselves.
`linear_bounds` says what rows of bounded norm give for softmax regression; other models are refused. Tokens are rounded
to a grid of a 64th of the noise's deviation: for each step by itself that is post-processing, but rounding is no
contraction, so the amplification is proved for real-valued tokens, not for rounded ones. Reports state that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordina.accounting.events import ApproximateDP, Event, ZeroConcentrated
from sordina.accounting.rdp import epsilon_from
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Budget, check_positive

Doubles = NDArray[np.float64]
CAVEAT = (
    "Amplification by iteration is proved for real-valued tokens; tokens are rounded to a 64th of the deviation of a "
    "step's noise."
)
_ORDERS = 1 + np.geomspace(1e-2, 1e4, 120)
_POWERS = (1.1, 1.25, 1.5, 2.0, 3.0)
"""r of Hoelder's inequality."""
_TAIL = 60.0


@dataclass(frozen=True)
class WalkPlan:
    """All that is public of a walk.

    Args:
        parties: n.
        contributions: C, the most steps that a party makes with its data.
        noise_multiplier: sigma: noise over the bound of a gradient.
        ring: Whether the token goes round in order, rather than to a random party.
        published: Whether everybody is shown the model at the end.
    """

    parties: int
    contributions: int
    noise_multiplier: float
    ring: bool = False
    published: bool = True

    def __post_init__(self) -> None:
        if self.parties < 2:
            raise InvalidInput(f"a walk needs at least two parties, got {self.parties}.")
        if self.contributions < 1:
            raise InvalidInput(f"a party makes at least one step, got {self.contributions}.")
        check_positive("noise multiplier", self.noise_multiplier)

    def divergences(self, orders: Doubles = _ORDERS) -> Doubles:
        """Renyi divergence of what any party learns about any other on the complete graph, at ``orders``."""
        if self.ring:
            raise Unsupported("on the ring every pair has an account of its own: see pair_event.")
        rates = orders * (orders - 1) / (2 * self.noise_multiplier**2)
        if not self.published:
            return self.contributions * _log_mean(rates, 2 / self.parties) / (orders - 1)
        best = np.full(len(orders), math.inf)
        for power in _POWERS:
            other = power / (power - 1)
            walked, ended = _log_mean(power * rates, 2 / self.parties), _ended(other * rates, self.parties)
            best = np.minimum(best, self.contributions * walked / power + ended / other)
        return best / (orders - 1)

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` of any pair on the complete graph, of the worst pair on the ring.

        Args:
            delta: The delta of the guarantee.
        """
        if self.ring:
            from sordina.accounting import accountant

            return accountant("rdp").epsilon(self.pair_event(self.parties - 1, 0), delta, Adjacency.ADD_REMOVE)
        return epsilon_from(_ORDERS, self.divergences(), delta)

    def pair_event(self, owner: int, observer: int) -> Event:
        """On the ring: what ``observer`` learns about ``owner``; the token starts at 0 and ends behind n - 1.

        Args:
            owner: Whose data.
            observer: Who looks.
        """
        if not self.ring:
            raise Unsupported("on the complete graph every pair has the same account: see event.")
        if owner == observer:
            return ZeroConcentrated(0.0)
        distance = (observer - owner) % self.parties
        last = min(distance, self.parties - owner) if self.published else distance
        worn = (self.contributions - 1) / distance + 1 / last
        return ZeroConcentrated(worn / (2 * self.noise_multiplier**2) * (1 + 1e-12))

    def event(self, delta: float) -> Event:
        """The worst pair's event, for a ledger: on the complete graph an (epsilon, delta), which is all that is known.

        Args:
            delta: The delta of the guarantee.
        """
        if self.ring:
            return self.pair_event(self.parties - 1, 0)
        return ApproximateDP(self.epsilon(delta), delta)


def walk_noise(
    budget: Budget, parties: int, contributions: int, *, ring: bool = False, published: bool = True
) -> WalkPlan:
    """The plan with the least noise within ``budget`` for every pair.

    Args:
        budget: Epsilon and delta against any other party.
        parties: n.
        contributions: The most steps of a party.
        ring: As in `WalkPlan`.
        published: As in `WalkPlan`.
    """
    if math.isinf(budget.epsilon):
        raise InvalidInput("a walk needs a finite epsilon.")

    def plan(noise: float) -> WalkPlan:
        return WalkPlan(parties, contributions, noise, ring, published)

    low, high = 1e-3, 1.0
    while plan(high).epsilon(budget.delta) > budget.epsilon:
        low, high = high, 2 * high
        if high > 1e9:
            raise InvalidInput(f"no noise meets epsilon {budget.epsilon:g} at delta {budget.delta:g}.")
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if plan(middle).epsilon(budget.delta) <= budget.epsilon else (middle, high)
    return plan(high)


def _log_mean(rates: Doubles, chance: float) -> Doubles:
    """``ln E exp(rate / k)`` for each rate, k geometric with this chance, rounded up."""
    edges = _blocks(math.ceil(_TAIL / chance))
    left = np.exp((edges - 1) * math.log1p(-chance))
    return _log_sum(rates, edges, left - np.append(left[1:], 0.0))


def _ended(rates: Doubles, parties: int) -> Doubles:
    """``ln E exp(rate / b)``, b the distance of u's last step to the end, rounded up.

    A given step is u's with chance 1/n, so no value of b has a larger one; at worst all chance is on 1, ..., n.
    """
    edges = _blocks(parties + 1)
    sizes = np.diff(edges, append=parties + 1)
    return _log_sum(rates, edges, sizes / parties)


def _blocks(last: int) -> Doubles:
    """Left ends of blocks of whole numbers up to ``last``: single ones first, then a thousandth of their place wide."""
    single = np.arange(1.0, min(last, 1000) + 1)
    wide = np.floor(np.geomspace(1001, max(last, 1001), max(1, int(1000 * math.log(max(last, 1001) / 1000)))))
    return np.unique(np.concatenate([single, wide[wide <= last]])) if last > 1000 else single[single <= max(1, last)]


def _log_sum(rates: Doubles, edges: Doubles, chances: Doubles) -> Doubles:
    """``ln sum_i chance_i exp(rate / edge_i)`` for each rate; a block counts with its left end."""
    logs = rates[:, None] / edges + np.log(np.maximum(chances, 1e-300))
    top = logs.max(axis=1)
    large = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
    small = np.log1p((np.expm1(np.minimum(rates[:, None] / edges, 1.0)) * chances).sum(axis=1))
    found: Doubles = np.where(rates < 1, small, large) * (1 + 1e-12) + 1e-15
    return found


def linear_bounds(row_norm: float) -> tuple[float, float]:
    """``(L, beta)`` of softmax regression on rows of at most this norm, with a bias: the gradient's norm, smoothness.

    ``|p - y| <= sqrt 2`` and the Hessian of log-sum-exp is at most 1/2; the bias adds a coordinate of 1 to every row.

    Args:
        row_norm: The largest norm of a row.

    >>> linear_bounds(1.0)
    (2.0, 1.0)
    """
    square = row_norm**2 + 1
    return math.sqrt(2 * square), square / 2
