"""Who talks with whom: named graphs, files of edges, gossip weights, distances, and the graphs of SecAgg+.

====================  ========================================================================================
`complete`            everybody with everybody
`ring`                party i with i - 1 and i + 1
`grid`                a torus of rows and columns, as square as n allows
`exponential`         party i with i +- 1, 2, 4, 8, ...
`erdos-renyi:P`       every pair with chance P; drawn again until it is connected
`k-out:K`             every party chooses K others at random; an edge is one choice at least
FILE                  a text file with two party numbers on each line, counted from 0
====================  ========================================================================================

Who shares secrets with whom in secure aggregation, and how many shares are needed: SecAgg+ (Bell et al. 2020).

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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.stats import hypergeom

from sordina.errors import InvalidInput
from sordina.federated.decentralized.lattice import WEIGHT_BITS

NAMES = ("complete", "ring", "grid", "exponential", "erdos-renyi:P", "k-out:K")
_TRIES = 100
_LARGEST_FILE = 1 << 28
_MOST_COMPLETE = 5000

Edges = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CommunicationGraph:
    """An undirected graph without loops on parties 0 to n - 1."""

    name: str
    parties: int
    edges: Edges
    """``(m, 2)``, the smaller number first, sorted, no pair twice."""

    def __post_init__(self) -> None:
        if self.parties < 2:
            raise InvalidInput(f"a network has at least two parties, got {self.parties}.")
        pairs = np.asarray(self.edges, dtype=np.int64).reshape(-1, 2)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= self.parties):
            raise InvalidInput(f"an edge of {self.name} names a party that is not among 0 to {self.parties - 1}.")
        pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
        object.__setattr__(self, "edges", np.unique(pairs, axis=0))

    @property
    def adjacency(self) -> Any:
        """A sparse symmetric matrix of ones and zeros."""
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        shape = (self.parties, self.parties)
        return sparse.csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=shape)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """How many neighbours each party has."""
        return np.bincount(self.edges.ravel(), minlength=self.parties).astype(np.int64)

    @property
    def connected(self) -> bool:
        """Whether every party can be reached from every other."""
        return int(csgraph.connected_components(self.adjacency, directed=False)[0]) == 1

    def neighbours(self, party: int) -> NDArray[np.int64]:
        """The parties that ``party`` talks with, in order."""
        rows: Any = self.adjacency
        return np.sort(rows.indices[rows.indptr[party] : rows.indptr[party + 1]]).astype(np.int64)

    def distances(self, party: int) -> NDArray[np.float64]:
        """How many edges each party is away from ``party``; inf if it cannot be reached."""
        steps = csgraph.shortest_path(self.adjacency, "D", directed=False, unweighted=True, indices=[party])[0]
        return np.asarray(steps, dtype=np.float64)

    def among(self, kept: NDArray[np.bool_]) -> CommunicationGraph:
        """The graph between the ``kept`` parties, numbered anew."""
        places = np.cumsum(kept) - 1
        inside = kept[self.edges].all(axis=1)
        return CommunicationGraph(self.name, int(kept.sum()), places[self.edges[inside]])

    def gossip_weights(self, bits: int = WEIGHT_BITS) -> Any:
        """Metropolis weights ``1 / (1 + max(d_i, d_j))``, in multiples of 2^-bits: symmetric, rows sum to 1 exactly.

        Args:
            bits: How fine the weights are.
        """
        degrees = self.degrees
        unit = 2.0**bits
        weights = np.floor(unit / (1 + degrees[self.edges].max(axis=1, initial=0))) / unit
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        own = 1 - np.bincount(ends[:, 0], np.concatenate([weights, weights]), minlength=self.parties)
        rows = np.concatenate([ends[:, 0], np.arange(self.parties)])
        columns = np.concatenate([ends[:, 1], np.arange(self.parties)])
        values = np.concatenate([weights, weights, own])
        return sparse.csr_array((values, (rows, columns)), shape=(self.parties, self.parties))


def named(name: str, parties: int, rng: np.random.Generator | None = None) -> CommunicationGraph:
    """The graph called ``name``; see the head of this file.

    Args:
        name: complete, ring, grid, exponential, erdos-renyi:P, k-out:K or a file of edges.
        parties: How many parties there are.
        rng: Draws the random ones; numpy's own generator by default, as a graph is public.

    >>> named("ring", 5).edges.tolist()
    [[0, 1], [0, 4], [1, 2], [2, 3], [3, 4]]
    """
    rng = np.random.default_rng() if rng is None else rng
    kind, _, rest = name.partition(":")
    if kind == "erdos-renyi":
        return erdos_renyi(parties, _number(name, rest), rng)
    if kind == "k-out":
        count = _number(name, rest)
        if count != int(count):
            raise InvalidInput(f"k-out:K needs a whole number of neighbours, got {rest}.")
        return k_out(parties, int(count), rng)
    if name not in ("complete", "ring", "grid", "exponential"):
        return from_file(name, parties)
    place = np.arange(parties)
    if name == "complete":
        if parties > _MOST_COMPLETE:
            raise InvalidInput(f"a complete graph of {parties} parties has too many edges; choose exponential.")
        return CommunicationGraph(name, parties, np.argwhere(np.triu(np.ones((parties, parties), dtype=bool), 1)))
    if name == "grid":
        rows = max(side for side in range(1, math.isqrt(parties) + 1) if parties % side == 0)
        columns = parties // rows
        right = place - place % columns + (place + 1) % columns
        hops = [right, (place + columns) % parties]
    else:
        powers = [1] if name == "ring" else [1 << k for k in range(max(1, (parties - 1).bit_length()))]
        hops = [(place + power) % parties for power in powers]
    return CommunicationGraph(name, parties, np.concatenate([np.stack([place, hop], axis=1) for hop in hops]))


def erdos_renyi(parties: int, chance: float, rng: np.random.Generator) -> CommunicationGraph:
    """Every pair with ``chance``, drawn again until everybody can be reached.

    Args:
        parties: How many parties there are.
        chance: In (0, 1].
        rng: Draws the edges.
    """
    if not 0 < chance <= 1:
        raise InvalidInput(f"the chance of an edge must lie in (0, 1], got {chance}.")
    for _ in range(_TRIES):
        graph = CommunicationGraph(f"erdos-renyi:{chance:g}", parties, _pairs_at_random(parties, chance, rng))
        if graph.connected:
            return graph
    raise InvalidInput(
        f"a graph of {parties} parties with chance {chance:g} is hardly ever connected: use a larger one."
    )


def _pairs_at_random(parties: int, chance: float, rng: np.random.Generator) -> Edges:
    """Skips geometric distances along the list of all pairs."""
    total = parties * (parties - 1) // 2
    picked = np.flatnonzero(rng.random(total) < chance) if total < 1 << 24 else None
    if picked is None:
        count = int(rng.binomial(total, chance))
        picked = np.unique(rng.integers(total, size=count))
    low = (2 * parties - 1 - np.sqrt((2 * parties - 1) ** 2 - 8.0 * picked)) // 2
    low = low.astype(np.int64)
    low -= low * (2 * parties - low - 1) // 2 > picked
    first = low * (2 * parties - low - 1) // 2
    return np.stack([low, picked - first + low + 1], axis=1)


def k_out(parties: int, count: int, rng: np.random.Generator) -> CommunicationGraph:
    """Every party chooses ``count`` others uniformly.

    Args:
        parties: How many parties there are.
        count: How many each chooses.
        rng: Draws the choices.
    """
    if not 1 <= count < parties:
        raise InvalidInput(f"each of {parties} parties chooses 1 to {parties - 1} others, got {count}.")
    chosen = np.empty((parties, count), dtype=np.int64)
    for party in range(parties):
        others = rng.choice(parties - 1, size=count, replace=False)
        chosen[party] = others + (others >= party)
    edges = np.stack([np.repeat(np.arange(parties), count), chosen.ravel()], axis=1)
    return CommunicationGraph(f"k-out:{count}", parties, edges)


def from_file(path: str, parties: int) -> CommunicationGraph:
    """The edges in a file, two numbers on each line.

    Args:
        path: The file.
        parties: How many parties there are.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(
            f"no graph is called {path!r}, and there is no such file: choose {', '.join(NAMES)} or FILE."
        )
    if file.stat().st_size > _LARGEST_FILE:
        raise InvalidInput(f"{path} is too large for a file of edges.")
    try:
        numbers = [[int(word) for word in line.split()] for line in file.read_text().splitlines() if line.strip()]
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is no file of edges: every line has two party numbers.") from error
    if any(len(pair) != 2 for pair in numbers) or not numbers:
        raise InvalidInput(f"{path} is no file of edges: every line has two party numbers.")
    graph = CommunicationGraph(file.name, parties, np.array(numbers, dtype=np.int64))
    if not graph.connected:
        raise InvalidInput(f"the graph in {path} does not connect its {parties} parties.")
    return graph


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInput(f"graph {name!r} lacks its number, as in erdos-renyi:0.05 or k-out:10.") from error


# Who shares secrets with whom in secure aggregation, and how many shares are needed: SecAgg+ (Bell et al. 2020).

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
