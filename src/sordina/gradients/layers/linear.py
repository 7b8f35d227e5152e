"""Linear maps: ``torch.nn.Linear`` over any leading dimensions, and the transposed ``Conv1D`` of GPT-2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold
from sordina.gradients.terms import Dense, Pair, Term, outer


def linear(module: nn.Linear, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``y = x W^T + c``: ``g_W = sum_t b_t x_t^T`` and ``g_c = sum_t b_t``."""
    left = fold.places(b)
    term = outer(left, fold.places(input)) if wants(module.weight) else None
    if term is not None:
        yield module.weight, term
    if wants(module.bias):
        yield module.bias, term.left if isinstance(term, Pair) else Dense(left.sum(1))


def conv1d_of_gpt2(module: nn.Module, b: Tensor, fold: Fold, x: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``y = x W + c``: the same, transposed."""
    right, weight, bias = fold.places(b), module._parameters["weight"], module._parameters["bias"]
    if wants(weight):
        yield weight, outer(fold.places(x), right)
    if wants(bias):
        yield bias, Dense(right.sum(1))


def wants(parameter: Tensor | None) -> TypeGuard[Tensor]:
    """Whether there is such a parameter, and it learns."""
    return parameter is not None and parameter.requires_grad
