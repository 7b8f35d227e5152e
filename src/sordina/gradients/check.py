"""What would break a per-sample bound, found before training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from sordina.errors import InvalidInput

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True)
class Problem:
    """A module that cannot be trained privately as it is, and what to do about it."""

    module: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        where = f"module {self.module!r}: " if self.module else "the model: "
        return f"{where}{self.reason} {self.remedy}"


FIX = "Repair it with sordina.fix(model)."


def check(model: nn.Module) -> list[Problem]:
    """Everything in ``model`` that would break, by name; an empty list means none was found.

    >>> [str(problem) for problem in check(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))]
    ["module '1': BatchNorm2d mixes samples, so no per-sample bound exists. Use GroupNorm: sordina.fix(model)."]
    """
    found = []
    for name, module in model.named_modules():
        found += [Problem(name, *words) for test in TESTS if (words := test(module))]
    return found


def _wrapped(module: nn.Module) -> tuple[str, str] | None:
    if isinstance(module, WRAPPERS):
        return f"{type(module).__name__} averages gradients before they are clipped.", "Pass the bare model inside it."
    return None


def _mixing(module: nn.Module) -> tuple[str, str] | None:
    if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm):
        if not module.training and module.running_mean is not None and module.running_var is not None:
            return None
        kind = type(module).__name__
        return f"{kind} mixes samples, so no per-sample bound exists.", "Use GroupNorm: sordina.fix(model)."
    return None


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norms that somebody put into evaluation mode while the rest of ``model`` trains."""
    if not model.training:
        return []
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and not module.training]


def _tracking(module: nn.Module) -> tuple[str, str] | None:
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return f"{type(module).__name__} keeps running statistics of raw data, outside any budget.", FIX
    return None


def _embedding(module: nn.Module) -> tuple[str, str] | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return "max_norm rescales the rows a batch looks up, outside any budget.", "Set max_norm=None."
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq divides by counts over the batch, so samples mix.", FIX
        if module.sparse:
            return "sparse gradients would show which rows were looked up, and noise is dense.", FIX
    return None


def _lazy(module: nn.Module) -> tuple[str, str] | None:
    if any(
        isinstance(each, UninitializedParameter | UninitializedBuffer)
        for each in (*module._parameters.values(), *module._buffers.values())
    ):
        kind = type(module).__name__
        return f"{kind} has no parameters before its first input.", "Run the model once, on made-up rows, before."
    return None


TESTS: tuple[Callable[[nn.Module], tuple[str, str] | None], ...] = (_wrapped, _mixing, _tracking, _embedding, _lazy)


def check_losses(losses: Any, batch: int | None = None) -> Tensor:
    """Refuse anything but one loss per sample."""
    if not isinstance(losses, Tensor):
        raise InvalidInput(f"losses must be a tensor with one loss per sample, got {type(losses).__name__}.")
    if losses.dim() == 0:
        raise InvalidInput("the loss is a single number: per-sample losses are needed, use reduction='none'.")
    if losses.dim() != 1:
        raise InvalidInput(f"losses must have shape (B,), got {tuple(losses.shape)}: reduce each sample to one number.")
    if batch is not None and len(losses) != batch:
        raise InvalidInput(f"{len(losses)} losses for {batch} samples: return exactly one loss per sample.")
    if len(losses) and not losses.requires_grad:
        raise InvalidInput("the losses have no graph: run the forward pass with gradients enabled.")
    return losses
