"""The seam of this room: a policy maps per-sample numbers to queries, and states the bound of what it asked.

Contract (tests/contracts runs it over every policy):

- pointwise: the coefficients of sample i depend on sample i and the state only, so micro-batches are free;
- bounded: whatever the vectors are, one sample changes answer k by at most ``bounds(state, adjacency)[k]`` in L2 norm;
- a sample whose norm is not finite gets coefficient zero;
- ``adapt`` reads released values only, and the next state is what the next batch is clipped with. Vectors are large:
  it may write its new vectors over those of the old state, which is used up, but keeps copies of the answers, never
  the answers themselves, whose memory becomes the step's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from sordina._arguments import checked
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency, check_positive
from sordina.queries import Query, Released, Scalars

_RAILS = (2.0**-40, 2.0**40)

State = TypeVar("State")


class Policy(Protocol[State]):
    """How per-sample vectors are bounded, and how the bound adapts. The first query is the gradient."""

    def init(self, size: int) -> State:
        """The state before the first step, for vectors of ``size`` numbers."""
        ...

    def direction(self, state: State) -> Tensor | None:
        """The public unit vector on which projections are wanted, if any."""
        ...

    def ask(self, scalars: Scalars, state: State) -> tuple[Query, ...]:
        """The queries for these samples; pointwise."""
        ...

    def bounds(self, state: State, adjacency: Adjacency) -> tuple[float, ...]:
        """The L2 sensitivity of each query."""
        ...

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        """One noise multiplier per query, that together cost as much as ``noise_multiplier`` (Prop. 1 of 000)."""
        ...

    def adapt(self, state: State, released: Released) -> State:
        """The next state, from noised answers."""
        ...

    def current_threshold(self, state: State) -> float:
        """The current clipping threshold, for people to look at."""
        ...


@dataclass(frozen=True)
class ReleasedNorm:
    """The typical norm of the first gradients, as a policy released it, and whether it is still looking for it.

    A policy that knows it has a method ``released_norm(state)``.
    """

    norm: float
    found: bool


def split_at(policy: Policy[Any], noise_multiplier: float, state: Any) -> tuple[float, ...]:
    """The noise multipliers of a step's queries: those of `Policy.split`, unless they depend on the public state.

    Args:
        policy: A policy; one whose queries change with its state has a method ``split_at(noise_multiplier, state)``.
        noise_multiplier: What they must cost together.
        state: The policy's state in this step.
    """
    own = getattr(policy, "split_at", None)
    return tuple(policy.split(noise_multiplier) if own is None else own(noise_multiplier, state))


def released_norm(policy: Policy[Any], state: Any) -> ReleasedNorm | None:
    """What ``policy`` knows of the typical norm; None if it looks for none.

    Args:
        policy: A policy.
        state: Its state.
    """
    own = getattr(policy, "released_norm", None)
    return None if own is None else own(state)


def shrink(norms: Tensor, threshold: float) -> Tensor:
    """``min(1, C / |g|)``, and 0 where the norm is not finite.

    >>> import torch
    >>> shrink(torch.tensor([0.0, 1.0, 4.0, float("inf")]), 2.0)
    tensor([1.0000, 1.0000, 0.5000, 0.0000])
    """
    return (threshold / norms).clamp_(max=1.0).nan_to_num_(0.0)


def moved(threshold: float, exponent: float) -> float:
    """``threshold * exp(exponent)``, kept between 2^-40 and 2^40.

    Thresholds that follow a noisy answer are walks without an end: with few samples a step, noise alone takes one to
    where the noise that it needs, or the exponential, can no longer be computed, and a run would stop half-way. What
    was released decides, so the rails are post-processing.

    >>> moved(1.0, 0.0), moved(1.0, -1e6) == 2.0**-40, moved(1.0, 1e6) == 2.0**40
    (1.0, True, True)

    Args:
        threshold: Where it stands.
        exponent: By how much its logarithm moves.
    """
    lowest, highest = _RAILS
    return min(max(threshold * math.exp(min(max(exponent, -100.0), 100.0)), lowest), highest)


def ball(radius: float, adjacency: Adjacency) -> float:
    """The largest change of a sum of vectors of norm at most ``radius``: r when one comes or goes, 2r when replaced."""
    return radius if adjacency is Adjacency.ADD_REMOVE else 2 * radius


def side_query(noise_multiplier: float, inflation: float, shares: Sequence[float] = (1.0,)) -> tuple[float, ...]:
    """Split the noise between the gradient and side queries (Prop. 1 of 000).

    The gradient's multiplier grows by the factor ``1 + inflation``; the side queries divide what that leaves by
    ``shares``, which add up to one: ``nu^-2 = nu_g^-2 + sum nu_k^-2``.

    >>> [round(nu, 3) for nu in side_query(1.0, 0.01)]
    [1.01, 7.124]
    """
    left = 1 - (1 + inflation) ** -2
    return (noise_multiplier * (1 + inflation), *(noise_multiplier * (share * left) ** -0.5 for share in shares))


def spread(multipliers: Sequence[float]) -> float:
    """The single multiplier that several joint Gaussian queries cost: the inverse of `side_query`.

    >>> round(spread(side_query(0.7, 0.01)), 12)
    0.7
    """
    if any(nu == 0 for nu in multipliers):
        return 0.0
    return float(sum(nu**-2 for nu in multipliers) ** -0.5)


def policy_facts(policy: Any) -> dict[str, Any]:
    """A policy as plain data: its kind and its fields, for ``privacy.json``.

    >>> policy_facts(Decay(0.2, 50))
    {'kind': 'Decay', 'first': 0.2, 'halving': 50, 'power': 1.0}

    Args:
        policy: A policy, `sordina.clipping.PerLayer`, or a part of one.
    """

    def plain(value: Any) -> Any:
        if is_dataclass(value):
            return policy_facts(value)
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return getattr(value, "__qualname__", type(value).__name__)

    told = {one.name: plain(getattr(policy, one.name)) for one in fields(policy)} if is_dataclass(policy) else {}
    return {"kind": type(policy).__name__, **told}


# How fast something adapts as the steps go by.


@checked
@dataclass(frozen=True)
class Decay:
    """``first / (1 + step / halving) ** power``: for ever the same rate if ``halving`` is infinite.

    With power 1 the rate is half the first after ``halving`` steps, and the sum of all grows without end: any start can
    be left behind. With power 2 the sum is about ``first * halving``: what was found early stays. It does not depend
    on the data, so it is free.

    >>> Decay(0.2, 50)(50), Decay(0.2, 50, power=2)(50)
    (0.1, 0.05)
    """

    first: float
    halving: float = math.inf
    power: float = 1.0

    def __post_init__(self) -> None:
        check_positive("first rate of a schedule", self.first)
        check_positive("power of a schedule", self.power)
        if not self.halving > 0:
            raise InvalidInput(f"the number of steps until a rate has halved must be positive, got {self.halving}.")

    def __call__(self, step: int) -> float:
        """The rate at ``step``, counted from 0."""
        return self.first / math.pow(1 + step / self.halving, self.power)
