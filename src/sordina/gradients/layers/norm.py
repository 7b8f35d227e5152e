"""Normalisations that stay within one sample: ``g_scale = sum b o x-hat``, ``g_shift = sum b``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients.layers.linear import own
from sordina.gradients.layout import Fold, widen
from sordina.gradients.terms import Dense, Term


def layer_norm(module: nn.LayerNorm, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """LayerNorm: the scale has the shape of the last dimensions."""
    keep = len(module.normalized_shape)
    if (weight := own(module, "weight")) is not None:
        normal = F.layer_norm(widen(input), module.normalized_shape, eps=module.eps)
        yield weight, Dense(fold.total(normal.mul_(b), keep))
    if (bias := own(module, "bias")) is not None:
        yield bias, Dense(fold.total(b, keep))


def rms_norm(module: nn.RMSNorm, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """RMSNorm: LayerNorm without centre or shift."""
    if (weight := own(module, "weight")) is not None:
        shape = module.normalized_shape
        normal = F.rms_norm(widen(input), shape, eps=module.eps)
        yield weight, Dense(fold.total(normal.mul_(b), len(shape)))


def group_norm(module: nn.GroupNorm, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """GroupNorm: the scale has one value per channel, dimension 1."""
    normal = partial(F.group_norm, widen(input), module.num_groups, eps=module.eps)
    return _per_channel(module, b, fold, normal)


def instance_norm(
    module: nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d, b: Tensor, fold: Fold, input: Tensor
) -> Iterator[tuple[Tensor, Term]]:
    """InstanceNorm with a learned scale: each channel of each sample by itself."""
    normal = partial(F.instance_norm, widen(input), eps=module.eps)
    return _per_channel(module, b, fold, normal)


def _per_channel(
    module: nn.Module, b: Tensor, fold: Fold, normal: Callable[[], Tensor]
) -> Iterator[tuple[Tensor, Term]]:
    if (weight := own(module, "weight")) is not None:
        yield weight, Dense(fold.by_row(_by_channel(normal().mul_(b))))
    if (bias := own(module, "bias")) is not None:
        yield bias, Dense(fold.by_row(_by_channel(widen(b))))


def batch_norm(
    module: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, b: Tensor, fold: Fold, input: Tensor
) -> Iterator[tuple[Tensor, Term]]:
    """BatchNorm with frozen statistics (`sordina.check` refuses any other): a scale and a shift per channel."""
    b = widen(b).reshape(*b.shape[:2], -1)
    if (weight := own(module, "weight")) is not None:
        normal = F.batch_norm(widen(input), module.running_mean, module.running_var, eps=module.eps)
        yield weight, Dense(fold.by_row(normal.reshape(b.shape).mul(b).sum(2)))
    if (bias := own(module, "bias")) is not None:
        yield bias, Dense(fold.by_row(b.sum(2)))


def _by_channel(x: Tensor) -> Tensor:
    """(n, C, ...) summed over everything but samples and channels."""
    return x if x.dim() == 2 else x.flatten(2).sum(2)
