"""The rules: how a layer's input and output gradient give its per-unit gradients, one file per family of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from sordina.gradients.layers import convolution, embedding, linear, norm
from sordina.gradients.layers.fold import Fold
from sordina.gradients.terms import Term


@dataclass(frozen=True)
class Rule:
    """How one type of module turns (input, output gradient) into terms, one per trainable parameter."""

    terms: Callable[..., Iterator[tuple[str, Term]]]
    parameters: frozenset[str] = frozenset({"weight", "bias"})
    any_dim: bool = False
    """Whether the samples may lie along another dimension than the first."""


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(linear.linear, any_dim=True),
    nn.LayerNorm: Rule(norm.layer_norm, any_dim=True),
    nn.RMSNorm: Rule(norm.rms_norm, any_dim=True),
    nn.Embedding: Rule(embedding.embedding, any_dim=True),
    nn.GroupNorm: Rule(norm.group_norm),
    **{kind: Rule(norm.instance_norm) for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)},
    **{kind: Rule(convolution.convolution) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)},
    **{kind: Rule(convolution.transposed) for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)},
}
NAMED: dict[str, Rule] = {"transformers.pytorch_utils.Conv1D": Rule(linear.conv1d_of_gpt2, any_dim=True)}
"""Rules for classes of packages that need not be installed."""


def rule_for(module: nn.Module) -> Rule | None:
    """The module's rule, if its forward is the one the rule was written for and its parameters are plain."""
    for kind in type(module).__mro__:
        rule = RULES.get(kind) or NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule:
            own = {name for name, parameter in module._parameters.items() if parameter is not None}
            same: Any = type(module).forward is kind.forward and "forward" not in module.__dict__
            return rule if same and own <= rule.parameters else None
    return None


__all__ = ["Fold", "Rule", "rule_for"]
