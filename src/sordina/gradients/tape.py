"""A recorded backward pass that answers any number of questions about its per-unit gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.gradients.layout import Layout
from sordina.gradients.norms import Measured, Weights, in_range, measure, mend, written
from sordina.gradients.terms import Dense, Pair, Term
from sordina.queries import Query, ScalarQuery, Scalars


def full_precision(device: str) -> AbstractContextManager[None]:
    """Norms and sums are taken in the precision of the parameters, also under autocast or with fast products."""
    if torch.get_float32_matmul_precision() == "highest" and not torch.is_autocast_enabled(device):
        return _AS_IT_IS
    return _precise(device)


@contextmanager
def _precise(device: str) -> Iterator[None]:
    fast = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(fast)


_AS_IT_IS: AbstractContextManager[None] = nullcontext()
_PLAIN = (Dense, Pair)
"""Terms in whose norms nothing cancels."""
ROUNDING = 5e-6
"""What norms of single precision may be off; said of answers in double precision, it would be too much."""


@dataclass(frozen=True)
class _Group:
    """What was measured of one group of parameters."""

    norms: Tensor
    poisoned: Tensor | None
    """Units whose gradient is not finite: they contribute nothing, and ``0 * inf`` would not be nothing."""
    written: Mapping[str, Tensor]
    """By parameter, the units whose vectors must be written down to be summed."""


@dataclass(frozen=True)
class GhostTape:
    """Terms by parameter name; a trainable parameter without a term has zero gradient for every unit.

    The norms are upper bounds (`sordina.gradients.norms`), and whatever the weight of a unit whose gradient is not
    finite, it adds nothing to any sum and changes nothing for anybody else.

    Args:
        layouts: The groups of parameters.
        terms: Per-sample gradients, parameter by parameter.
        units: How many samples or persons.
    """

    layouts: tuple[Layout, ...]
    terms: Mapping[str, Term]
    units: int
    like: Tensor
    """An empty tensor of the dtype and device of the answers."""
    _groups: dict[int, _Group] = field(default_factory=dict)

    def scalars(self, direction: Tensor | None = None, group: int = 0) -> Scalars:
        """Norms of the group's per-unit gradients, and their projections on ``direction`` (a flat unit vector)."""
        with full_precision(self.like.device.type):
            norms = self._measured(group).norms
            projections = None if direction is None else self._project(self._checked(direction, group), group)
        return Scalars(norms, projections)

    def _measured(self, group: int) -> _Group:
        if group not in self._groups:
            terms = {name: self.terms[name] for name in self.layouts[group].names if name in self.terms}
            plain = [term for term in terms.values() if isinstance(term, _PLAIN)]
            ghosts = {name: measure(term) for name, term in terms.items() if not isinstance(term, _PLAIN)}
            self._groups[group] = self._summed(plain, ghosts)
            size = self.like.element_size()
            if any(term.kind.itemsize < size for term in terms.values()):
                self._groups[group].norms.mul_(1 + ROUNDING)
        return self._groups[group]

    def _summed(self, plain: Sequence[Dense | Pair], ghosts: Mapping[str, Measured]) -> _Group:
        squares, ordinary = _squares(plain) if plain else (None, True)
        if squares is None:
            squares = torch.zeros(self.units, dtype=torch.float64, device=self.like.device)
        for measured in ghosts.values():
            squares = squares + measured.squares
        norms = squares.sqrt_().to(self.like)
        poisoned = None if (ordinary and not ghosts) or _finite(norms) else ~norms.isfinite()
        marks = {name: found.written for name, found in ghosts.items() if found.written is not None}
        return _Group(norms, poisoned, marks)

    def _project(self, direction: Tensor, group: int) -> Tensor:
        total = self.like.new_zeros(self.units)
        marks = self._measured(group).written
        for name, part in self.layouts[group].unflatten(direction).items():
            if name in self.terms:
                term, part = self.terms[name], part.to(self.terms[name].kind)
                answer = term.project(part)
                if name in marks:
                    for units, rows in written(term, marks[name].nonzero()[:, 0]):
                        answer[units] = rows @ part.flatten()
                total += answer
        return total

    def contract(self, queries: Sequence[Query], direction: Tensor | None = None, group: int = 0) -> list[Tensor]:
        """One flat vector per vector query, one 0-d tensor per scalar query."""
        vectors = [query for query in queries if not isinstance(query, ScalarQuery)]
        with full_precision(self.like.device.type):
            rows = iter(self._sums([query.own for query in vectors], group))
        answers = []
        for query in queries:
            if isinstance(query, ScalarQuery):
                answers.append(query.value.sum())
                continue
            answer = next(rows)
            if query.ref is not None:
                if direction is None:
                    raise InvalidInput("a query with `ref` needs the direction it refers to: pass direction=.")
                answer.add_(self._checked(direction, group) * query.ref.sum())
            answers.append(answer)
        return answers

    def _sums(self, own: Sequence[Tensor], group: int) -> Tensor:
        layout, measured = self.layouts[group], self._measured(group)
        out = self.like.new_empty(len(own), layout.size)
        if not own:
            return out
        rows = [self._weights(vector) for vector in own]
        weights = Weights(torch.stack(rows) if len(rows) > 1 else rows[0][None])
        for name, target in zip(layout.names, torch.split_with_sizes(out, layout.sizes, 1), strict=True):
            term = self.terms.get(name)
            if term is None:
                target.zero_()
            elif term.kind == out.dtype:
                _contract(term, weights, target, measured.poisoned, measured.written.get(name))
            else:
                sums, cast = target.to(term.kind), Weights(weights.rows.to(term.kind))
                _contract(term, cast, sums, measured.poisoned, measured.written.get(name))
                target.copy_(sums)
        return out

    def _weights(self, own: Tensor) -> Tensor:
        """The coefficients; those too small for their rounding to be small are zero."""
        if own.shape != (self.units,):
            raise InvalidInput(f"a query has one coefficient per unit ({self.units}), got shape {tuple(own.shape)}.")
        own = own.to(self.like)
        return F.hardshrink(own, torch.finfo(own.dtype).tiny)

    def _checked(self, direction: Tensor, group: int) -> Tensor:
        if direction.shape != (self.layouts[group].size,):
            raise InvalidInput(
                f"the direction must be flat with {self.layouts[group].size} values, got {tuple(direction.shape)}."
            )
        return direction.to(self.like)


