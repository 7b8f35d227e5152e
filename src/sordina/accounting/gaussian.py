"""Gaussian noise in closed form: the analytic mechanism, several queries as one, and joint queries (000 Prop. 1).

Answers to adaptively chosen Gaussian queries with multipliers ``nu_i`` dominate, and are dominated by, one Gaussian
query with ``nu^-2 = sum_i nu_i^-2``: the privacy loss of each is normal with mean ``1/(2 nu_i^2)`` and variance
``1/nu_i^2``, and independent normals add.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from sordina._arguments import checked
from sordina.accounting._numerics import log_ndtr, smooth_falling_root
from sordina.errors import InvalidInput
from sordina.privacy import check_positive

_UNIT = 2.0**-53
_LEAST = sys.float_info.min
"""What a delta that underflows is rounded up to."""


def combined_multiplier(multipliers: Iterable[float]) -> float:
    """The one multiplier that costs as much as all of ``multipliers``: ``nu^-2 = sum nu_i^-2``.

    >>> combined_multiplier([2.0, 2.0, 2.0, 2.0])
    1.0
    >>> combined_multiplier([])
    inf
    """
    values = [float(value) for value in multipliers]
    if any(not value >= 0 for value in values):
        raise InvalidInput(f"noise multipliers must be >= 0, got {values}.")
    if not values:
        return math.inf
    least = min(values)
    if least == 0 or math.isinf(least):
        return least
    return least / math.sqrt(math.fsum((least / value) ** 2 for value in values))


@checked
def joint(noise_multiplier: float, inflation: float = 0.01) -> tuple[float, float]:
    """Split one Gaussian query into a gradient and a side query at equal cost: ``(nu_g, nu_q)``, 000 Prop. 1.

    ``nu_g = (1 + inflation) nu``, and ``nu_q`` is what ``nu^-2 = nu_g^-2 + nu_q^-2`` leaves.

    Args:
        noise_multiplier: Standard deviation over sensitivity.

    >>> [round(value, 3) for value in joint(1.0, 0.01)]
    [1.01, 7.124]
    """
    check_positive("noise multiplier", noise_multiplier)
    check_positive("inflation", inflation)
    # nu_q = nu (1+i) / sqrt((1+i)^2 - 1), with the difference written without cancellation.
    side = noise_multiplier * (1 + inflation) / math.sqrt(inflation * (2 + inflation))
    return noise_multiplier * (1 + inflation), side


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """``Phi(1/(2s) - eps s) - e^eps Phi(-1/(2s) - eps s)``, Balle and Wang 2018, Theorem 8, rounded up.

    Args:
        noise_multiplier: Standard deviation over sensitivity.
        epsilon: The epsilon at which delta is wanted.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if noise_multiplier == 0:
        return 1.0
    if math.isinf(noise_multiplier) or math.isinf(epsilon):
        return 0.0
    shift, scaled = 0.5 / noise_multiplier, epsilon * noise_multiplier
    upper = log_ndtr(shift - scaled)
    lower = epsilon + log_ndtr(-shift - scaled)
    rounding = 8 * _UNIT * (1 + (shift + scaled) * (shift + scaled))
    return min(max(math.exp(upper) * (-math.expm1(min(lower - upper, 0.0)) + rounding), _LEAST), 1.0)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The least epsilon with ``gaussian_delta(noise_multiplier, epsilon) <= delta``, rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    if noise_multiplier == 0 or delta < _LEAST:
        return math.inf
    low, high = 0.0, 1.0
    while gaussian_delta(noise_multiplier, high) > delta:
        low, high = high, 2 * high
        if math.isinf(high):
            return math.inf
    target = math.log(delta)
    return smooth_falling_root(lambda epsilon: math.log(gaussian_delta(noise_multiplier, epsilon)) - target, low, high)
