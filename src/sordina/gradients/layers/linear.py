"""Linear maps: ``torch.nn.Linear`` over any leading dimensions, and the transposed ``Conv1D`` of GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold
from sordina.gradients.terms import Dense, Outer, Term


def linear(module: nn.Module, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """``y = a W^T + c``: ``g_W = sum_t b_t a_t^T`` and ``g_c = sum_t b_t``."""
    if wants(module, "weight"):
        yield "weight", Outer(fold.places(b), fold.places(a))
    if wants(module, "bias"):
        yield "bias", Dense(fold.total(b))


def conv1d_of_gpt2(module: nn.Module, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """``y = a W + c``: the same, transposed."""
    if wants(module, "weight"):
        yield "weight", Outer(fold.places(a), fold.places(b))
    if wants(module, "bias"):
        yield "bias", Dense(fold.total(b))


def wants(module: nn.Module, name: str) -> bool:
    """Whether the module has a trainable parameter of that name."""
    parameter = module._parameters.get(name)
    return parameter is not None and parameter.requires_grad
