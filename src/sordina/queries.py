"""The central seam: what an engine tells a policy, and what a policy asks of an engine.

A policy maps numbers to numbers. It sees one norm per sample (and, if it asked, one projection on a public unit
direction ``u``), and answers with *queries*. Engines answer queries; they never see a policy. All vectors are flat:
the gradients of a group of parameters, concatenated in the group's order.

"Sample" stands for the unit of privacy: a record, all rows of one user, or a client of a federation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

SLACK = 2**-7
"""How far a norm may lie above the true one: ``|g_i| <= norm_i <= (1 + SLACK) |g_i|``, up to 1e-5 for rounding."""


@dataclass(frozen=True)
class Scalars:
    """What a policy may look at, per sample."""

    norms: Tensor
    """An upper bound of ``|g_i|``, at most `SLACK` too large, shape (B,); not finite where the gradient is not."""
    projections: Tensor | None = None
    """``<g_i, u>``, shape (B,), present when a direction was given."""


@dataclass(frozen=True)
class VectorQuery:
    """``sum_i own_i g_i + (sum_i ref_i) u``."""

    own: Tensor
    ref: Tensor | None = None


@dataclass(frozen=True)
class ScalarQuery:
    """``sum_i value_i``."""

    value: Tensor


Query: TypeAlias = VectorQuery | ScalarQuery


@dataclass(frozen=True)
class Released:
    """Noised sums, in the order of the queries: with what is public about them, all a policy may adapt on."""

    answers: tuple[Tensor, ...]
    noise: tuple[float, ...]
    """Standard deviation of the noise on each answer."""
    divisor: float
    """The public number that turns a sum into a mean: the expected batch size."""

    def mean(self, index: int = 0) -> Tensor:
        """Answer ``index`` as a mean over the expected batch."""
        return self.answers[index] / self.divisor

    def used_up(self) -> Tensor:
        """The first answer as a mean, written over the answer: once, when nobody needs the sums any more."""
        return self.answers[0].div_(self.divisor)


class Tape(Protocol):
    """One recorded backward pass over a batch (or micro-batch)."""

    def scalars(self, direction: Tensor | None = None, group: int = 0) -> Scalars:
        """Norms of the group's per-sample gradients, and their projections on ``direction`` (a flat unit vector)."""
        ...

    def contract(self, queries: Sequence[Query], direction: Tensor | None = None, group: int = 0) -> list[Tensor]:
        """One flat vector per vector query, one 0-d tensor per scalar query."""
        ...
