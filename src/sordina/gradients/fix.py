"""Repair what can be repaired in a model, so that it trains privately."""

from __future__ import annotations

import copy
from math import gcd

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sordina.errors import Unsupported

_STOCK = {_BatchNorm.forward, nn.SyncBatchNorm.forward}


def fix(model: nn.Module) -> nn.Module:
    """A copy of ``model`` without what `check` finds and code can replace; parameters that remain keep their values.

    >>> fix(nn.Sequential(nn.BatchNorm2d(12), nn.ReLU(inplace=True)))
    Sequential(
      (0): GroupNorm(4, 12, ...)
      (1): ReLU()
    )
    """
    return _repaired(copy.deepcopy(model))


def _repaired(module: nn.Module) -> nn.Module:
    if isinstance(module, _InstanceNorm):
        return _without_statistics(module)
    if isinstance(module, _BatchNorm):
        return _group_norm(module)
    if getattr(module, "inplace", False) is True:
        module.inplace = False  # type: ignore[assignment]
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.scale_grad_by_freq = module.sparse = False
    for name, child in module.named_children():
        setattr(module, name, _repaired(child))
    return module


def _group_norm(module: _BatchNorm) -> nn.Module:
    """Groups of up to 32, as many as divide the channels; the learned scale and shift are kept.

    A norm with an activation inside (as in timm) keeps its ``drop`` and ``act``; any other forward pass of its own is
    refused, because nobody knows what to keep of it.
    """
    groups = gcd(module.num_features, 32)
    groups = groups if module.num_features // groups > 1 or groups == 1 else groups // 2
    fresh = nn.GroupNorm(groups, module.num_features, eps=module.eps, affine=module.affine)
    norm = _like(fresh, module)
    if type(module).forward in _STOCK and "forward" not in module.__dict__:
        return norm
    inside = {name: child for name, child in module.named_children() if name in ("drop", "act")}
    if len(inside) == 0 or len(inside) < len(list(module.children())):
        raise Unsupported(
            f"{type(module).__name__} is a BatchNorm with a forward pass of its own, of which sordina.fix would lose a "
            "part: replace it by hand, with GroupNorm and whatever else it does."
        )
    return nn.Sequential(norm, *(_repaired(inside[name]) for name in ("drop", "act") if name in inside))


def _without_statistics(module: _InstanceNorm) -> nn.Module:
    if not module.track_running_stats:
        return module
    fresh = type(module)(module.num_features, module.eps, affine=module.affine, track_running_stats=False)
    return _like(fresh, module)


def _like(fresh: nn.Module, module: _BatchNorm | _InstanceNorm) -> nn.Module:
    if module.affine:
        with torch.no_grad():
            fresh.weight, fresh.bias = module.weight, module.bias
    return fresh.train(module.training)