def _squares(terms: Sequence[Dense | Pair]) -> tuple[Tensor, bool]:
    """The sum of the squared norms of terms without cancellation, all at once, and whether all are of ordinary size.

    Many layers are small. Of a layer with a bias ``|l|^2 |r|^2 + |l|^2 = |l|^2 (|r|^2 + 1)``.
    """
    pairs = [term for term in terms if isinstance(term, Pair)]
    shared = {id(pair.left): place for place, pair in enumerate(pairs)}
    alone, biases = list[Dense](), [0.0] * len(pairs)
    for term in terms:
        if isinstance(term, Dense):
            place = shared.get(id(term))
            if place is None:
                alone.append(term)
            else:
                biases[place] += 1.0
    vectors = [*alone, *[pair.left for pair in pairs], *[pair.right for pair in pairs]]
    found = [vector.norms() for vector in vectors]
    if len({each.dtype for each in found}) > 1:
        found = [each.double() for each in found]
    norms = torch.stack(found).double()
    ordinary = in_range(norms)
    if not ordinary:
        for row, vector in zip(norms, vectors, strict=True):
            mend(row, vector.vectors)
    squares = norms.square_()
    if not pairs:
        return squares.sum(0), ordinary
    left, right = squares[len(alone) :].chunk(2)
    if any(biases):
        right = right + (1.0 if all(biases) and max(biases) == 1.0 else squares.new_tensor(biases)[:, None])
    total = (left * right).sum(0)
    return (total + squares[: len(alone)].sum(0) if alone else total), ordinary


def _contract(term: Term, weights: Weights, out: Tensor, poisoned: Tensor | None, marked: Tensor | None) -> None:
    """As ``term.contract``, but the units ``marked`` are written down, and those ``poisoned`` are left out."""
    apart = poisoned if marked is None else marked if poisoned is None else marked | poisoned
    if apart is None:
        term.contract(weights, out)
        return
    together = (~apart).nonzero()[:, 0]
    if len(together):
        term.take(together).contract(Weights(weights.rows.index_select(1, together)), out)
    else:
        out.zero_()
    if marked is None:
        return
    alone = (marked if poisoned is None else marked & ~poisoned).nonzero()[:, 0]
    if len(alone):
        for units, rows in written(term, alone):
            out.addmm_(weights.rows.index_select(1, units), rows)


def _finite(norms: Tensor) -> bool:
    """Whether all norms are finite: a finite sum says so in one pass."""
    return math.isfinite(float(norms.sum())) or bool(norms.isfinite().all())
