"""Noise that cancels over the steps of a run: ``C^-1 z`` instead of ``z``, accounted exactly.

A run releases sums ``x_1 .. x_T``, one a step, each with sensitivity one (in units of its own bound, which may change
from step to step by what was released). Weights follow their *prefix sums*, so noise that partly takes back what
it added before does less harm. With a lower triangular C and z standard Gaussian, a step adds

    nu (C^-1 z)_t   to x_t,        which tells as much as        y = C x + nu z:

y follows from the released values and they from y. Here C is a Toeplitz matrix of coefficients ``c_0 >= c_1 >= .. >=
0`` with ``sum c_k^2 = 1``; its number of *bands* is how many are not zero.

**Theorem 1** (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4, here for adaptive
steps). The data are divided at random into P parts, every unit by a coin of its own; step t draws a Poisson sample of
rate p from part ``t mod P``. If C has at most P bands, t steps cost no more than ``ceil(t / P)`` Poisson-sampled
Gaussians of rate p and noise multiplier nu (add/remove neighbours).
*Proof.* Reveal everybody's part and everybody else's coins: they have one law with and without the unit in question,
and divergences are jointly convex. Let its part be j. It can take part in the steps ``s = j, j + P, ..``, and the sum
of step s enters the rows ``s .. s + P - 1`` of y only. So the rows fall into blocks, one for each such s, of which none
depends on the unit but through its coin B_s and its vector g_s, ``|g_s| <= 1``, which is settled by what was released
before s. Given that, row t of the block is ``f_t(released before, others) + B_s c_(t-s) g_s + nu z_t`` with one and the
same f_t for both neighbours. The likelihood ratio is that of ``B_s |c| |g_s| + nu z`` with one Gaussian z: a
Poisson-sampled Gaussian whose sensitivity is at most one. Blocks follow each other, each chosen by what the earlier
ones released, and dominating pairs compose adaptively (Zhu, Dong and Wang 2022). A run that ends early has seen
``ceil(t / P)`` blocks at most. QED

**Theorem 2** (Denisov et al. 2022, Choquette-Choo et al. 2023). For any number of bands, sampled or not, a run of T
steps costs no more than one Gaussian of noise multiplier ``nu / S`` with

    S^2 = max_j sum over s, s' in {j, j + P, ..} of <C_s, C_s'>,        C_s the columns of C.

*Proof.* The unit shifts row t of y by ``m_t = sum_s c_(t-s) B_s g_s``, of norm at most ``a_t = sum_s c_(t-s)`` as no
coefficient is negative. Given what was released before, row t is a Gaussian whose mean moves by a_t at most; such
steps compose adaptively to the Gaussian of ``sum_t a_t^2 = S^2``. QED. (`sensitivity`: j = 0 is the worst, the others
have the same ``a_t`` j rows later. A prefix is a part of the whole, so charging the whole is sound.)

**Other queries of a step.** Policies ask numbers beside the sum, and share a step's precision: the sum is noised by
``nu / w_s`` and the others, *independently*, by what is left, ``1 - w_s^2``. That is the theorem with a C for each
query: in theorem 1 a block has sensitivity ``w_s^2 |C_s|^2 + (1 - w_s^2) <= 1``; in theorem 2 ``|C_s|^2`` is replaced
by 1 in S, also for the last columns, which the end of the run cuts short.

**Breaks.** A run that goes on after a crash has lost its past noise: a checkpoint never holds it. It begins a new C and
new parts at the next multiple of P; the steps up to there are charged and left out. C is then made of two blocks: every
column is as it was or shorter, no two columns share more rows than before, and the blocks of theorem 1 are as
many as before. So the price stays the same.

**Groups.** The theorems speak of one unit. Of a group whose members are in several parts the columns overlap, and
`accounting.group` of a Poisson-sampled event is not proved for them: multiply the guarantee of one unit out.

**Floating point.** Step t adds one Gaussian of the exact law of `sordina.random.noise` to ``x_t - nu sum_k (c_k / c_0)
n_(t-k)``, n being the noise of earlier steps as the difference of what was released and what was summed, in double
precision. So the mean of a release is, up to 2^-53, the row of C x above and a function of what was released. (To
make past noise again from a key, instead of keeping it, would need noise drawn apart from the sum, with another law.)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sordina._arguments import checked
from sordina.errors import InvalidInput

Coefficients = tuple[float, ...]


@runtime_checkable
class CorrelatedNoise(Protocol):
    """How the noise of a step depends on that of the steps before: the coefficients of C."""

    def coefficients(self, steps: int) -> Coefficients:
        """``c_0, c_1, ..`` for a run of ``steps`` steps: positive first, not rising, of squares that sum to one."""
        ...

    def parts(self, batch_size: float, population: int, steps: int) -> int:
        """Into how many parts the data are divided."""
        ...


@checked
@dataclass(frozen=True)
class BandedNoise:
    """A banded C (theorem 1): sampling still amplifies, at ``bands`` times the rate in one of ``bands`` steps.

    Args:
        bands: How many; 1 is independent noise.
        given: Coefficients to use instead of those that make the noise of prefix sums least; they are normalised.
    """

    bands: int
    given: Coefficients | None = None

    def __post_init__(self) -> None:
        if self.bands < 1:
            raise InvalidInput(f"a banded matrix has at least one band, got {self.bands}.")
        if self.given is not None:
            normalised(self.given)
            if len(self.given) != self.bands:
                raise InvalidInput(f"{len(self.given)} coefficients were given for {self.bands} bands.")

    def coefficients(self, steps: int) -> Coefficients:
        """Those given, or the best for prefix sums of ``steps`` steps."""
        return optimal(steps, min(self.bands, steps)) if self.given is None else normalised(self.given)

    def parts(self, batch_size: float, population: int, steps: int) -> int:
        """As many as there are bands."""
        if self.bands * batch_size > population:
            raise InvalidInput(
                f"{self.bands} bands need {self.bands} batches in the data: {population} units are fewer than "
                f"{self.bands} times {batch_size:g}. Take fewer bands, or a smaller batch size."
            )
        return self.bands


@checked
@dataclass(frozen=True)
class LambdaCGD:
    """``z_t - decay z_(t-1)``: ``C = 1 / (1 - decay L)``, in which every step counts on, so sampling does not amplify.

    Theorem 2: every unit takes part at most once in a pass over the data.

    Args:
        decay: The lambda of lambda-CGD, in [0, 1); 0 is independent noise.
    """

    decay: float

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise InvalidInput(f"the decay lies in [0, 1), got {self.decay}.")

    def coefficients(self, steps: int) -> Coefficients:
        """``decay^k``, normalised."""
        return normalised(tuple(self.decay**k for k in range(steps)))

    def parts(self, batch_size: float, population: int, steps: int) -> int:
        """As many as there are batches in the data; one where noise is independent."""
        return 1 if self.decay == 0 else max(1, int(population // batch_size))


@dataclass(frozen=True)
class ToeplitzNoise:
    """``C = sqrt(A)``, A the matrix of prefix sums: ``c_k = binom(2k, k) / 4^k``, normalised, over all steps of a run.

    Fichtenberger et al. 2022: ``C C = A`` without normalisation. Theorem 2 holds, as no coefficient is negative or
    larger than the last: every unit takes part at most once in a pass over the data, and sampling does not amplify;
    only in a run of one pass or less, whose bands are no more than there are parts, theorem 1 does. The noise of
    *all* earlier steps is kept in memory, and enters every step: for long runs of large models take `BandedNoise`.
    """

    def coefficients(self, steps: int) -> Coefficients:
        """``binom(2k, k) / 4^k``, normalised."""
        return _square_root(steps)

    def parts(self, batch_size: float, population: int, steps: int) -> int:
        """As many as there are batches in the data."""
        return max(1, int(population // batch_size))


@functools.lru_cache(maxsize=64)
def _square_root(steps: int) -> Coefficients:
    k = np.arange(1, steps)
    return normalised((1.0, *np.cumprod((2 * k - 1) / (2 * k)).tolist()))


def normalised(given: Coefficients) -> Coefficients:
    """``given`` with squares that sum to one or a little less; refused where no theorem of this file holds.

    Args:
        given: Positive first, not rising, none negative.

    >>> normalised((4.0, 3.0))
    (0.8, 0.6)
    """
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or values[0] <= 0:
        raise InvalidInput("the coefficients of correlated noise are finite numbers, of which the first is positive.")
    if (values < 0).any() or (np.diff(values) > 0).any():
        raise InvalidInput("the coefficients of correlated noise are not negative, and none is larger than the last.")
    values = values[values > 0]
    return tuple(float(one) for one in _unit(values))


def coefficients_of(noise: CorrelatedNoise, steps: int) -> Coefficients:
    """What ``noise`` says for a run of ``steps`` steps; refused where no theorem of this file holds.

    Args:
        noise: Ours, or a class of one's own.
        steps: Of the run.
    """
    given = tuple(float(one) for one in noise.coefficients(steps))
    if not math.fsum(one**2 for one in normalised(given)) >= math.fsum(one**2 for one in given) * (1 - 2.0**-50):
        raise InvalidInput(
            f"the squares of the coefficients of {type(noise).__name__} add up to more than one: the sensitivity of a "
            "step would be larger than what is paid for. Divide them by their length (correlated.normalised)."
        )
    return given


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of length one, or shorter by what rounding may do."""
    values = values / math.sqrt(math.fsum(float(one) ** 2 for one in values))
    while math.fsum(float(one) ** 2 for one in values) > 1:
        values = values * (1 - 2.0**-52)
    return values


