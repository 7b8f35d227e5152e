"""Noise that neighbours share with opposite signs: the account of GOPA and of DECOR, for the graph that was drawn.

Every party k adds ``sum_l Delta_kl + eta_k`` with ``Delta_kl = -Delta_lk ~ N(0, s_Delta^2)`` for each neighbour l and
``eta_k ~ N(0, s_eta^2)``. The coalition sees every message and knows the noises of its members. What it does not know
are the noises of honest parties and of pairs of honest parties; with L the Laplacian of the graph H between these,

    mu_i^2 = S^2 e_i^T (s_Delta^2 L + s_eta^2 I)^-1 e_i        for the honest party i

(`accounting.linear_gaussian`; a statement about a unit that is one party). It lies between ``S^2 / (n s_eta^2)``, the
trusted curator's who adds the noises of the n honest parties, and ``S^2 / s_eta^2``, that of a party which has no
honest neighbour. Such a party is left alone, and `party_losses` refuses.

**Thousands of parties.** No dense matrix: on each connected part of H, of m parties, the constant vector is solved for
exactly, and on the rest the eigenvalues are at least ``s_eta^2 + s_Delta^2 lambda_2``. One step of the Krylov space
bounds every mu_i from above in closed form; the largest of these bounds are then replaced by conjugate gradients until
none that is left can be the maximum. `second_eigenvalue` bounds lambda_2 from below by Lanczos' method, wrong with a
chance below 2^-60 over its own random start (Kuczynski and Wozniakowski 1992, Theorem 4.2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse import csgraph

from sordina.accounting import linear_gaussian
from sordina.errors import InvalidInput, Unsupported
from sordina.federated.decentralized.graphs import CommunicationGraph
from sordina.privacy import check_positive

Doubles = NDArray[np.float64]
_SMALL = 1200
"""Parts of at most so many parties are solved by Cholesky."""
_BATCH = 64
_STEPS = 600
_MISSED = 60 * math.log(2)


def account_failure(parties: int) -> float:
    """The chance that `party_losses` of so many honest parties is wrong: that of its eigenvalues, one for each part.

    Args:
        parties: How many honest parties there are.

    >>> account_failure(1000), account_failure(7000) < 1e-16
    (0.0, True)
    """
    return parties // _SMALL * 2.0**-60 if parties > _SMALL else 0.0


def party_losses(
    graph: CommunicationGraph,
    honest: NDArray[np.bool_],
    independent: float,
    pairwise: float,
    rng: np.random.Generator | None = None,
) -> Doubles:
    """mu^2 at sensitivity 1 of every honest party against all the others together, rounded up.

    Args:
        graph: Who shares noise with whom.
        honest: Which parties do not belong to the coalition.
        independent: s_eta, as an account may count it.
        pairwise: s_Delta, likewise.
        rng: Starts Lanczos' method, so that two who compute the same account find the same.

    Raises:
        Unsupported: An honest party has no honest neighbour.
    """
    check_positive("independent noise", independent)
    check_positive("pairwise noise", pairwise)
    if honest.shape != (graph.parties,) or int(honest.sum()) < 2:
        raise InvalidInput("pairwise noise protects nobody with fewer than two honest parties.")
    inner = graph.among(honest)
    alone = int((inner.degrees == 0).sum())
    if alone:
        raise Unsupported(
            f"{alone} of {inner.parties} honest parties share noise with colluders only and would be left alone with "
            "their own small noise: let every party choose more neighbours, or draw another graph."
        )
    adjacency = inner.adjacency
    parts, label = csgraph.connected_components(adjacency, directed=False)
    losses = np.empty(inner.parties)
    for part in range(int(parts)):
        places = np.flatnonzero(label == part)
        losses[places] = _part_losses(adjacency[places][:, places], independent**2, pairwise**2, rng)
    return losses


def _part_losses(adjacency: Any, independent: float, pairwise: float, rng: np.random.Generator | None) -> Doubles:
    size = adjacency.shape[0]
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    laplacian = sparse.diags_array(degrees) - adjacency
    covariance: Any = sparse.csr_array(pairwise * laplacian + independent * sparse.eye_array(size))
    if size <= _SMALL:
        return linear_gaussian.squared_losses(np.eye(size), covariance=covariance.toarray())
    floor = independent + pairwise * second_eigenvalue(sparse.csr_array(laplacian), degrees, rng)
    losses = _one_step(degrees, independent, pairwise, floor)
    order = np.argsort(-losses)
    largest = 0.0
    for first in range(0, size, _BATCH):
        batch = order[first : first + _BATCH]
        if losses[batch[0]] <= largest:
            break
        columns = np.zeros((size, len(batch)))
        columns[batch, np.arange(len(batch))] = 1.0
        found = linear_gaussian.squared_losses(
            sparse.csc_array(columns), covariance=covariance, floor=independent * (1 - 1e-9)
        )
        losses[batch] = np.minimum(found, losses[batch])
        largest = max(largest, float(losses[batch].max()))
    return losses


def _one_step(degrees: Doubles, independent: float, pairwise: float, floor: float) -> Doubles:
    """``e_i^T C^-1 e_i <= 1/(m s_eta^2) + min_a f(a)`` with x = a v, ``v = e_i - 1/m``, from above.

    ``f(a) = 2 a v.v - a^2 v.Cv + (v.v - 2 a v.Cv + a^2 |Cv|^2) / floor``, which the degree determines.
    """
    size = len(degrees)
    own = 1 - 1 / size
    energy = independent * own + pairwise * degrees
    square = independent**2 * own + 2 * independent * pairwise * degrees + pairwise**2 * (degrees**2 + degrees)
    a = (energy / floor - own) / (square / floor - energy)
    rest = 2 * a * own - a**2 * energy + (own - 2 * a * energy + a**2 * square) / floor
    bound: Doubles = (1 / (size * independent) + np.maximum(rest, 0.0)) * (1 + 1e-9)
    return bound


def second_eigenvalue(laplacian: Any, degrees: Doubles, rng: np.random.Generator | None = None) -> float:
    """A lower bound of the least eigenvalue of a connected graph's Laplacian besides 0; wrong with chance 2^-60.

    Lanczos' method, k steps from a random start, on ``c I - L >= 0`` orthogonally to the constant vector: the largest
    eigenvalue is at most the one found over ``1 - x``, but with a chance of ``1.648 sqrt(n) e^(-sqrt(x) (2k - 1))``.

    Args:
        laplacian: L, sparse.
        degrees: Its diagonal.
        rng: Draws the start.
    """
    size = len(degrees)
    top = 2 * float(degrees.max())
    steps = min(_STEPS, size - 1)
    share = ((math.log(1.648 * math.sqrt(size)) + _MISSED) / (2 * steps - 1)) ** 2
    rng = np.random.default_rng() if rng is None else rng
    vector = rng.standard_normal(size)
    vector -= vector.mean()
    vector /= np.linalg.norm(vector)
    before, beta = np.zeros(size), 0.0
    diagonal, beside = [], []
    for _ in range(steps):
        after = top * vector - laplacian @ vector - beta * before
        alpha = float(after @ vector)
        diagonal.append(alpha)
        after -= alpha * vector
        after -= after.mean()
        beta = float(np.linalg.norm(after))
        if beta < 1e-10 * top:
            break
        beside.append(beta)
        before, vector = vector, after / beta
    values: Any = eigvalsh_tridiagonal(np.array(diagonal), np.array(beside[: len(diagonal) - 1]))
    if share >= 1:
        return 0.0
    return max(0.0, top - float(values.max()) / (1 - share) - 1e-9 * top)
