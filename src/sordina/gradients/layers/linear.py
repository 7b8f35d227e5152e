"""Linear maps: ``torch.nn.Linear`` over any leading dimensions, and the transposed ``Conv1D`` of GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold, widen
from sordina.gradients.terms import Dense, Pair, Term, outer


def linear(module: nn.Linear, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``y = x W^T + c``: ``g_W = sum_t b_t x_t^T`` and ``g_c = sum_t b_t``."""
    weight, bias = own(module, "weight"), own(module, "bias")
    if b.dim() == 2 and fold.rows == 1:
        left = Dense(widen(b))
        if weight is not None:
            yield weight, Pair(left, Dense(widen(input)))
        if bias is not None:
            yield bias, left
        return
    places = fold.places(b)
    if weight is not None:
        yield weight, outer(places, fold.places(input))
    if bias is not None:
        yield bias, Dense(places.sum(1))


def conv1d_of_gpt2(module: nn.Module, b: Tensor, fold: Fold, x: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``y = x W + c``: the same, transposed."""
    right = fold.places(b)
    if (weight := own(module, "weight")) is not None:
        yield weight, outer(fold.places(x), right)
    if (bias := own(module, "bias")) is not None:
        yield bias, Dense(right.sum(1))


def own(module: nn.Module, name: str) -> Tensor | None:
    """The module's parameter of that name, if it has one of its own and it learns."""
    parameter = module._parameters.get(name)
    return parameter if parameter is not None and parameter.requires_grad else None
