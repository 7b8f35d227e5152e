"""Amplification by shuffling: people's randomised answers, seen without knowing whose is whose.

Some people's answers, the *blanket*, are drawn by chance from a law that does not depend on what they hold. Show the
adversary everybody else's answers: what is left is the person's own answer among those of the blanket. An answer of the
blanket comes from each of K laws with chance 1/K, the own one from the laws U and V with the chances of the table:

==========================  ===========================================  =====================================  =====
randomiser                  own answer under P                           a person belongs to the blanket with   K
==========================  ===========================================  =====================================  =====
any epsilon-DP one          U with chance p, V with q                    ``e^-epsilon``                         2
response, K categories      x with chance p, any other one with q        ``K q = K / (e^epsilon + K - 1)``      K
==========================  ===========================================  =====================================  =====

``p = e^epsilon q`` and ``p + (K - 1) q = 1``; under Q, U and V (x and x') change places.

*Any randomiser* (the clones of Feldman, McMillan and Talwar 2021, Theorem 3.2). The answers to x and x' are mixtures
``p U + q V`` and ``q U + p V`` of two laws (Kairouz et al. 2015), and any answer is at least ``e^-epsilon`` times as
likely as either, so it is drawn from ``(U + V)/2`` with chance ``e^-epsilon``. The smaller bound of their paper of 2023
("stronger clones") leans on more than this argument, and is not used.

*Response* (the blanket of Balle et al. 2019). Who does not tell the truth by intention answers uniformly.

**The curve.** Of B answers of the blanket and the own one let a be from U (be x), b from V (be x'), t = a + b. B and t
have the same law under P and Q. Given both, each of the B + 1 answers may be the own one, so a has the weight
``Bin(a; t, 1/2) (p a + q b + z)``, ``z = q (B + 1 - t)``. P exceeds ``e^epsilon Q`` where ``a > k``, so delta is a sum
of binomial tails. Neighbouring B and t are put together on the safe side: an answer more in the blanket costs no
privacy; a fair coin more takes (t, z) to ``(t + 1, z (t + 1) / t)`` and costs none, and neither does a larger z, so
every t of ``t_1 .. t_2`` is dominated by ``(t_1, z(t_2) t_1 / t_2)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, logsumexp

from sordina.accounting._numerics import Array
from sordina.accounting.events import Shuffled
from sordina.accounting.rdp import CornerLoss, corners_of
from sordina.errors import InvalidInput

_GROUPS = (24, 40)
"""How many groups of B, and of t for each, there are at most."""
_POINTS = 256
"""Epsilons at which delta is computed; between them it is bounded by chords."""
_REACH = 13.0
"""Standard deviations of B and t that are told apart."""
_LEAST = 1e-34
"""Where the curve may end: above what lies beyond `_REACH`, 1e-38."""
_SLACK = 1e-9
"""Bound on the relative error of a binomial tail (measured: below 2e-11 up to a million answers)."""


@dataclass(frozen=True)
class ShufflePair:
    """p, q, K, the chance of the blanket, and how many others there are."""

    own: float
    other: float
    categories: int
    blanket: float
    others: int

    @classmethod
    def of(cls, event: Shuffled) -> ShufflePair:
        """The row of the table that ``event`` names."""
        inverse, categories = math.exp(-event.epsilon), int(event.categories) or 2
        whole = 1 + (categories - 1) * inverse
        blanket = categories * inverse / whole if event.categories else inverse
        return cls(1 / whole, inverse / whole, categories, blanket, int(event.people) - 1)

    def deltas(self, epsilons: Array) -> Array:
        """Upper bounds on delta at ``epsilons`` > 0."""
        first, spare, weights = self._groups
        odds = np.expm1(epsilons)[:, None] + 1
        p, q = self.own, self.other
        edge = ((p * odds - q) * first + spare * (odds - 1)) / ((p - q) * (1 + odds))
        k = np.floor(edge) + 1
        half, less = first / 2, first - 1
        up, down, all_ = _tail(k - 1, less), _tail(k, less), _tail(k, first)
        gain = half * ((p - odds * q) * up + (q - odds * p) * down) - spare * (odds - 1) * all_
        size = half * ((p + odds * q) * up + (q + odds * p) * down) + spare * (odds - 1) * all_
        each = np.maximum(gain + _SLACK * size, 0.0) / ((p + q) * half + spare)
        return np.asarray(np.minimum((each * weights).sum(axis=1) * (1 + 1e-12), 1.0))

    @cached_property
    def _groups(self) -> tuple[Array, Array, Array]:
        """t, z and the probability of every group; t = 0 tells nothing and is left out."""
        parts = []
        starts, ends = _grouped(self.others, self.blanket, 0, self.others, _GROUPS[0])
        for size, weight in zip(starts, _between(starts, ends, self.others, self.blanket), strict=True):
            first, last, chances = self._sides(int(size))
            parts.append((first, self.other * (size + 1 - last) * first / last, weight * chances))
        first, spare, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        kept = weights > 0
        return first[kept], spare[kept], weights[kept]

    def _sides(self, size: int) -> tuple[Array, Array, Array]:
        """Groups of t for a blanket of ``size`` answers: the first and last t, and the probability of each."""
        if self.categories == 2:
            return np.array([size + 1.0]), np.array([size + 1.0]), np.ones(1)
        side, hits = 2 / self.categories, self.own + self.other
        starts, ends = _grouped(size, side, 1, size + 1, _GROUPS[1])
        chances = hits * _between(starts - 1, ends - 1, size, side) + (1 - hits) * _between(starts, ends, size, side)
        return starts, ends, chances


def _grouped(trials: int, chance: float, least: int, most: int, groups: int) -> tuple[Array, Array]:
    """First and last numbers of groups that cover ``least .. most``, narrow where a binomial number usually is."""
    mean, spread = trials * chance, math.sqrt(trials * chance * (1 - chance)) + _REACH / 3
    if most - least < groups:
        places = np.arange(least, most + 1)
    else:
        reach = _REACH * np.sinh(3 * np.linspace(-1, 1, groups)) / math.sinh(3)
        places = np.clip(np.floor(mean + spread * reach), least, most)
    starts: Array = np.unique(np.append(places, least)).astype(np.float64)
    return starts, np.append(starts[1:] - 1, float(most))


def _between(low: Array, high: Array, trials: int, chance: float) -> Array:
    """``P[low <= X <= high]`` for a binomial X, rounded up; from the nearer tail."""
    most, before = np.clip(high, 0.0, trials), np.clip(low - 1.0, 0.0, trials)
    left = bdtr(most, trials, chance) - np.where(low > 0, bdtr(before, trials, chance), 0.0)
    right = np.where(low > 0, bdtrc(before, trials, chance), 1.0) - bdtrc(most, trials, chance)
    inside = np.where(low > trials * chance, right, left)
    possible = (low <= trials) & (high >= 0)
    return np.where(possible, np.maximum(inside, 0.0) * (1 + _SLACK) + 1e-300, 0.0)


def _tail(k: Array, t: Array) -> Array:
    """``P[Bin(t, 1/2) >= k]``."""
    k, t = np.broadcast_arrays(k, t)
    inner = (k > 0) & (k <= t)
    result = np.where(k <= 0, 1.0, 0.0)
    result[inner] = bdtrc(k[inner] - 1, t[inner].astype(np.int64), 0.5)
    return result


@dataclass(frozen=True)
class ShuffleLoss:
    """The loss of a shuffled release: the corners of its curve, to be mirrored."""

    curve: CornerLoss

    def tails(self, thresholds: Array) -> tuple[Array, Array]:
        """Steps at the corners."""
        return self.curve.tails(thresholds)

    def span(self, tail: float) -> tuple[float, float]:
        """Up to the corner beyond which at most ``tail`` is left."""
        beyond = np.array(self.curve.upper) <= tail
        last = self.curve.corners[int(np.argmax(beyond))] if tail > 0 and beyond.any() else self.curve.corners[-1]
        return -last, last

    @property
    def leak(self) -> float:
        """None: what one person answers is epsilon-DP, shuffled or not."""
        return self.curve.leak

    @property
    def scale(self) -> float:
        """The largest corner."""
        return self.curve.scale


@lru_cache(maxsize=64)
def shuffle_loss(event: Shuffled) -> ShuffleLoss:
    """The loss that dominates ``event`` under replace-one neighbours.

    Args:
        event: With at least one person.
    """
    if not math.isfinite(event.epsilon):
        raise InvalidInput("answers that are not randomised have no privacy, shuffled or not.")
    pair, end = ShufflePair.of(event), float(event.epsilon)
    low = end * 1e-9
    for _ in range(60):  # where the curve is as good as 0
        middle = math.sqrt(low * end)
        low, end = (low, middle) if pair.deltas(np.array([middle]))[0] <= _LEAST else (middle, end)
        if end < 1.02 * low:
            break
    losses = np.linspace(0.0, min(end, event.epsilon), _POINTS)
    deltas = np.append(pair.deltas(np.maximum(losses, 1e-300)), 0.0)
    losses = np.append(losses, event.epsilon)
    if losses[-2] >= event.epsilon:
        losses, deltas = losses[:-1], np.append(deltas[:-2], 0.0)
    worst = -np.expm1(-event.epsilon) / (1 + np.exp(-event.epsilon))  # unshuffled, at epsilon 0
    return ShuffleLoss(CornerLoss(*corners_of(losses, np.minimum(deltas, worst))))


def shuffle_renyi(event: Shuffled, orders: Array) -> Array:
    """Renyi divergences of the dominating pair, which bound those of ``event``.

    Args:
        event: Under replace-one neighbours.
        orders: Above 1.
    """
    curve = shuffle_loss(event).curve
    losses = np.array(curve.corners[1:])
    upper = np.array(curve.upper)
    masses = np.maximum(upper[:-1] - upper[1:], 0.0) * (1 + 1e-12)
    below = masses * np.exp(-losses)
    rest = max(0.0, 1 - float(masses.sum()) - float(below.sum()))
    points = np.concatenate([-losses, [0.0], losses])
    with np.errstate(divide="ignore"):
        logs = np.log(np.concatenate([below, [rest], masses]))
    return np.asarray(logsumexp((orders[:, None] - 1) * points + logs, axis=1) + 1e-14) / (orders - 1)
