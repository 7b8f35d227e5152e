"""Several small networks trained as one batched computation: one forward and one backward pass for all of them.

For a network of a few thousand weights a step is mostly overhead, and a search has many such steps. Here the weights
of R networks of one architecture live side by side in tensors of shape (R, out, in), each network draws its own
Poisson batch (padded to the longest; padding never enters a sum), and ``torch.bmm`` does the layers of all. What is
private stays as it is for a single run: every network has its own sampler, policy, noise and account, and gets a tape
of its own from the common pass. So R stacked runs are R runs, in law and in cost.

For a linear layer with inputs a_i and output gradients b_i, ``|g_i|^2 = |a_i|^2 |b_i|^2 + |b_i|^2`` (weight and bias),
and a weighted sum of gradients is ``(w o b)^T a``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sordina.errors import InvalidInput
from sordina.gradients.wrapping import own_class
from sordina.seam import Query, ScalarQuery, Scalars
from sordina.training import Trainer
from sordina.training.losses import Loss

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Softplus, nn.Identity)
MOST_WEIGHTS = 30_000
"""Where stacking stops to pay: measured by ``python benchmarks/stacked.py``."""


def layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain feed-forward network of linear layers and activations; None if it is anything else."""
    parts = [model] if isinstance(model, nn.Linear) else list(model) if isinstance(model, nn.Sequential) else []
    parts = [part for part in parts if not (isinstance(part, nn.Dropout) and part.p == 0)]
    body = parts[1:] if parts and isinstance(parts[0], nn.Flatten) else parts
    known = all(own_class(part) in (nn.Linear, *ACTIVATIONS) for part in body)
    trainable = all(parameter.requires_grad for parameter in model.parameters())
    return parts if body and known and trainable and any(isinstance(part, nn.Linear) for part in body) else None


def stackable(trainer: Trainer) -> bool:
    """Whether runs like this one are worth stacking, and can be."""
    plain = trainer.users is None and trainer.microbatch is None and trainer.autocast is None
    weights = sum(parameter.numel() for parameter in trainer.model.parameters())
    return plain and weights <= MOST_WEIGHTS and layers(trainer.model) is not None


@dataclass(frozen=True)
class LinearTape:
    """The tape of one network: per linear layer its inputs (B, in) and output gradients (B, out)."""

    inputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    biased: Sequence[bool]

    def scalars(self, direction: Tensor | None = None, group: int = 0) -> Scalars:
        """Norms of the per-sample gradients; projections are not offered."""
        if direction is not None or group:
            raise InvalidInput(
                "stacked runs have one group of parameters and no direction: train such runs one by one."
            )
        return Scalars(self._norms.to(self.inputs[0]))

    @cached_property
    def _norms(self) -> Tensor:
        """In double precision, so that rounding hides nothing that clipping should see."""
        total = torch.zeros(len(self.inputs[0]), dtype=torch.float64)
        for a, b, biased in zip(self.inputs, self.gradients, self.biased, strict=True):
            total += (a.double().square().sum(1) + float(biased)) * b.double().square().sum(1)
        return total.sqrt_().mul_(1 + 2**-22)

    @cached_property
    def _sound(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Inputs and gradients without the samples whose gradient is not finite: they add nothing, to any sum."""
        poisoned = ~self._norms.to(self.inputs[0]).isfinite()
        if not poisoned.any():
            return self.inputs, self.gradients
        rows = poisoned[:, None]
        return [a.masked_fill(rows, 0) for a in self.inputs], [b.masked_fill(rows, 0) for b in self.gradients]

    def contract(self, queries: Sequence[Query], direction: Tensor | None = None, group: int = 0) -> list[Tensor]:
        """One flat vector per vector query, one number per scalar query."""
        return [
            query.value.sum() if isinstance(query, ScalarQuery) else self._sum(query.own.to(self.inputs[0]))
            for query in queries
        ]

    def _sum(self, own: Tensor) -> Tensor:
        parts = []
        for a, b, biased in zip(*self._sound, self.biased, strict=True):
            weighted = (b * own[:, None]).mT
            parts.append((weighted @ a).reshape(-1))
            if biased:
                parts.append(weighted.sum(1))
        return torch.cat(parts)


class Stack:
    """Networks of one architecture whose weights are slices of common tensors."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        found = [layers(model) for model in models]
        if not models or any(one is None or str(one) != str(found[0]) for one in found):
            raise InvalidInput("only plain networks of linear layers and of one architecture can be stacked.")
        self._layers = found[0] or []
        linear = [[part for part in one or [] if isinstance(part, nn.Linear)] for one in found]
        self._weights = [_join([part.weight for part in column]) for column in zip(*linear, strict=True)]
        self._biases = [
            _join([part.bias for part in column]) if column[0].bias is not None else None
            for column in zip(*linear, strict=True)
        ]

    def record(self, batches: Mapping[int, tuple[Tensor, Tensor]], loss: Loss) -> list[LinearTape]:
        """One pass over the batches of some networks, by their places, and a tape for each of them."""
        lengths = [len(x) for x, _ in batches.values()]
        x = nn.utils.rnn.pad_sequence([x.flatten(1) for x, _ in batches.values()], batch_first=True)
        y = nn.utils.rnn.pad_sequence([y for _, y in batches.values()], batch_first=True)
        answer, inputs, outputs = self._forward(x, list(batches))
        losses = loss(answer.flatten(0, 1), y.flatten(0, 1))
        gradients = torch.autograd.grad(losses.sum(), outputs)
        biased = [bias is not None for bias in self._biases]
        return [
            LinearTape([a[row, :size].detach() for a in inputs], [b[row, :size] for b in gradients], biased)
            for row, size in enumerate(lengths)
        ]

    def _forward(self, x: Tensor, active: list[int]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """What the networks answer, and what went into and came out of their linear layers."""
        everyone = len(active) == len(self._weights[0])
        inputs, outputs, number = [], [], 0
        for layer in self._layers:
            if isinstance(layer, nn.Flatten):
                continue
            if not isinstance(layer, nn.Linear):
                x = layer(x)
                continue
            weight, bias = self._weights[number], self._biases[number]
            weight = weight if everyone else weight[active]
            inputs.append(x)
            x = torch.bmm(x, weight.mT)
            if bias is not None:
                x = x + (bias if everyone else bias[active])[:, None]
            x.requires_grad_()
            outputs.append(x)
            number += 1
        return x, inputs, outputs


def _join(parameters: Sequence[Any]) -> Tensor:
    """One tensor that holds all parameters; each parameter becomes a view of its slice."""
    joined = torch.stack([parameter.detach() for parameter in parameters])
    for place, parameter in enumerate(parameters):
        parameter.data = joined[place]
    return joined
