"""Normalisations that stay within one sample: ``g_scale = sum b o x-hat``, ``g_shift = sum b``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold, widen
from sordina.gradients.layers.linear import wants
from sordina.gradients.terms import Dense, Term


def layer_norm(module: nn.LayerNorm, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """LayerNorm: the scale has the shape of the last dimensions."""
    keep = len(module.normalized_shape)
    if wants(module, "weight"):
        normal = F.layer_norm(widen(a), module.normalized_shape, eps=module.eps)
        yield "weight", Dense(fold.total(normal.mul_(b), keep))
    if wants(module, "bias"):
        yield "bias", Dense(fold.total(b, keep))


def rms_norm(module: nn.RMSNorm, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """RMSNorm: LayerNorm without centre or shift."""
    if wants(module, "weight"):
        shape = module.normalized_shape
        normal = F.rms_norm(widen(a), shape, eps=module.eps)
        yield "weight", Dense(fold.total(normal.mul_(b), len(shape)))


def group_norm(module: nn.GroupNorm, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """GroupNorm: the scale has one value per channel, dimension 1."""
    return _per_channel(module, b, fold, lambda: F.group_norm(widen(a), module.num_groups, eps=module.eps))


def instance_norm(
    module: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, a: Tensor, b: Tensor, fold: Fold
) -> Iterator[tuple[str, Term]]:
    """InstanceNorm with a learned scale: each channel of each sample by itself."""
    return _per_channel(module, b, fold, lambda: F.instance_norm(widen(a), eps=module.eps))


def _per_channel(module: nn.Module, b: Tensor, fold: Fold, normal: Callable[[], Tensor]) -> Iterator[tuple[str, Term]]:
    if wants(module, "weight"):
        yield "weight", Dense(fold.by_row(normal().mul_(b).flatten(2).sum(2)))
    if wants(module, "bias"):
        yield "bias", Dense(fold.by_row(widen(b).flatten(2).sum(2)))
