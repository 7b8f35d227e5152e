"""Norms that are upper bounds, and the weights of weighted sums of per-sample gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordina.queries import SLACK

if TYPE_CHECKING:
    from sordina.gradients.terms import Term


# Two weighted sums for the price of one, where the weights allow it.
#
# With Online clipping a clipped unit has coefficients ``(C/n, 1/n)`` and any other ``(1, 0)``. The two sums ``a = sum
# g_i / n_i`` over the clipped units and ``b = sum g_i`` over the others run over *disjoint* units, and so cost as much
# as a single sum over all of them; the answers are ``C a + b`` and ``a``. Where few units are clipped, it is cheaper
# still to sum over all of them once, and over the clipped ones once more.

TOLERANCE = {4: 2e-6, 8: 4e-15}
"""How far ratios may differ and still count as rounded from the same number, by the bytes of a number."""


@dataclass(frozen=True)
class Split:
    """Units in two parts: in the first the coefficients are ``(ratio, 1) scale``, in the second ``(1, 0) scale``."""

    order: Tensor | None
    """Indices of the units, first part first; None if they all are in one part."""
    first: int
    """How many units the first part has."""
    scale: Tensor
    """One factor per unit, in that order."""
    ratio: float

    def arranged(self, x: Tensor) -> Tensor:
        """The rows of ``x`` in that order."""
        return x if self.order is None else x.index_select(0, self.order)

    def parts(self) -> tuple[slice, slice]:
        """Where the parts lie in that order."""
        return slice(0, self.first), slice(self.first, len(self.scale))


class Query(NamedTuple):
    """The coefficients of one query that are not zero."""

    scale: Tensor
    units: Tensor | None
    """The units they belong to; None stands for all."""

    @classmethod
    def of(cls, row: Tensor, values: NDArray[Any]) -> Query:
        """Leave out the zeros where that saves at least half."""
        if 2 * np.count_nonzero(values) > len(values):
            return cls(row, None)
        units = torch.from_numpy(values.nonzero()[0]).to(row.device)
        return cls(row.index_select(0, units), units)

    def chosen(self, x: Tensor) -> Tensor:
        """The rows of ``x`` that take part."""
        return x if self.units is None else x.index_select(0, self.units)


@dataclass(frozen=True)
class Weights:
    """The coefficients of Q queries for U units, shape (Q, U)."""

    rows: Tensor

    @property
    def single(self) -> bool:
        """Whether there is only one query."""
        return len(self.rows) == 1

    @cached_property
    def queries(self) -> list[Query]:
        """The queries one by one, each with the units that take part in it if they are few.

        >>> Weights(torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.5, 0.0]])).queries
        [Query(scale=tensor([1., 1., 1.]), units=None), Query(scale=tensor([0.5000]), units=tensor([1]))]
        """
        if self.single:
            return [Query(self.rows[0], None)]
        return [Query.of(row, values) for row, values in zip(self.rows, self.rows.cpu().numpy(), strict=True)]

    @property
    def mostly_two(self) -> bool:
        """Whether there are two queries in which most units take part: then a `split` saves most."""
        return len(self.rows) == 2 and all(query.units is None for query in self.queries)

    @cached_property
    def split(self) -> Split | None:
        """The two parts, if there are two queries and their coefficients allow it.

        >>> norms = torch.tensor([2.0, 0.5, 4.0])
        >>> split = Weights(torch.stack([(1 / norms).clamp(max=1), (norms > 1) / norms])).split
        >>> split.order.tolist(), split.first, split.scale.tolist(), split.ratio
        ([0, 2, 1], 2, [0.5, 0.25, 1.0], 1.0)
        """
        if len(self.rows) != 2:
            return None
        rows = self.rows.detach().cpu().numpy()
        alone = rows[1] == 0
        first = len(alone) - int(np.count_nonzero(alone))
        if first == 0:
            return Split(None, 0, self.rows[0], 0.0)
        order = alone.argsort(kind="stable")
        one, two = rows[:, order]
        ratios = one[:first] / two[:first]
        low, high = float(ratios.min()), float(ratios.max())
        if not high - low <= TOLERANCE[rows.dtype.itemsize] * abs(high):
            return None
        if first == len(alone):
            return Split(None, first, self.rows[1], high)
        two[first:] = one[first:]
        device = self.rows.device
        return Split(torch.from_numpy(order).to(device), first, torch.from_numpy(two).to(device), high)


# Norms that are upper bounds: what rounding may have hidden is added; where that is much, vectors are written down.
#
# A *ghost* norm ``|g|^2 = sum (l l^T) o (r r^T)`` is a sum of large numbers that may cancel, while the weighted sum of
# the vectors is computed on another path. With ``u`` the unit roundoff, a sum of k products in any order is wrong by at
# most ``k u / (1 - k u)`` times the sum of their absolute values (Higham 2002, section 3.1). So with the majorant
# ``M = sum_t |l_t| |r_t|`` of one unit, which does not cancel,
#
#     | computed squares - |g|^2 |       <= square_error M^2
#     | computed contribution - w g |    <= w sum_error M
#
# and ``sqrt(squares + square_error M^2) + sum_error M`` bounds what the unit contributes per weight. A unit for which
# that is more than `SLACK` above the computed norm, or whose majorant exceeds `CANCELLATION` norms, is *written down*:
# the vector in memory is then, by definition, its gradient, and nothing cancels in its length. Every number here
# depends on one unit alone.

CANCELLATION = 256.0
"""How many norms the places of a unit may add up to in a fast sum: the others' digits would drown in more."""
BLOCK = 1024
"""How many squares are added in single precision: in eight lanes or more, an error below 4e-6 of the norm."""
RANGE = 1e-15, 1e13
"""Between these, squares of single precision neither overflow nor lose digits, nor do products of two get `FADING`."""
FADING, TOO_LARGE = 1e29, 1e30
"""A vector as long as the second is as good as infinite: its weight would be too small for the weight's rounding to be
small. From the first on it counts less and less (`faded`), so that no rounding decides who counts and who does not."""
WRITTEN_BYTES = 2 << 20
"""Vectors that are in doubt are written down in pieces of about this size."""


