"""Every linear Gaussian protocol has one exact accountant.

All that a coalition sees of secure sums with pairwise noise, of gossip, of correlated noise in training is

    view = A x + B z,        z ~ N(0, I),

linear in the private values x and in independent Gaussian noises. If one unit changes x by S d, the two views are
Gaussians of one covariance ``B B^T`` whose means are ``S A d`` apart, so telling them apart is telling
``N(0, 1)`` from ``N(mu, 1)``: mu-GDP (Dong, Roth and Su 2022), exactly, with

    mu^2 = S^2 (A d)^T (B B^T)^-1 (A d),

an ordinary `Gaussian` event of noise multiplier 1/mu. Values may be vectors with independent noise in every coordinate:
then S bounds the L2 norm of the change and mu is the same. What a protocol has to say is ``A d`` (`signal`, one column
for each direction d that a unit may change) and ``B`` (`noise`) or ``B B^T`` (`covariance`) for the coalition's view;
noises that the coalition knows are no part of B.

=================  =====================================================================================================
`squared_losses`   upper bounds of ``(A d)^T (B B^T)^-1 (A d)``, one for each direction
`mu`               S times the root of the largest, or, with ``together``, of a unit that moves along all directions at
                   once, each by a vector of norm at most S: ``sum_ij |Q_ij|``, exact where no ``Q_ij`` is negative
`event`            the `Gaussian` event of that mu, rounded up
=================  =====================================================================================================

**Numbers are bounds.** For any x, and any proven ``floor`` of the eigenvalues of the covariance C,

    s^T C^-1 s  =  2 s^T x - x^T C x + r^T C^-1 r  <=  2 s^T x - x^T C x + |r|^2 / floor,      r = s - C x,

so an approximate solution (Cholesky, or conjugate gradients for sparse matrices) gives an upper bound that is as good
as its residual; the rounding of each term is added. The floor of a dense matrix is proved by a Cholesky factorisation
of ``C - floor I`` that runs to its end (Rump 2006), of a sparse one by Gershgorin's discs unless the caller knows it.

**Refused** is a view in which a direction carries no noise (mu would be infinite), and one whose covariance is so near
singular that this cannot be told: something is seen twice, or almost without noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sordina.accounting._numerics import Array
from sordina.accounting.events import Gaussian
from sordina.errors import InvalidInput, Unsupported
from sordina.privacy import check_positive

_UNIT = 2.0**-53
_WORST_CONDITION = 1e12
_LARGEST_DENSE = 4096
"""No dense matrix is larger."""
_ROUNDS = 10_000
_TIGHT = 1e-7
"""Relative part of a squared loss that the residual may add."""


def event(mu: float) -> Gaussian:
    """The Gaussian event of a ``mu``: noise of 1/mu times the sensitivity, rounded down.

    Args:
        mu: What `mu` returned; 0 if the view does not depend on the unit at all.

    >>> event(0.5)
    Gaussian(noise_multiplier=1.9999999999999998)
    """
    if not 0 <= mu < math.inf:
        raise InvalidInput(f"mu must be finite and not negative, got {mu}.")
    return Gaussian(math.nextafter(1 / mu, 0.0) if mu else math.inf)


def mu(
    signal: ArrayLike | Any,
    *,
    noise: ArrayLike | None = None,
    covariance: ArrayLike | Any | None = None,
    sensitivity: float = 1.0,
    together: bool = False,
    floor: float | None = None,
    off: float = 0.0,
) -> float:
    """How well the view tells a unit's value: it is mu-GDP, exactly up to upward rounding.

    Args:
        signal: ``A d``, a vector, or one column for each direction.
        noise: ``B``; exactly one of this and ``covariance``.
        covariance: ``B B^T``, dense or a sparse matrix of scipy.
        sensitivity: S, how far a unit can move along one direction, in L2 norm.
        together: Whether one unit moves along all directions, rather than along one of them.
        floor: For a sparse covariance, a number its eigenvalues are known not to be below.
        off: How far any entry of a dense covariance may be off, relative to the roots of its two diagonal entries.

    >>> round(mu([1.0], noise=[[2.0]]), 9)                                                # one value, noise of 2
    0.5
    >>> round(mu([1.0, 0.0], noise=[[1.0, 3.0, 0.0], [0.0, -3.0, 1.0]]), 3)               # two parties, shared +-3
    0.725
    """
    check_positive("sensitivity", sensitivity)
    if together:
        total = float(np.abs(_gram(_columns(signal), *_dense(noise, covariance, off))).sum())
    else:
        total = float(squared_losses(signal, noise=noise, covariance=covariance, floor=floor, off=off).max(initial=0.0))
    return math.sqrt(total) * sensitivity * (1 + 4 * _UNIT)


def squared_losses(
    signal: ArrayLike | Any,
    *,
    noise: ArrayLike | None = None,
    covariance: ArrayLike | Any | None = None,
    floor: float | None = None,
    off: float = 0.0,
) -> Array:
    """``(A d)^T (B B^T)^-1 (A d)`` for each direction d, rounded up: mu^2 at sensitivity 1.

    Args:
        signal: ``A d``, one column for each direction; sparse if the covariance is.
        noise: ``B``.
        covariance: ``B B^T``.
        floor: As in `mu`.
        off: As in `mu`.
    """
    sparse = _scipy_sparse()
    if covariance is not None and sparse.issparse(covariance):
        return _sparse_losses(signal, covariance, floor)
    return np.diagonal(_gram(_columns(signal), *_dense(noise, covariance, off))).copy()


def _scipy_sparse() -> Any:
    """Late: scipy takes most of a second to import."""
    from scipy import sparse

    return sparse


def _columns(signal: ArrayLike | Any) -> Array:
    columns = np.asarray(signal, dtype=np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    if columns.ndim != 2 or not np.isfinite(columns).all():
        raise InvalidInput("a signal is a vector, or a matrix with one column for each direction, of finite numbers.")
    return columns


def _dense(noise: ArrayLike | None, covariance: ArrayLike | Any | None, off: float = 0.0) -> tuple[Array, float]:
    """The covariance, and how far an entry may be off relative to the diagonal."""
    if (noise is None) == (covariance is None):
        raise InvalidInput("a view has either a noise matrix or a covariance.")
    given = np.asarray(noise if covariance is None else covariance, dtype=np.float64)
    if given.ndim != 2 or not np.isfinite(given).all():
        raise InvalidInput("a noise matrix and a covariance are matrices of finite numbers.")
    if len(given) > _LARGEST_DENSE:
        raise Unsupported(
            f"a dense view of {len(given)} numbers is too large (at most {_LARGEST_DENSE}): give a sparse covariance."
        )
    if covariance is None:
        return given @ given.T, (given.shape[1] + 2) * _UNIT
    if given.shape[0] != given.shape[1] or not np.allclose(given, given.T, rtol=1e-12, atol=0.0):
        raise InvalidInput("a covariance is square and symmetric.")
    return given, off


def _gram(signal: Array, covariance: Array, off: float) -> Array:
    """``S^T C^-1 S``: the diagonal from above, every other entry in size from above."""
    if len(signal) != len(covariance):
        raise InvalidInput(f"the signal has {len(signal)} numbers, the noise {len(covariance)}.")
    heard = np.diagonal(covariance) > 0
    if signal[~heard].any():
        raise Unsupported(
            "part of the view carries no noise: whoever sees it sees the value. Add noise, or leave it out of the view."
        )
    signal, covariance = signal[heard], covariance[np.ix_(heard, heard)]
    if not len(covariance):
        return np.zeros((signal.shape[1],) * 2)
    scale = np.exp2(-np.round(np.log2(np.diagonal(covariance)) / 2))  # powers of two: no rounding
    signal, covariance = signal * scale[:, None], covariance * scale[:, None] * scale
    factor, floor = _factor(covariance, signal)
    size = len(covariance)
    off_norm = 2 * off * size  # rows are scaled to length at most sqrt 2
    if off_norm >= floor / 4:
        raise _too_near_singular()
    from scipy.linalg import cho_solve

    solved = cho_solve((factor, True), signal)
    shown = covariance @ solved
    step = (size + 4) * _UNIT
    rest = np.linalg.norm(signal - shown, axis=0) + step * np.linalg.norm(
        np.abs(signal) + np.abs(covariance) @ np.abs(solved), axis=0
    )
    cross = signal.T @ solved
    slack = 3 * step * (np.abs(signal).T @ np.abs(solved) + np.abs(solved).T @ (np.abs(covariance) @ np.abs(solved)))
    squares = 2 * np.diagonal(cross) - (solved * shown).sum(axis=0) + np.diagonal(slack) + rest**2 / floor
    squares = np.maximum(squares, 0.0)
    bounds: Array = np.abs(cross) + slack + np.sqrt(squares)[:, None] * rest / math.sqrt(floor)
    np.fill_diagonal(bounds, squares)
    return bounds / (1 - off_norm / floor) * (1 + 8 * _UNIT)


def _factor(covariance: Array, signal: Array) -> tuple[Array, float]:
    """The Cholesky factor, and a proven lower bound of the eigenvalues.

    If the factorisation of ``C - c I`` runs to its end, no eigenvalue of it lies below ``-(n + 2) u trace`` (Rump
    2006, Verification of positive definiteness), so none of C below c less that.
    """
    from scipy.linalg import cholesky, eigh, solve_triangular

    size, trace = len(covariance), float(np.trace(covariance))
    spare = 2 * (size + 2) * _UNIT * trace
    try:
        factor: Array = cholesky(covariance, lower=True)
    except np.linalg.LinAlgError:
        _least, direction = eigh(covariance, subset_by_index=[0, 0])
        if float(np.abs(direction.T @ signal).max()) > 1e-6:
            raise Unsupported(
                "a change of a unit's value shows in the view without noise: nothing protects it. Every direction "
                "needs a noise that the coalition does not know."
            ) from None
        raise _too_near_singular() from None
    vector = np.ones(size)
    for _ in range(4):  # inverse iteration: the least eigenvalue, roughly
        vector = solve_triangular(factor, solve_triangular(factor, vector, lower=True), lower=True, trans=1)
        norm = float(np.linalg.norm(vector))
        vector /= norm
    guess = 0.5 / norm
    while guess > trace / size / _WORST_CONDITION + 2 * spare:
        if _runs_to_its_end(covariance - guess * np.eye(size)):
            return factor, guess - spare
        guess /= 4
    raise _too_near_singular()


def _runs_to_its_end(matrix: Array) -> bool:
    from scipy.linalg import cholesky

    try:
        cholesky(matrix, lower=True)
    except np.linalg.LinAlgError:
        return False
    return True


def _too_near_singular() -> Unsupported:
    return Unsupported(
        "the noise of this view is too near singular to be accounted: something is seen twice, or almost without "
        "noise. Leave out what follows from the rest of the view, or add independent noise to every message."
    )


def _sparse_losses(signal: Any, covariance: Any, floor: float | None) -> Array:
    sparse = _scipy_sparse()
    matrix: Any = sparse.csr_array(covariance)
    columns: Any = sparse.csc_array(signal) if sparse.issparse(signal) else _columns(signal)
    if matrix.shape[0] != matrix.shape[1] or columns.shape[0] != matrix.shape[0]:
        raise InvalidInput(f"a signal of {columns.shape[0]} numbers and a covariance of {matrix.shape} do not match.")
    least = proven_floor(matrix) if floor is None else check_positive("floor", floor)
    width = max(1, min(columns.shape[1], (1 << 25) // max(1, matrix.shape[0])))
    found = []
    for first in range(0, columns.shape[1], width):
        block = columns[:, first : first + width]
        dense: Array = block.toarray() if sparse.issparse(block) else np.ascontiguousarray(block)
        found.append(_conjugate_gradients(matrix, dense, least))
    return np.concatenate(found) if found else np.zeros(0)


def proven_floor(covariance: Any) -> float:
    """A lower bound of a sparse covariance's eigenvalues by Gershgorin's discs: independent noise beside a Laplacian.

    Args:
        covariance: A sparse symmetric matrix.
    """
    diagonal = covariance.diagonal()
    sizes = np.asarray(abs(covariance).sum(axis=1)).ravel()
    terms = int(np.diff(covariance.indptr).max(initial=1)) + 2
    least = float((diagonal - (sizes - np.abs(diagonal)) - 2 * terms * _UNIT * sizes).min(initial=math.inf))
    if not least > 0 or float(diagonal.max()) > _WORST_CONDITION * least:
        raise Unsupported(
            "no noise can be proven in some direction of this view: give every party independent noise, or say what "
            "the least eigenvalue of the covariance is (floor)."
        )
    return least


def _conjugate_gradients(matrix: Any, signal: Array, floor: float) -> Array:
    """The bound of the head of this file for every column, each by its own conjugate gradients, all at once."""
    inverse = (1 / matrix.diagonal())[:, None]
    x = np.zeros_like(signal)
    residual = signal.copy()
    direction = inverse * residual
    energy = (residual * direction).sum(axis=0)
    terms = int(np.diff(matrix.indptr).max(initial=1)) + 2
    for _ in range(_ROUNDS):
        shown = matrix @ direction
        curved = (direction * shown).sum(axis=0)
        stride = np.divide(energy, curved, out=np.zeros_like(energy), where=curved > 0)
        x += stride * direction
        residual -= stride * shown
        value = (x * (signal + residual)).sum(axis=0)
        if bool(((residual**2).sum(axis=0) <= _TIGHT * floor * np.maximum(value, 1e-300)).all()):
            break
        fresh = inverse * residual
        renewed = (residual * fresh).sum(axis=0)
        direction = fresh + np.divide(renewed, energy, out=np.zeros_like(energy), where=energy > 0) * direction
        energy = renewed
    return residual_bound(matrix, signal, x, floor, terms)


def residual_bound(matrix: Any, signal: Array, x: Array, floor: float, terms: int) -> Array:
    """``2 s^T x - x^T C x + |s - C x|^2 / floor`` for every column, rounded up.

    Args:
        matrix: C, sparse.
        signal: s, a column each.
        x: What nearly solves ``C x = s``.
        floor: A lower bound of the eigenvalues of C, on the space the residual lies in.
        terms: No row of C has more entries.
    """
    shown = matrix @ x
    sizes = np.abs(signal) + abs(matrix) @ np.abs(x)
    residual = np.abs(signal - shown) + terms * _UNIT * sizes
    value = (x * (2 * signal - shown)).sum(axis=0)
    slack = (len(signal) + terms + 4) * _UNIT * (np.abs(x) * (2 * np.abs(signal) + sizes)).sum(axis=0)
    bound: Array = (value + slack + (residual**2).sum(axis=0) / floor) * (1 + (len(signal) + 8) * _UNIT)
    return np.maximum(bound, 0.0)
