"""Operations on parameters that belong to no layer with a rule, differentiated sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from sordina.gradients._chance import dropout_rate
from sordina.gradients._hooks import Recorder
from sordina.gradients._tracing import BATCHED, REPEATING, Free, Tracer, tensors_in
from sordina.gradients.combined_terms import Pulled
from sordina.gradients.layout import Fold, widen
from sordina.gradients.norms import NormEstimate, Weights, squared_lengths
from sordina.gradients.terms import Dense, Lookup, Term, chunks, contract_rows, outer

# Any operation, differentiated sample by sample with ``torch.func``.


@dataclass(frozen=True)
class Operation:
    """A function with its arguments, some of them free, some with the samples along their first dimension."""

    func: Any
    leaves: tuple[Any, ...]
    spec: TreeSpec
    free: Mapping[int, Free]
    batched: tuple[int, ...]

    @classmethod
    def of(cls, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tracer: Tracer) -> Operation:
        """Sort the arguments by what the tracer knows of them."""
        leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
        kinds = {place: tracer.kind(leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        free = {place: kind for place, kind in kinds.items() if isinstance(kind, Free)}
        batched = tuple(place for place, kind in kinds.items() if kind is BATCHED)
        return cls(func, tuple(leaves), spec, free, batched)

    @cached_property
    def tensors(self) -> dict[int, Tensor]:
        """The tensors among the arguments."""
        return {place: leaf for place, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)}

    @cached_property
    def _detached(self) -> list[Any]:
        return [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]

    def fits(self, result: Any) -> bool:
        """Whether result and samples agree on their number, and nothing was changed in place."""
        if not isinstance(result, Tensor) or not result.dim() or self.func.__name__.rstrip("_").startswith("__i"):
            return False
        sizes = {self.leaves[place].shape[:1] for place in self.batched}
        return sizes == {result.shape[:1]} and not self.func.__name__.endswith("_")

    def call(self, changes: Mapping[int, Tensor]) -> Tensor:
        """The operation with some arguments replaced."""
        leaves = [changes.get(place, leaf) for place, leaf in enumerate(self._detached)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        result: Tensor = self.func(*args, **kwargs)
        return result


@dataclass(frozen=True)
class PerSampleOperation:
    """Gradients of the free argument at ``place`` of an operation, from the operation's output gradient."""

    operation: Operation
    place: int
    b: Tensor
    fold: Fold

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.fold.units

    @property
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.b.dtype

    @property
    def value(self) -> Tensor:
        """The free argument."""
        value: Tensor = self.operation.leaves[self.place].detach()
        return value

    def _pull(self, changes: Mapping[int, Tensor]) -> Callable[[Tensor], Tensor]:
        """The vector-Jacobian product of the operation, with some arguments replaced."""
        output, pull, *_ = vjp(lambda value: self.operation.call({**changes, self.place: value}), self.value)
        return lambda b: pull(b.to(output.dtype))[0]

    def _pieces(self, units: slice) -> Iterator[Tensor]:
        size = self.fold.rows * self.value.numel() * self.value.element_size()
        for piece in chunks(units.stop - units.start, size):
            yield self._piece(units.start + piece.start, units.start + piece.stop)

    def _piece(self, start: int, stop: int) -> Tensor:
        """``vmap`` over samples of the vector-Jacobian product of the operation on a batch of one."""
        rows = slice(start * self.fold.rows, stop * self.fold.rows)
        samples = {place: self.operation.leaves[place].detach()[rows] for place in self.operation.batched}

        def one(sample: dict[int, Tensor], b: Tensor) -> Tensor:
            alone = {place: value.unsqueeze(0) for place, value in sample.items()}
            return self._pull(alone)(b.unsqueeze(0))

        each = vmap(one)(samples, self.b[rows]).flatten(1)
        return each if self.fold.rows == 1 else each.view(stop - start, self.fold.rows, -1).sum(1)

    def estimate(self) -> NormEstimate:
        """In pieces of the batch."""
        pieces = self._pieces(slice(0, self.units))
        return NormEstimate(torch.cat([squared_lengths(piece) for piece in pieces]))

    def project(self, direction: Tensor) -> Tensor:
        """In pieces of the batch."""
        return torch.cat([piece @ direction.reshape(-1) for piece in self._pieces(slice(0, self.units))])

    def contract(self, weights: Weights, out: Tensor) -> None:
        """The sum of the vectors that were measured: the operation as a whole would round, or cancel, otherwise."""
        contract_rows(self, weights, out)

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return torch.cat(list(self._pieces(where)))

    def take(self, units: Tensor) -> PerSampleOperation:
        """Some of the units."""
        rows = (units[:, None] * self.fold.rows + torch.arange(self.fold.rows, device=units.device)).flatten()
        leaves = list(self.operation.leaves)
        for place in self.operation.batched:
            leaves[place] = leaves[place].detach().index_select(0, rows)
        fold = self.fold._replace(units=len(units))
        return PerSampleOperation(
            replace(self.operation, leaves=tuple(leaves)), self.place, self.b.index_select(0, rows), fold
        )


