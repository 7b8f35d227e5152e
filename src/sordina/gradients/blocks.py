"""A term that lives on part of a parameter, and a term seen through a function of the parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.gradients.norms import Estimate, squared_lengths
from sordina.gradients.terms import Term, chunks, contract_rows
from sordina.gradients.weights import Weights


@dataclass(frozen=True)
class Block:
    """A term on the values ``start .. start + size`` of a flat parameter with ``whole`` values; zero elsewhere."""

    term: Term
    start: int
    size: int
    whole: int

    @property
    def where(self) -> slice:
        """The values the term lives on."""
        return slice(self.start, self.start + self.size)

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.term.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.term.kind

    def estimate(self) -> Estimate:
        """Zeros add nothing."""
        return self.term.estimate()

    def project(self, direction: Tensor) -> Tensor:
        """Only the block's part of the direction matters."""
        return self.term.project(direction.reshape(-1)[self.where])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """Zero but for the block."""
        out.zero_()
        self.term.contract(weights, out[:, self.where])

    def rows(self, where: slice) -> Tensor:
        """The vectors with their zeros."""
        part = self.term.rows(where)
        whole = part.new_zeros(len(part), self.whole)
        whole[:, self.where] = part
        return whole

    def take(self, units: Tensor) -> Block:
        """Some of the units."""
        return Block(self.term.take(units), self.start, self.size, self.whole)


@dataclass(frozen=True)
class Pulled:
    """The gradient through ``derived``, a function of the parameter: ``g_i = J^T c_i`` for the term's vectors c_i."""

    term: Term
    derived: Tensor
    """With its graph down to the parameter."""
    parameter: Tensor
    isometric: bool
    """Whether the function only picks or moves values, so that lengths are kept."""

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.term.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.term.kind

    def estimate(self) -> Estimate:
        """In pieces of the batch, unless lengths are kept."""
        if self.isometric:
            return self.term.estimate()
        size = max(self.derived.numel(), self.parameter.numel()) * self.parameter.element_size()
        parts = [squared_lengths(self.rows(where)) for where in chunks(self.units, size)]
        return Estimate(torch.cat(parts))

    def project(self, direction: Tensor) -> Tensor:
        """``<J^T c_i, u>``."""
        size = max(self.derived.numel(), self.parameter.numel()) * self.parameter.element_size()
        parts = [self.rows(where) @ direction.reshape(-1) for where in chunks(self.units, size)]
        return torch.cat(parts)

    def contract(self, weights: Weights, out: Tensor) -> None:
        """The sum of the vectors; where lengths are kept, pulled back once: ``J^T (sum_i w_i c_i)``.

        Elsewhere ``J`` may take most of a vector away, and the rounding of a sum of what it takes away would remain.
        """
        if not self.isometric:
            contract_rows(self, weights, out)
            return
        sums = out.new_empty(len(out), self.derived.numel())
        self.term.contract(weights, sums)
        out.copy_(self._pull(sums))

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return self._pull(self.term.rows(where))

    def take(self, units: Tensor) -> Pulled:
        """Some of the units."""
        return Pulled(self.term.take(units), self.derived, self.parameter, self.isometric)

    def _pull(self, cotangents: Tensor) -> Tensor:
        shaped = cotangents.view(-1, *self.derived.shape).to(self.derived.dtype)
        pulled = [
            torch.autograd.grad(self.derived, self.parameter, one, retain_graph=True)[0].flatten() for one in shaped
        ]
        return torch.stack(pulled).to(cotangents.dtype)
