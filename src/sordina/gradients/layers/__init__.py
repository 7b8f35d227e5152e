"""The rules: how a layer's input and output gradient give its per-unit gradients, one file per family of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sordina.gradients.layers import attention, convolution, linear, norm, recurrent
from sordina.gradients.layout import Fold
from sordina.gradients.terms import Term


@dataclass(frozen=True)
class Rule:
    """How one type of module turns its inputs and output gradient into terms, one per trainable parameter."""

    terms: Callable[..., Iterator[tuple[Tensor, Term]]] | None = None
    """Called with the module, the output gradient, the fold and the inputs of the forward pass."""
    forward: Callable[..., Any] | None = None
    """Or: the module's forward pass in pieces that are tapped one by one; called with module, tap and inputs."""
    parameters: frozenset[str] | None = frozenset({"weight", "bias"})
    """The parameters the rule knows; None stands for any."""
    any_dim: bool = True
    """Whether the samples may lie along another dimension than the first."""


_CONV, _TRANSPOSED = Rule(convolution.convolution, any_dim=False), Rule(convolution.transposed, any_dim=False)
_INSTANCE = Rule(norm.instance_norm, any_dim=False)
_FROZEN = Rule(norm.batch_norm, any_dim=False)
_RECURRENT = Rule(forward=recurrent.recurrent_forward, parameters=None)
_CELL = Rule(forward=recurrent.cell_forward, parameters=None)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(linear.linear),
    nn.LayerNorm: Rule(norm.layer_norm),
    nn.RMSNorm: Rule(norm.rms_norm),
    nn.GroupNorm: Rule(norm.group_norm, any_dim=False),
    nn.InstanceNorm1d: _INSTANCE,
    nn.InstanceNorm2d: _INSTANCE,
    nn.InstanceNorm3d: _INSTANCE,
    nn.BatchNorm1d: _FROZEN,
    nn.BatchNorm2d: _FROZEN,
    nn.BatchNorm3d: _FROZEN,
    nn.Embedding: Rule(linear.embedding),
    nn.EmbeddingBag: Rule(linear.embedding_bag, any_dim=False),
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.Conv3d: _CONV,
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.MultiheadAttention: Rule(forward=attention.forward, parameters=None),
    nn.LSTM: _RECURRENT,
    nn.GRU: _RECURRENT,
    nn.RNN: _RECURRENT,
    nn.LSTMCell: _CELL,
    nn.GRUCell: _CELL,
    nn.RNNCell: _CELL,
}
NAMED: dict[str, Rule] = {"transformers.pytorch_utils.Conv1D": Rule(linear.conv1d_of_gpt2)}
"""Rules for classes of packages that need not be installed."""


def rule_for(module: nn.Module) -> Rule | None:
    """The module's rule, if its forward is the one the rule was written for and its parameters are plain."""
    for kind in type(module).__mro__:
        rule = RULES.get(kind) or NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule:
            plain = _plain(module, rule.parameters)
            same = getattr(type(module), "forward", None) is getattr(kind, "forward", None)
            return rule if plain and same and "forward" not in module.__dict__ and _fit(module) else None
    return None


def _plain(module: nn.Module, known: frozenset[str] | None) -> bool:
    """Whether the module's weights are parameters of its own, not computed from others (weight norm and the like)."""
    if known is None:
        return not hasattr(module, "parametrizations")
    own = {name for name, parameter in module._parameters.items() if parameter is not None}
    return own <= known and all(name in module._parameters for name in known if hasattr(module, name))


def _fit(module: nn.Module) -> bool:
    """Whether the module's options are among those its rule covers."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        stock = {nn.Conv1d._conv_forward, nn.Conv2d._conv_forward, nn.Conv3d._conv_forward}
        return type(module)._conv_forward in stock and "_conv_forward" not in module.__dict__
    return not (isinstance(module, nn.EmbeddingBag) and module.mode == "max")


__all__ = ["Fold", "Rule", "rule_for"]