class NormEstimate(NamedTuple):
    """Squared norms (U,) in double precision, and how far they may be off."""

    squares: Tensor
    majorant: Tensor | None = None
    """``M``; None where nothing can cancel."""
    square_error: Tensor | float = 0.0
    sum_error: Tensor | float = 0.0


@dataclass(frozen=True)
class Measured:
    """Upper bounds of squared norms, and the units whose vectors must be written down to be summed."""

    squares: Tensor
    written: Tensor | None = None
    """A mask (U,); None if there are none."""


def unit_roundoff(kind: torch.dtype) -> float:
    """``u``: the largest relative error of one rounding."""
    return torch.finfo(kind).eps / 2


def lengths(vectors: Tensor) -> Tensor:
    """``|v_i|`` along the last dimension, to 4e-6 in single precision, if it lies in `RANGE`."""
    size = vectors.shape[-1]
    if size <= BLOCK or vectors.dtype == torch.float64:
        short: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
        return short
    whole = size - size % BLOCK
    blocks = vectors[..., :whole].reshape(*vectors.shape[:-1], whole // BLOCK, BLOCK)
    squares: Tensor = torch.linalg.vector_norm(blocks, dim=-1).double().square_().sum(-1)
    if whole < size:
        squares += torch.linalg.vector_norm(vectors[..., whole:], dim=-1).double().square_()
    return squares.sqrt_()


def squared_lengths(vectors: Tensor) -> Tensor:
    """``|v_i|^2`` of (U, size) in double precision, whatever the magnitude."""
    norms = lengths(vectors).double()
    if not in_range(norms):
        mend(norms, vectors)
    return norms.square_()


def factors(vectors: Tensor) -> Tensor:
    """``|v_i|`` of factors of products; infinite from `TOO_LARGE` on: the other, times a weight, may lose digits."""
    sizes = squared_lengths(vectors).sqrt_()
    return sizes.where(sizes < TOO_LARGE, torch.inf)


def mend(norms: Tensor, vectors: Tensor) -> None:
    """Take the norms outside of `RANGE` again, in double precision."""
    odd = ~((norms > RANGE[0]) & (norms < RANGE[1]))
    norms[odd] = torch.linalg.vector_norm(vectors[odd].double(), dim=-1)


def faded(norms: Tensor) -> Tensor:
    """Norms of whole gradients, more and more above the truth from `FADING` on; infinite from `TOO_LARGE` on.

    >>> faded(torch.tensor([1.0, 2e29, 1e31], dtype=torch.float64))
    tensor([1.0000e+00, 2.8614e+29,        inf], dtype=torch.float64)
    """
    left = 1 - (norms / FADING).log10_().clamp_min_(0)
    return torch.where(left > 0, norms / left, torch.where(norms.isnan(), norms, torch.inf))


def in_range(norms: Tensor) -> bool:
    """Whether all norms are positive numbers of ordinary size."""
    if not norms.numel():
        return True
    low, high = norms.aminmax()
    return float(low) > RANGE[0] and float(high) < RANGE[1]


def measure(term: Term) -> Measured:
    """Upper bounds of the squared norms of a term's vectors."""
    squares, majorant, square_error, sum_error = term.estimate()
    if majorant is None:
        return Measured(squares)
    norms = squares.clamp_min(0).sqrt_()
    bound = (squares.clamp_min(0) + square_error * majorant.square()).sqrt_() + sum_error * majorant
    doubt = ~((bound <= (1 + SLACK) * norms) & (majorant <= CANCELLATION * norms))
    squares = bound.square_()
    if not bool(doubt.any()):
        return Measured(squares)
    units = doubt.nonzero()[:, 0]
    squares[units] = torch.cat([squared_lengths(rows) for _, rows in written(term, units)])
    return Measured(squares, doubt)


def written(term: Term, units: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The vectors of some ``units``, written down piece by piece, each with its units."""
    first, rest = units[:1], units[1:]
    rows = term.take(first).rows(slice(0, 1))
    yield first, rows
    step = max(1, WRITTEN_BYTES // max(1, rows.shape[1] * rows.element_size()))
    for piece in torch.split(rest, step) if len(rest) else ():
        yield piece, term.take(piece).rows(slice(0, len(piece)))
