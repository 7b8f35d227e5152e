"""Groups: what an event costs for several units at once.

========================  =========================================================================================
event                     for a group of s
========================  =========================================================================================
Gaussian, Laplace         the sensitivity is s times as large, so the multiplier is divided by s
PureDP                    ``s eps``
ApproximateDP             ``(s eps, s e^((s-1) eps) delta)``, 000 chapter 1
ZeroConcentrated          ``s^2 rho`` (Bun and Steinke 2016, Proposition 27)
PoissonSampled Gaussian   `GroupSampled`: a binomial number of the group's units takes part
anything else             none; `group_epsilon` then goes through the (epsilon, delta) of one unit
========================  =========================================================================================
"""

from __future__ import annotations

import math

from sordina._arguments import checked
from sordina.accounting._numerics import falling_root
from sordina.accounting.accountants import accountant as _accountant
from sordina.accounting.events import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    Repeated,
    ZeroConcentrated,
)
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import Adjacency, Guarantee, check_delta


@checked
def group(event: Event, size: int) -> Event:
    """``event`` as a group of ``size`` units meets it.

    >>> group(Gaussian(3.0), 3)
    Gaussian(noise_multiplier=1.0)
    """
    if size < 1 or size != int(size):
        raise InvalidInput(f"a group has at least one member, got {size}.")
    if size == 1:
        return event
    if isinstance(event, Composed):
        return Composed(tuple(group(part, size) for part in event.events))
    if isinstance(event, Repeated):
        return Repeated(group(event.event, size), event.count)
    return _grouped(event, int(size))


def _grouped(event: Event, size: int) -> Event:
    if isinstance(event, Gaussian | Laplace):
        return type(event)(event.noise_multiplier / size)
    if isinstance(event, PureDP):
        return PureDP(size * event.epsilon)
    if isinstance(event, ApproximateDP):
        claim = Guarantee(event.epsilon, event.delta).group(size)
        return ApproximateDP(claim.epsilon, claim.delta)
    if isinstance(event, ZeroConcentrated):
        return ZeroConcentrated(size**2 * event.rho)
    if isinstance(event, PoissonSampled) and isinstance(event.event, Gaussian):
        return GroupSampled(event.rate, size, event.event)
    raise Unsupported(f"no event describes {type(event).__name__} for a group. Use group_epsilon.")


@checked
def group_epsilon(
    event: Event,
    delta: float,
    size: int,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
) -> float:
    """The epsilon of ``event`` at ``delta`` for a group of ``size``: the group's own event where there is one.

    Else the least ``s eps`` with ``s e^((s-1) eps) delta_1 <= delta``, (eps, delta_1) being the guarantee of one unit.

    Args:
        adjacency: The neighbours of the guarantee: add or remove one unit, or replace one.
        accountant: The accountant's name: pld (the tightest), rdp, gdp, zcdp, advanced or basic.

    >>> group_epsilon(PureDP(0.5), 0.0, 3)
    1.5
    """
    check_delta(delta)
    judge = _accountant(accountant)
    try:
        return judge.epsilon(group(event, size), delta, adjacency)
    except Unsupported:
        if delta == 0:
            return size * judge.epsilon(event, 0.0, adjacency)

    def excess(fraction: float) -> float:
        """How far above delta the group is when one unit gets ``delta / fraction``, in logarithms."""
        epsilon = judge.epsilon(event, delta / fraction, adjacency)
        return math.log(size / fraction) + (size - 1) * epsilon

    fraction = falling_root(excess, size, 1e200, 1e-3)
    return size * judge.epsilon(event, delta / fraction, adjacency) if excess(fraction) <= 0 else math.inf