# Where a free tensor meets the samples: taps for operations on parameters that belong to no layer with a rule.
#
# Broadcast arithmetic (positional embeddings, learned scales), copies for every sample (class tokens), products with a
# matrix and look-ups have formulas. Any other operation is differentiated sample by sample with ``torch.func``.

ARITHMETIC = {
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum", "where")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
} | {"rsub", "subtract", "multiply", "divide"}
PRODUCTS = {"matmul", "__matmul__", "mm"}


@dataclass(frozen=True)
class FreeParameters:
    """Performs operations between free and batched tensors, and taps them."""

    recorder: Recorder
    tell: Callable[[str], None]
    names: Mapping[int, str]

    def _label(self, name: str, kind: Free) -> str:
        return f"{name} with {' and '.join(self.names[id(root)] for root in kind.roots)}"

    def _tap(self, *args: Any, **kwargs: Any) -> None:
        self.recorder.tracing = True
        self.recorder.tap(*args, **kwargs)

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tracer: Tracer) -> Any:
        """The operation's result."""
        name = getattr(func, "__name__", str(func))
        kinds = [tracer.kind(value) if isinstance(value, Tensor) else None for value in args]
        if name in REPEATING and isinstance(kinds[0], Free):
            return self._repeated(func, args, kwargs, kinds[0], tracer)
        if name in ARITHMETIC and "out" not in kwargs:
            return self._broadcast(func, name, args, kwargs, tracer)
        if name == "linear" and kinds[0] is BATCHED and BATCHED not in kinds[1:] and not kwargs:
            return self._linear(func, args, kinds)
        if name in PRODUCTS and kinds[0] is BATCHED and isinstance(kinds[1], Free) and args[1].dim() == 2:
            return self._product(func, args, kinds[1])
        if name == "embedding" and kinds[0] is BATCHED and isinstance(kinds[1], Free):
            return self._table(func, args, kwargs, kinds[1])
        return self._any(func, name, args, kwargs, tracer)

    def _repeated(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Free, tracer: Tracer) -> Any:
        """A copy for every sample, if it is that."""
        value: Tensor = args[0]
        result = func(*args, **kwargs)
        grown = isinstance(result, Tensor) and (result.dim() > value.dim() or result.shape[:1] != value.shape[:1])
        label = self._label("repetition", kind)
        if not grown or not self.recorder.rows_of_constants(label, result.shape[0], tracer.rows):
            return result

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            yield from pulled(Dense(unexpanded(b, value.shape, fold)), value, kind)

        if all(old in (1, new) for old, new in zip(value.shape[::-1], result.shape[::-1], strict=False)):
            self._tap(label, result, build, (), batched=False)
            tracer.mark(result, BATCHED)
        return result

    def _broadcast(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tracer: Tracer) -> Any:
        """Expand the free tensors first: the gradient of an expanded tensor still knows the samples apart."""
        tensors = list(tensors_in([*args, *kwargs.values()]))
        shape = torch.broadcast_shapes(*[tensor.shape for tensor in tensors])  # type: ignore[no-untyped-call]
        batched = tuple(tensor for tensor in tensors if tracer.kind(tensor) is BATCHED)

        def expanded(value: Any) -> Any:
            kind = tracer.kind(value) if isinstance(value, Tensor) else None
            if not isinstance(kind, Free):
                return value
            wide = value.expand(shape)

            def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
                yield from pulled(Dense(unexpanded(b, value.shape, fold)), value, kind)

            self._tap(self._label(name, kind), wide, build, (), batched=bool(batched))
            return wide

        return func(*[expanded(value) for value in args], **{key: expanded(value) for key, value in kwargs.items()})

    def _linear(self, func: Any, args: Sequence[Any], kinds: Sequence[Any]) -> Any:
        result = func(*args)
        x: Tensor = args[0]

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            if isinstance(kinds[1], Free):
                yield from pulled(outer(fold.places(b), fold.places(x.detach())), args[1], kinds[1])
            if len(kinds) > 2 and isinstance(kinds[2], Free):
                yield from pulled(Dense(fold.total(b)), args[2], kinds[2])

        self._tap(self._label("linear", next(kind for kind in kinds if isinstance(kind, Free))), result, build, (x,))
        return result

    def _product(self, func: Any, args: Sequence[Any], kind: Free) -> Any:
        result = func(*args)
        x: Tensor = args[0]

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            yield from pulled(outer(fold.places(x.detach()), fold.places(b)), args[1], kind)

        self._tap(self._label("product", kind), result, build, (x,))
        return result

    def _table(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Free) -> Any:
        result = func(*args, **kwargs)
        indices, table = args[0], args[1]
        padding = args[2] if len(args) > 2 else kwargs.get("padding_idx")

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            places = fold.places(indices, keep=0)[..., 0]
            yield from pulled(looked_up(places, fold.places(b), len(table), padding), table, kind)

        self._tap(self._label("embedding", kind), result, build, (indices,))
        return result

    def _any(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tracer: Tracer) -> Any:
        """Sample by sample; in-place operations and those with several results are left to the last resort."""
        if name == "scaled_dot_product_attention" and dropout_rate(name, args, kwargs) > 0:
            with tracer:  # computed once more it would drop other values: so its parts are followed, which draw nothing
                return attention(*args, **kwargs)
        result = func(*args, **kwargs)
        operation = Operation.of(func, args, kwargs, tracer)
        if not operation.fits(result):
            return result
        label = self._label(name, next(iter(operation.free.values())))
        self.tell(f"{label} has no rule: torch.func takes its gradients sample by sample")

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            for place, kind in operation.free.items():
                yield from pulled(PerSampleOperation(operation, place, widen(b), fold), operation.leaves[place], kind)

        sources = tuple(tensor for place, tensor in operation.tensors.items() if place not in operation.free)
        self._tap(label, result, build, sources, any_dim=False)
        return result


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` in parts, as its documentation has it."""
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    return torch.nn.functional.dropout(weights, dropout_p) @ value


def unexpanded(b: Tensor, shape: Sequence[int], fold: Fold) -> Tensor:
    """Per-unit gradients (U, size) of a tensor of ``shape`` from the gradient of its broadcast copy."""
    b = widen(b)
    old = (1,) * (b.dim() - len(shape)) + tuple(shape)
    if old[fold.dim] != 1 and b.shape[fold.dim] != 1:
        own = torch.zeros(b.shape[fold.dim], *b.shape, dtype=b.dtype, device=b.device)
        each = torch.arange(b.shape[fold.dim], device=b.device)
        own.movedim(fold.dim + 1, 1)[each, each] = b.movedim(fold.dim, 0)
    else:
        own = b.movedim(fold.dim, 0).unsqueeze(fold.dim + 1)
    gone = [dim + 1 for dim, size in enumerate(old) if size == 1 and own.shape[dim + 1] != 1]
    rows = own.sum(gone) if gone else own
    return fold.by_row(rows.reshape(fold.units * fold.rows, -1))


def looked_up(indices: Tensor, values: Tensor, height: int, padding: int | None) -> Lookup:
    """The term of a table, its padding row silenced."""
    if padding is not None:
        values = values.masked_fill((indices == padding % height)[..., None], 0)
    return Lookup(indices, values, height)


def pulled(term: Term, value: Tensor, kind: Free) -> Iterator[tuple[Tensor, Term]]:
    """The term of a free tensor as terms of the parameters it is a function of."""
    for root in kind.roots:
        if value is root:
            yield root, term
        elif kind.looked_up is not None and isinstance(term, Dense):
            indices, height, padding = kind.looked_up
            places = indices.reshape(1, -1).expand(term.units, -1)
            yield root, looked_up(places, term.vectors.view(*places.shape, -1), height, padding)
        else:
            yield root, Pulled(term, value, root, kind.isometric)
