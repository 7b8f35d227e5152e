"""The record of one pass: every tap's gradient becomes terms; their norms, and their weighted sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sordina.errors import InvalidInput, Unsupported
from sordina.gradients._footprints import Trail, followed
from sordina.gradients._hooks import Gathering, Tap
from sordina.gradients._rehearsal import RUN_BACKWARD
from sordina.gradients.combined_terms import combine
from sordina.gradients.layout import Fold, Layout
from sordina.gradients.norms import TOO_LARGE, Weights, faded, in_range, measure, mend, written
from sordina.gradients.one_by_one import SamplePlacement
from sordina.gradients.terms import Dense, Pair, Term
from sordina.queries import Query, ScalarQuery, Scalars

# The one backward pass: what it runs through, and how every tap's gradient becomes terms.

# Questions to an autograd graph: what a backward pass runs through, and what the losses depend on.


def crossed(losses: Tensor, edges: Sequence[GradientEdge | None]) -> set[int]:
    """The places of the edges that a backward pass towards the others runs through: some edge lies below them."""
    marks = {(edge.node, edge.output_nr) for edge in edges if edge is not None}
    nodes: set[Any] = set()
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack.extend(following for following, _ in node.next_functions)
    leads: set[Any] = set()
    for node in sorted(nodes, key=lambda node: node._sequence_nr()):
        if any(edge in marks or edge[0] in leads for edge in node.next_functions):
            leads.add(node)
    return {place for place, edge in enumerate(edges) if edge is not None and edge.node in leads}


def passed_through(
    losses: Tensor, taps: Sequence[Tap], places: Mapping[tuple[str, int], SamplePlacement | None]
) -> frozenset[tuple[str, int]]:
    """The keys of taps below which a backward pass always goes on."""
    used = [tap.edge if tap.build and places[tap.key] is not None else None for tap in taps]
    through = crossed(losses, used)
    ends = {tap.key for place, tap in enumerate(taps) if place not in through or len(tap.shape) < 3}
    return frozenset(tap.key for tap in taps if tap.key not in ends)


def reachable(losses: Tensor, edge: GradientEdge) -> bool:
    """Whether the losses depend on what lies at ``edge``."""
    seen: set[Any] = set()
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is edge.node:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(following for following, _ in node.next_functions)
    return False


# The one backward pass: every tap's gradient becomes terms, most of them while the pass is still running.
#
# Where the pass goes on below a tap, a hook on the graph's node builds the terms at once, while the gradient is fresh
# in the cache, and lets go of it and of the layer's input. The other taps are what the pass is asked for. So the memory
# of the pass stays near that of ordinary training.

Builder = Callable[[Tap, Tensor], Iterable[tuple[Tensor, Term]]]


def names_of(parameters: Mapping[str, Tensor]) -> dict[int, str]:
    """The names of parameters by their identity."""
    return {id(parameter): name for name, parameter in parameters.items()}


CHANGED = "the model's structure changed between two steps: make a new engine for the new structure."


def terms_of(
    losses: Tensor,
    taps: list[Tap],
    places: Mapping[tuple[str, int], SamplePlacement | None],
    passed: Collection[tuple[str, int]],
    parameters: Mapping[str, Tensor],
    names: Mapping[int, str],
    units: int,
    rows_per_unit: int,
    trail: Trail | None = None,
) -> dict[str, Term]:
    """By parameter the term of all units, from one backward pass; ``places`` says where the samples lie in each tap.

    ``names`` are the names of ``parameters`` by their identity (`names_of`); ``trail`` notes what runs on the way.
    """
    rows = units * rows_per_unit

    def build(tap: Tap, gradient: Tensor) -> Iterable[tuple[Tensor, Term]]:
        place = places[tap.key]
        assert place is not None
        assert tap.build is not None
        fold = Fold(units, tap.shape[place.dim] // rows * rows_per_unit, place.dim)
        return tap.build(gradient if gradient.shape == tap.shape else gradient.view(tap.shape), fold)

    usable = [tap for tap in taps if tap.build and places[tap.key] is not None]
    found: dict[str, list[Term]] = {}
    for parameter, term in gather_terms(losses, usable, passed, build, False, trail):
        if (name := names.get(id(parameter))) is not None:
            found.setdefault(name, []).append(term)
    return {
        name: parts[0] if len(parts) == 1 else combine(parts, parameters[name].numel()) for name, parts in found.items()
    }


def gradients(
    losses: Tensor, edges: Sequence[GradientEdge], retain: bool, trail: Trail | None = None
) -> Sequence[Tensor | None]:
    """What `torch.autograd.grad` says of the sum of the losses at some edges; what runs is noted in ``trail``."""
    ones = torch.ones_like(losses)
    if RUN_BACKWARD is None:
        asked: list[Any] = list(edges)
        return torch.autograd.grad(losses, asked, ones, retain_graph=retain, allow_unused=True)
    with _AS_IT_IS if trail is None else followed(trail):
        found: Sequence[Tensor | None] = RUN_BACKWARD(
            (losses,), (ones,), retain, False, tuple(edges), allow_unreachable=True, accumulate_grad=False
        )
    return found


_unfollowed: Any = torch._C.DisableTorchFunction
"""Within it no function is told to anybody: terms are built on the way back, and are no work of the model."""


def gather_terms(
    losses: Tensor,
    taps: list[Tap],
    passed: Collection[tuple[str, int]],
    build: Builder,
    retain: bool,
    trail: Trail | None = None,
) -> list[tuple[Tensor, Term]]:
    """The parameters' terms from one backward pass; empties ``taps``."""
    found: list[tuple[Tensor, Term]] = []
    asked: list[Tap] = []
    waiting: dict[int, Tap] = {}
    unfollowed: Any = nullcontext if trail is None else _unfollowed

    def hear(place: int, gradients: tuple[Tensor | None, ...]) -> None:
        tap = waiting.pop(place, None)
        if tap is not None and (gradient := gradients[tap.edge.output_nr]) is not None:
            with unfollowed():
                found.extend(build(tap, gradient))

    for place, tap in enumerate(taps):
        if tap.key in passed:
            waiting[place] = tap
            tap.edge.node.register_prehook(partial(hear, place))
        else:
            asked.append(tap)
    taps.clear()
    if not asked:
        if waiting:
            raise Unsupported(CHANGED)
        return found
    with Gathering():
        answers = gradients(losses, [tap.edge for tap in asked], retain, trail)
    for tap, gradient in zip(asked, answers, strict=True):
        if gradient is not None:
            found.extend(build(tap, gradient))
    if waiting and any(reachable(losses, tap.edge) for tap in waiting.values()):
        raise Unsupported(CHANGED)
    gathered = found.copy()
    found.clear()  # the hooks live as long as the losses do
    return gathered


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
            self._groups[group] = self._summed(terms)
            size = self.like.element_size()
            if any(term.kind.itemsize < size for term in terms.values()):
                self._groups[group].norms.mul_(1 + ROUNDING)
        return self._groups[group]

    def _summed(self, terms: Mapping[str, Term]) -> _Group:
        plain = [term for term in terms.values() if isinstance(term, _PLAIN)]
        squares, ordinary = _squares(plain) if plain else (None, True)
        together = _PLAIN if squares is not None else ()
        ghosts = {name: measure(term) for name, term in terms.items() if not isinstance(term, together)}
        if squares is None:
            squares = torch.zeros(self.units, dtype=torch.float64, device=self.like.device)
        for measured in ghosts.values():
            squares = squares + measured.squares
        norms, poisoned = squares.sqrt_(), None
        if ghosts or not ordinary:
            norms = faded(norms)
            poisoned = None if _finite(norms) else ~norms.isfinite()
        norms = norms.to(self.like)
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
        """The coefficients, less what is too small for its rounding to be small: no rounding decides who counts."""
        if own.shape != (self.units,):
            raise InvalidInput(f"a query has one coefficient per unit ({self.units}), got shape {tuple(own.shape)}.")
        own = own.to(self.like)
        return F.softshrink(own, torch.finfo(own.dtype).tiny)

    def _checked(self, direction: Tensor, group: int) -> Tensor:
        if direction.shape != (self.layouts[group].size,):
            raise InvalidInput(
                f"the direction must be flat with {self.layouts[group].size} values, got {tuple(direction.shape)}."
            )
        return direction.to(self.like)


def _squares(terms: Sequence[Dense | Pair]) -> tuple[Tensor | None, bool]:
    """The sum of the squared norms of terms without cancellation, all at once, and whether all are of ordinary size.

    Many layers are small. Of a layer with a bias ``|l|^2 |r|^2 + |l|^2 = |l|^2 (|r|^2 + 1)``. None if a factor is
    `TOO_LARGE`, or no number: then the terms must be measured one by one.
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
        if pairs and not bool((norms[len(alone) :] < TOO_LARGE).all()):
            return None, False
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
