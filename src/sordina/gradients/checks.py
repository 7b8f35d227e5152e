"""What would break a per-sample bound, found before training, and repaired where it can be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from sordina.errors import Unsupported

# What would break a per-sample bound, found before training.

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True)
class Problem:
    """A module that cannot be trained privately as it is, and what to do about it.

    Args:
        reason: Why no per-sample bound exists.
        remedy: What to use instead.
    """

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


def to_training_mode(model: nn.Module) -> None:
    """As ``model.train()``, but for batch norms that somebody put into evaluation mode while the rest trains.

    Args:
        model: What will train.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and not module.training]
    frozen = norms if model.training else []
    model.train()
    for norm in frozen:
        norm.eval()


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


def _unreadable(module: nn.Module) -> tuple[str, str] | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript hides what a layer does with its parameters.", "Pass the Python module it was made from."
    if any(each is not None and each.requires_grad and each.is_complex() for each in module._parameters.values()):
        return "complex parameters have no rule.", "Keep real and imaginary part as two real parameters."
    return None


def refuse_compiled(model: nn.Module) -> None:
    """Say what to do about a model that was compiled by `torch.compile`, in whole or in part, and cannot be followed.

    Args:
        model: What cannot be run on made-up rows.
    """
    parts = list(model.modules())
    dynamo = any(type(module).__module__.startswith("torch._dynamo") for module in parts)
    if dynamo or any(getattr(module, "_compiled_call_impl", None) is not None for module in parts):
        raise Unsupported(
            "the model was compiled (torch.compile), and what it does cannot be followed on made-up rows: give the "
            "model itself, and compile it after training."
        )


class Squeezed(Exception):
    """What a model says of one sample alone has no dimension of samples."""


def unseen_words(failure: Exception | None, tensors: Sequence[Tensor], rows: int) -> str:
    """Why nobody can see that samples stay apart.

    Args:
        failure: What a model raised on made-up rows; None if it never ran.
        tensors: Those of its arguments.
        rows: How many samples were expected.
    """
    if isinstance(failure, Squeezed):
        return (
            "what the model says of one sample alone has no dimension of samples: squeeze() removes that too where "
            "there is one sample. Name the dimension: squeeze(-1)."
        )
    sizes = [str(len(each)) for each in tensors if each.dim()]
    if failure is None and sizes:
        return (
            f"the model is called on {sizes[0]} rows, {rows} samples were expected: call it on all samples of a batch "
            "at once, each in one row; where samples are needed twice call it twice, not on torch.cat([x, x])."
        )
    what = "no argument is a tensor" if failure is None else f"{type(failure).__name__} on made-up rows"
    return (
        f"the model cannot be run on a few samples, or on one alone ({what}), so it cannot be seen that samples stay "
        "apart. Arguments must be tensors (in lists, tuples, dictionaries or dataclasses) with the samples along one "
        "dimension, and any number of samples must be possible."
    )


TESTS: tuple[Callable[[nn.Module], tuple[str, str] | None], ...] = (
    _unreadable,
    _wrapped,
    _mixing,
    _tracking,
    _embedding,
    _lazy,
)


# Repair what can be repaired in a model, so that it trains privately.

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
