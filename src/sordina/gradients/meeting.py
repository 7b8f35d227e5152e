"""Where a free tensor meets the samples: taps for operations on parameters that belong to no layer with a rule.

Broadcast arithmetic (positional embeddings, learned scales), copies for every sample (class tokens), products with a
matrix and look-ups have formulas. Any other operation is differentiated sample by sample with ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordina.gradients.blocks import Pulled
from sordina.gradients.capture import Recorder
from sordina.gradients.layers.fold import Fold, widen
from sordina.gradients.lookup import Lookup
from sordina.gradients.nested import tensors_in
from sordina.gradients.sampled import Operation, Sampled
from sordina.gradients.terms import Dense, Term, outer
from sordina.gradients.trace import BATCHED, REPEATING, Free, Tracer

ARITHMETIC = {
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum", "where")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
} | {"rsub", "subtract", "multiply", "divide"}
PRODUCTS = {"matmul", "__matmul__", "mm"}


@dataclass(frozen=True)
class Meeting:
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
        result = func(*args, **kwargs)
        operation = Operation.of(func, args, kwargs, tracer)
        if not operation.fits(result):
            return result
        label = self._label(name, next(iter(operation.free.values())))
        self.tell(f"{label} has no rule: torch.func takes its gradients sample by sample")

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            for place, kind in operation.free.items():
                yield from pulled(Sampled(operation, place, widen(b), fold), operation.leaves[place], kind)

        sources = tuple(tensor for place, tensor in operation.tensors.items() if place not in operation.free)
        self._tap(label, result, build, sources, any_dim=False)
        return result


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
