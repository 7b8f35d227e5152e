"""Norms that are upper bounds: what rounding may have hidden is added; where that is much, vectors are written down.

A *ghost* norm ``|g|^2 = sum (l l^T) o (r r^T)`` is a sum of large numbers that may cancel, while the weighted sum of
the vectors is computed on another path. With ``u`` the unit roundoff, a sum of k products in any order is wrong by at
most ``k u / (1 - k u)`` times the sum of their absolute values (Higham 2002, section 3.1). So with the majorant
``M = sum_t |l_t| |r_t|`` of one unit, which does not cancel,

    | computed squares - |g|^2 |       <= square_error M^2
    | computed contribution - w g |    <= w sum_error M

and ``sqrt(squares + square_error M^2) + sum_error M`` bounds what the unit contributes per weight. A unit for which
that is more than `SLACK` above the computed norm, or whose majorant exceeds `CANCELLATION` norms, is *written down*:
the vector in memory is then, by definition, its gradient, and nothing cancels in its length. Every number here depends
on one unit alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sordina.seam import SLACK

if TYPE_CHECKING:
    from sordina.gradients.terms import Term

CANCELLATION = 256.0
"""How many norms the places of a unit may add up to in a fast sum: the others' digits would drown in more."""
BLOCK = 1024
"""How many squares are added in single precision: in eight lanes or more, an error below 4e-6 of the norm."""
RANGE = 1e-15, 1e15
"""Between these, squares of single precision neither overflow nor lose digits."""
TOO_LARGE = 1e30
"""A vector this long is as good as infinite: its weight would be too small for the weight's rounding to be small."""
WRITTEN_BYTES = 2 << 20
"""Vectors that are in doubt are written down in pieces of about this size."""


class Estimate(NamedTuple):
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


def mend(norms: Tensor, vectors: Tensor) -> None:
    """Take the norms outside of `RANGE` again, in double precision; what is `TOO_LARGE` counts as not finite."""
    odd = ~((norms > RANGE[0]) & (norms < RANGE[1]))
    again = torch.linalg.vector_norm(vectors[odd].double(), dim=-1)
    norms[odd] = torch.where(again > TOO_LARGE, torch.inf, again)


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