def inverse(coefficients: Coefficients, steps: int) -> NDArray[np.float64]:
    """The first ``steps`` coefficients of ``C^-1``.

    Args:
        coefficients: Of C.
        steps: How many.

    >>> inverse((1.0, 0.5), 3).tolist()
    [1.0, -0.5, 0.25]
    """
    return _divided(coefficients, np.eye(1, steps)[0])


def _divided(coefficients: Coefficients, series: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], coefficients, series))


def sum_error(coefficients: Coefficients, steps: int) -> float:
    """The standard deviation of the noise in a prefix sum, root mean square over the steps, at noise multiplier one.

    Args:
        coefficients: Of C.
        steps: How many prefix sums there are.

    >>> round(sum_error((1.0,), 9), 3)                 # independent noise: sqrt(t), t = 1 .. 9
    2.236
    """
    sums = np.cumsum(inverse(coefficients, steps))
    return float(np.sqrt(np.cumsum(sums**2).mean()))


def sensitivity(coefficients: Coefficients, steps: int, separation: int) -> float:
    """S of theorem 2, rounded up, with every column counted at its whole length.

    Args:
        coefficients: Of C, normalised.
        steps: T.
        separation: P, how many steps lie between two in which a unit takes part, at least.

    >>> round(sensitivity((0.8, 0.6), 4, 2) ** 2, 9)       # two columns that share no row
    2.0
    """
    full = np.zeros(steps)
    full[: min(steps, len(coefficients))] = coefficients[:steps]
    shift = np.zeros(steps)
    for start in range(0, steps, separation):
        shift[start:] += full[: steps - start]
    cut = math.fsum(1 - float(np.sum(full[: steps - start] ** 2)) for start in range(0, steps, separation))
    return math.sqrt((float(np.sum(shift**2)) + max(0.0, cut)) * (1 + 4 * steps * 2.0**-52))


