"""What a run's noise will do to what it learns, from public facts alone: said before anything is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sordina.federated.compression import Compressed
from sordina.federated.decentralized.gopa import GopaNoise
from sordina.federated.privacy.central import Central
from sordina.federated.privacy.distributed import Distributed
from sordina.federated.privacy.local import Local, RecordNoise
from sordina.federated.privacy.placement import FederationFacts
from sordina.federated.privacy.records import PrivateUpdates
from sordina.federated.round import FederatedMethod
from sordina.privacy import format_up

TOO_NOISY = 0.5
"""From this share on the noise, not the clients, decides where a model ends: measured in tests/federated."""


@dataclass(frozen=True)
class Forecast:
    """How a run will fare, as far as public facts tell.

    Args:
        noise_share: The expected length of all noise that the model takes up over the run, as a share of the longest
            way that the clients could move it if all agreed in every round. None where there is no such noise.
        noise_multiplier: Of the placement.
        warning: What to say of it, if anything.
    """

    noise_share: float | None
    noise_multiplier: float | None = None
    warning: str | None = None


def forecast(method: FederatedMethod, facts: FederationFacts, size: int, limit: Fraction | None = None) -> Forecast:
    """Compare noise and signal of a run before it begins.

    Noise of standard deviation s on each of d numbers, in each of T rounds, adds up to ``s sqrt(d T)``; updates clipped
    to C that all point the same way add up to ``C T``.

    Args:
        method: The run's parts.
        facts: What is public about it.
        size: The length of a client's vector.
        limit: That each client sets for its own account.
    """
    placement: Any = method.placement.placement if isinstance(method.placement, Compressed) else method.placement
    each = _noise_of_a_round(placement, method.work, facts, size)
    if each is None:
        return Forecast(None, warning=_withholding(placement.cost(size), facts, limit))
    share = each * math.sqrt(size / facts.rounds)
    nu = float(placement.plan.noise_multiplier if isinstance(placement, Central) else placement.noise_multiplier)
    return Forecast(share, nu, _warning(placement, facts, size, share) if share > TOO_NOISY else None)


def _withholding(cost: Fraction, facts: FederationFacts, limit: Fraction | None) -> str | None:
    """What to say where clients reach their limits before the rounds are over."""
    if limit is None or not cost:
        return None
    allowed, wanted = int(limit // cost), math.ceil(facts.rounds * facts.clients_per_round / facts.clients)
    if allowed >= wanted:
        return None
    return (
        f"WARNING: a client leaks {format_up(float(cost))} each time, so within its limit of {float(limit):.4g} it "
        f"takes part {allowed} times, where {facts.rounds} rounds want it about {wanted} times: later rounds "
        "will have few answers, or none. Run fewer rounds, ask fewer clients in each, or raise the noise multiplier or "
        "the limit."
    )


def _noise_of_a_round(placement: Any, work: Any, facts: FederationFacts, size: int) -> float | None:
    """The standard deviation of the noise on a round's mean, relative to the longest mean update."""
    clients = facts.clients_per_round
    if isinstance(placement, Central):
        groups = len(placement.columns(size))
        return float(placement.multipliers(groups)[0][0]) / clients
    if isinstance(placement, Distributed):
        return placement.noise_multiplier * math.sqrt(clients / placement.honest) / clients
    if isinstance(placement, GopaNoise):
        return placement.independent / placement.threshold / math.sqrt(clients)
    if isinstance(placement, Local):
        return 2 * placement.noise_multiplier / math.sqrt(clients)
    if isinstance(placement, RecordNoise):
        return placement.noise_multiplier / (float(getattr(work, "divisor", 1.0)) * math.sqrt(clients))
    if isinstance(placement, PrivateUpdates):
        per_step = placement.noise_multiplier / placement.sampler.expected_batch_size
        return per_step / math.sqrt(placement.steps * clients)
    return None


def _warning(placement: Any, facts: FederationFacts, size: int, share: float) -> str:
    """How much more would be needed for half of `TOO_NOISY`."""
    factor = share / (TOO_NOISY / 2)
    if isinstance(placement, (RecordNoise, PrivateUpdates)):
        remedy = f"about {factor:.2g} times as many records per client"
    elif isinstance(placement, Central):
        everybody, present = (math.ceil(factor * count) for count in (facts.clients, facts.clients_per_round))
        remedy = f"about {everybody:,} clients ({present:,} in a round)"
    else:
        remedy = f"about {math.ceil(factor**2 * facts.clients_per_round):,} clients in a round"
    return (
        f"WARNING: too much noise to learn from: over {facts.rounds} rounds the noise will move the model {share:.2g} "
        f"times as far as {facts.clients_per_round} of {facts.clients} clients could if they all agreed. At this "
        f"budget a model of {size:,} numbers needs {remedy}; or raise epsilon, train fewer numbers, or choose "
        "another kind of privacy."
    )
