"""Who shares secrets with whom in secure aggregation, and how many shares are needed: SecAgg+ (Bell et al. 2020).

The clients of a round stand on a circle in random order, and each knows the ``degree / 2`` next ones on either side
(all of them, if there are few). The probability that this goes wrong is computed, not estimated. With n clients, of
which c collude with the server and at most d drop out, each set drawn independently of the order on the circle:

=========================================================  =====================================================
what goes wrong                                            its probability is at most
=========================================================  =====================================================
*security*: an honest client has ``threshold`` colluding   ``n P(H(n - 1, c, degree) >= threshold)``
neighbours, who know all its secrets
*security*: the honest clients that remain fall into       ``n C(c + d, degree / 2) / C(n, degree / 2)``
parts, so that more than one sum is told                   (a gap of degree / 2 on the circle)
*success*: fewer than ``threshold`` neighbours of a        ``n P(H(n - 1, d, degree) > degree - threshold)``
client remain, and the round is lost
=========================================================  =====================================================

H is hypergeometric. With all pairs (``degree = n - 1``) only the first and the last remain, without chance.

**A server that lies** to some neighbours that a client dropped out, and to others that it did not, gets one share from
each honest one and both from each of k colluding ones: never ``threshold`` of both secrets if ``2 threshold > degree +
k``. Where drop-outs leave room for it, the threshold is at least that (`AggregationGraph.secrets_stay_apart`). That is
not all a server that lies can do: see `secure_aggregation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import hypergeom

from sordina.errors import InvalidInput

SECURITY = 2.0**-40
"""The probability, per round, that the graph protects less than is said; it is added to delta."""
_SUCCESS = 2.0**-20


@dataclass(frozen=True)
class AggregationGraph:
    """How many neighbours each client has and how many shares of a secret are needed.

    Args:
        clients: How many clients are asked in a round.
        degree: Neighbours of each; ``clients - 1`` means all pairs.
        threshold: Shares that give a secret.
        failure: The most likely that security fails in one round.
        secrets_stay_apart: Whether a server that tells neighbours different things cannot get both secrets of a client.
    """

    clients: int
    degree: int
    threshold: int
    failure: float
    secrets_stay_apart: bool = False

    def neighbours(self, order: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The neighbours of every client.

        Args:
            order: The clients, in an order drawn at random.

        >>> AggregationGraph(5, 2, 2, 0.0).neighbours([4, 0, 3, 1, 2])[3]
        (0, 1)
        """
        count = len(order)
        if self.degree >= count - 1:
            return {one: tuple(other for other in order if other != one) for one in order}
        steps = [step for step in range(-(self.degree // 2), self.degree // 2 + 1) if step]
        return {one: tuple(order[(place + step) % count] for step in steps) for place, one in enumerate(order)}


@lru_cache(maxsize=64)
def plan_graph(clients: int, honest_share: float, dropout: float) -> AggregationGraph:
    """The fewest neighbours with which all of the above is unlikely enough; all pairs if no number below suffices.

    Args:
        clients: How many clients are asked in a round.
        honest_share: The share of them that does not collude.
        dropout: The largest share that may drop out in a round.

    >>> plan_graph(10, 0.7, 0.3).degree, plan_graph(10_000, 0.9, 0.05).degree < 200
    (9, True)
    """
    if clients < 3:
        raise InvalidInput(f"a sum hides its terms among at least 3 clients, got {clients}.")
    if not 0 < honest_share <= 1 or not 0 <= dropout < 1:
        raise InvalidInput("the honest share lies in (0, 1], the dropout in [0, 1).")
    colluding, gone = clients - math.floor(honest_share * clients), math.floor(dropout * clients)
    low, high = 2, clients - 1
    while low < high:
        degree = (low + high) // 4 * 2 if high - low > 2 else low
        if _fitting(clients, colluding, gone, degree) is None:
            low = degree + 2
        else:
            high = degree
    found = _fitting(clients, colluding, gone, min(high, clients - 1))
    return found if found is not None and found.degree < clients - 1 else _all_pairs(clients, colluding, gone)


def _fitting(clients: int, colluding: int, gone: int, degree: int) -> AggregationGraph | None:
    """The threshold in the middle of what security and success allow, if they leave one."""
    if degree >= clients - 1:
        return None
    others = clients - 1
    parted = clients * _gap(clients, min(colluding + gone, clients), degree // 2)
    if parted > SECURITY / 2:
        return None
    thresholds = np.arange(1, degree + 1)
    known = clients * hypergeom.sf(thresholds - 1, others, min(colluding, others), degree)
    lost = clients * hypergeom.sf(degree - thresholds, others, min(gone, others), degree)
    allowed = np.flatnonzero((known <= SECURITY / 2) & (lost <= _SUCCESS))
    if not len(allowed):
        return None
    # no honest client has more colluding neighbours, but with the probability that is counted
    most = int(np.flatnonzero(known <= SECURITY / 2)[0])
    firm = allowed[2 * thresholds[allowed] > degree + most]
    middle = int(thresholds[allowed[len(allowed) // 2]])
    threshold = max(middle, int(thresholds[firm[0]])) if len(firm) else middle
    failure = parted + (SECURITY / 2 if len(firm) else known[threshold - 1])
    return AggregationGraph(clients, degree, threshold, float(failure), bool(len(firm)))


def _gap(clients: int, absent: int, length: int) -> float:
    """``C(absent, length) / C(clients, length)``: that so many places in a row are empty."""
    if length > absent:
        return 0.0
    return math.exp(sum(math.log((absent - step) / (clients - step)) for step in range(length)))


def _all_pairs(clients: int, colluding: int, gone: int) -> AggregationGraph:
    """Every client knows every other; more than the colluding and no more than the remaining must help."""
    least, most = colluding + 1, clients - 1 - gone
    if least > most:
        raise InvalidInput(
            f"of {clients} clients {colluding} may collude and {gone} drop out: whoever helps to unmask could then be "
            "the colluding ones alone. Assume fewer of either, or ask more clients."
        )
    firm = (clients - 1 + colluding) // 2 + 1
    threshold = max((least + most) // 2, firm) if firm <= most else (least + most) // 2
    return AggregationGraph(clients, clients - 1, threshold, 0.0, firm <= most)