@functools.lru_cache(maxsize=64)
def optimal(steps: int, bands: int) -> Coefficients:
    """Coefficients of ``bands`` bands that make `sum_error` over ``steps`` steps least, columns having length one.

    With e the coefficients of ``A C^-1``, A the matrix of prefix sums, the error is ``sum_k (1 - k / T) e_k^2``, and
    ``d e / d c_j = -L^j (C^-1 e)``: minimised from the coefficients of ``sqrt(A)`` (Fichtenberger et al. 2022).

    Args:
        steps: T.
        bands: At most this many coefficients.

    >>> [round(one, 3) for one in optimal(100, 2)]
    [0.796, 0.606]
    """
    if bands == 1:
        return (1.0,)
    from scipy.optimize import minimize

    weights = 1 - np.arange(steps) / steps
    ones = np.ones(steps)

    def loss(rest: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        c = (1.0, *rest.tolist())
        sums = _divided(c, ones)
        turned = _divided(c, sums)
        error, length = float(np.sum(weights * sums**2)), 1 + float(np.sum(rest**2))
        slope = [-2 * float(np.sum((weights * sums)[j:] * turned[: steps - j])) for j in range(1, bands)]
        return math.log(error * length), np.asarray(slope) / error + 2 * rest / length

    k = np.arange(1, bands)
    start = np.cumprod((2 * k - 1) / (2 * k)).astype(np.float64)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * (bands - 1))
    best = found.x if math.isfinite(found.fun) and found.fun <= loss(start)[0] else start
    return normalised(tuple(np.minimum.accumulate([1.0, *np.maximum(best, 0.0)]).tolist()))
