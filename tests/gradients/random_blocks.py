"""The words of the grammar of random models: small blocks of layers and operations.

A block is made for the shape of one sample and maps (B, *shape) to (B, *another shape). `SOUND` blocks keep samples
apart (more of them in `shape_blocks`); `MIXING` ones (`mixing_blocks`) let a sample look at others, and must be refused
or harmless. A program can lose blocks and still be built (`random_models.minimised`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Shape = tuple[int, ...]
Make = Callable[[Random, Shape], nn.Module]
SOUND: dict[str, tuple[frozenset[int], Make]] = {}
MIXING: dict[str, tuple[frozenset[int], Make]] = {}


def block(*dims: int, mixing: bool = False) -> Callable[[Make], Make]:
    """Register a block for samples of these numbers of dimensions; none named means any."""

    def register(make: Make) -> Make:
        (MIXING if mixing else SOUND)[make.__name__] = (frozenset(dims or (1, 2, 3, 4)), make)
        return make

    return register


class Op(nn.Module):
    """A function of the input and of named parameters, modules and buffers."""

    def __init__(self, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def weight(*shape: int, scale: float | None = None) -> nn.Parameter:
    """A random parameter of a size that keeps activations about 1."""
    return nn.Parameter(torch.randn(shape) * (scale if scale is not None else shape[-1] ** -0.5 if shape else 1.0))


def gate(r: Random) -> nn.Parameter:
    """A scalar, zero half of the time."""
    return nn.Parameter(torch.tensor(r.choice([0.0, 0.7])))


# Layers -----------------------------------------------------------------------------------------------------------


@block()
def linear(r: Random, shape: Shape) -> nn.Module:
    return nn.Linear(shape[-1], r.choice([2, 3, 5, shape[-1]]), bias=r.random() < 0.7)


@block()
def activation(r: Random, shape: Shape) -> nn.Module:
    return r.choice([nn.Tanh, nn.GELU, nn.ReLU, nn.Softplus, nn.SiLU, nn.Sigmoid, nn.LeakyReLU])()


@block()
def inplace_activation(r: Random, shape: Shape) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[-1], shape[-1]), nn.ReLU(inplace=True))


@block()
def layer_norm(r: Random, shape: Shape) -> nn.Module:
    return nn.LayerNorm(shape[-r.randint(1, len(shape)) :], elementwise_affine=r.random() < 0.8)


@block()
def rms_norm(r: Random, shape: Shape) -> nn.Module:
    return nn.RMSNorm(shape[-1], eps=1e-6)


@block(1, 2, 3)
def group_norm(r: Random, shape: Shape) -> nn.Module:
    groups = [g for g in range(1, shape[0] + 1) if shape[0] % g == 0 and math.prod(shape) // g > 1]
    return nn.GroupNorm(r.choice(groups), shape[0]) if groups else nn.Identity()


@block(2, 3)
def instance_norm(r: Random, shape: Shape) -> nn.Module:
    if math.prod(shape[1:]) < 2:
        return nn.Identity()
    return {2: nn.InstanceNorm1d, 3: nn.InstanceNorm2d}[len(shape)](shape[0], affine=r.random() < 0.7)


@block(1, 2, 3)
def frozen_batch_norm(r: Random, shape: Shape) -> nn.Module:
    layer: Any = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)](shape[0])
    layer.running_mean.normal_()
    return Evaluated(layer)


class Evaluated(nn.Module):
    """A layer that stays in evaluation mode, whatever its model does."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.eval()

    def train(self, mode: bool = True) -> Evaluated:
        super().train(mode)
        self.layer.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@block(2, 3, 4)
def convolution(r: Random, shape: Shape) -> nn.Module:
    kind: Any = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}[len(shape)]
    groups = r.choice([g for g in (1, 2, shape[0]) if shape[0] % g == 0])
    kernel = r.randint(1, min(3, *shape[1:]))
    mode = r.choice(["zeros", "zeros", "zeros", "circular", "replicate"]) if kernel > 1 else "zeros"
    return kind(
        shape[0], groups * r.randint(1, 3), kernel, stride=r.randint(1, 2), padding=r.randint(0, 1), groups=groups,
        padding_mode=mode, bias=r.random() < 0.7,
    )  # fmt: skip


@block(2, 3, 4)
def transposed_convolution(r: Random, shape: Shape) -> nn.Module:
    kind: Any = {2: nn.ConvTranspose1d, 3: nn.ConvTranspose2d, 4: nn.ConvTranspose3d}[len(shape)]
    stride = r.randint(1, 2)
    groups = r.choice([g for g in (1, 2) if shape[0] % g == 0])
    return kind(shape[0], groups * 2, r.randint(1, 2), stride=stride, output_padding=stride - 1, groups=groups)


class Standardised(nn.Conv1d):
    """A convolution with a forward of its own."""

    def _conv_forward(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, w - w.mean((1, 2), keepdim=True), bias)


@block(2)
def standardised_convolution(r: Random, shape: Shape) -> nn.Module:
    return Standardised(shape[0], 3, 1)


@block(2)
def recurrent(r: Random, shape: Shape) -> nn.Module:
    kind: Any = r.choice([nn.LSTM, nn.GRU, nn.RNN])
    layer = kind(
        shape[1], r.randint(2, 4), num_layers=r.randint(1, 2), batch_first=True, bidirectional=r.random() < 0.3
    )
    return Op(lambda self, x: self.layer(x)[0], layer=layer)


@block(2)
def recurrent_time_first(r: Random, shape: Shape) -> nn.Module:
    layer = r.choice([nn.LSTM, nn.GRU])(shape[1], 3)
    return Op(lambda self, x: self.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=layer)


@block(2)
def recurrent_cell(r: Random, shape: Shape) -> nn.Module:
    kind: Any = r.choice([nn.GRUCell, nn.RNNCell, nn.LSTMCell])

    def unrolled(self: Any, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)

    return Op(unrolled, cell=kind(shape[1], 3))


@block(2)
def packed_recurrent(r: Random, shape: Shape) -> nn.Module:
    """Ragged sequences: the length of each comes from its own first value."""

    def packed(self: Any, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0, 0].detach() > 0).long() * (x.shape[1] - 1)
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = self.layer(rows)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]

    return Op(packed, layer=nn.GRU(shape[1], 3, batch_first=True))


@block(2)
def attention(r: Random, shape: Shape) -> nn.Module:
    first = r.random() < 0.6
    layer = nn.MultiheadAttention(shape[1], 1, batch_first=first)
    masked = r.random() < 0.4

    def attend(self: Any, x: Tensor) -> Tensor:
        mask = None
        if masked:
            mask = x[..., 0].detach() > 0.8
            mask[:, 0] = False
        y = x if first else x.transpose(0, 1)
        out = self.layer(y, y, y, key_padding_mask=mask, need_weights=False)[0]
        return x + (out if first else out.transpose(0, 1))

    return Op(attend, layer=layer)


@block(2)
def own_attention(r: Random, shape: Shape) -> nn.Module:
    width = shape[1]

    def attend(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.transpose(1, 2) / width**0.5).softmax(-1) @ v)

    return Op(attend, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))


@block(2)
def learned_queries(r: Random, shape: Shape) -> nn.Module:
    """Free parameters that attend to the sample."""
    return Op(lambda self, x: (self.q @ x.transpose(1, 2)).softmax(-1) @ x, q=weight(2, shape[1]))


@block(2)
def encoder_layer(r: Random, shape: Shape) -> nn.Module:
    return nn.TransformerEncoderLayer(shape[1], 1, 4, dropout=0.0, batch_first=True, norm_first=r.random() < 0.5)


@block(1)
def bilinear(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: self.layer(x, x.tanh()), layer=nn.Bilinear(shape[0], shape[0], 2))


@block()
def prelu(r: Random, shape: Shape) -> nn.Module:
    return nn.PReLU()


# Parameters in functions -------------------------------------------------------------------------------------------


@block()
def functional_linear(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: F.linear(x, self.w, self.b), w=weight(3, shape[-1]), b=weight(3))


@block()
def product(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x @ self.w, w=weight(shape[-1], 3))


@block(1)
def transposed_product(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: (self.w @ x.T).T, w=weight(3, shape[0]))


@block()
def einsum(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: torch.einsum("oi,b...i->b...o", self.w, x), w=weight(3, shape[-1]))


@block(2)
def einsum_heads(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: torch.einsum("btd,dhk->bthk", x, self.w).flatten(2), w=weight(shape[1], 2, 2))


@block(1)
def affine_product(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: torch.addmm(self.b, x, self.w), w=weight(shape[0], 3), b=weight(3))


@block(2)
def batched_product(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: torch.bmm(x, self.w.expand(len(x), -1, -1)), w=weight(shape[1], 3))


@block()
def scale_and_shift(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x * self.s + self.b, s=weight(shape[-1], scale=1.0), b=weight(*shape, scale=1.0))


@block()
def scalar_gate(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + self.g * self.f(x).tanh(), g=gate(r), f=nn.Linear(shape[-1], shape[-1]))


@block()
def exponent(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: (x.square() + 0.1) ** self.p, p=nn.Parameter(torch.tensor(0.6)))


@block(2)
def class_token(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: torch.cat([self.t.expand(len(x), -1, -1), x], 1), t=weight(1, 1, shape[1], scale=1.0))


@block(2)
def repeated_token(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + self.t.repeat(len(x), 1, 1), t=weight(1, shape[1], scale=1.0))


@block(2)
def positions(r: Random, shape: Shape) -> nn.Module:
    table = nn.Embedding(shape[0], shape[1])
    return Op(lambda self, x: x + self.table(torch.arange(x.shape[1])), table=table)


@block(2)
def table_by_value(r: Random, shape: Shape) -> nn.Module:
    """A parameter indexed by what the sample says."""
    return Op(lambda self, x: x + self.t[(x[..., 0] > 0).long()], t=weight(2, shape[1], scale=1.0))


@block(1)
def functional_embedding(r: Random, shape: Shape) -> nn.Module:
    padding = r.choice([None, 0, -1])
    return Op(
        lambda self, x: x + F.embedding((x > 0).long().sum(1) % 3, self.t, padding_idx=padding),
        t=weight(3, shape[0], scale=1.0),
    )


@block()
def functional_norm(r: Random, shape: Shape) -> nn.Module:
    return Op(
        lambda self, x: F.layer_norm(x, (x.shape[-1],), self.w, self.b),
        w=weight(shape[-1], scale=1.0),
        b=weight(shape[-1]),
    )


@block()
def own_rms_norm(r: Random, shape: Shape) -> nn.Module:
    return Op(
        lambda self, x: self.w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
        w=weight(shape[-1], scale=1.0),
    )


@block(2)
def functional_convolution(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: F.conv1d(x, self.w, self.b), w=weight(2, shape[0], 1), b=weight(2))


@block()
def masked_parameter(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: torch.where(x > 0, x, self.w), w=weight(shape[-1], scale=1.0))


@block(2)
def mask_token(r: Random, shape: Shape) -> nn.Module:
    def masked(self: Any, x: Tensor) -> Tensor:
        x = x.clone()
        x[x[..., 0] > 0.5] = self.t.to(x.dtype)
        return x

    return Op(masked, t=weight(shape[1], scale=1.0))


# One parameter in several places ------------------------------------------------------------------------------------


@block()
def called_twice(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: self.f(torch.tanh(self.f(x))) + self.f(-x), f=nn.Linear(shape[-1], shape[-1]))


@block()
def tied(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: F.linear(torch.tanh(self.f(x)), self.f.weight.t()), f=nn.Linear(shape[-1], 4))


@block()
def shared_weight(r: Random, shape: Shape) -> nn.Module:
    one, two = nn.Linear(shape[-1], 3), nn.Linear(shape[-1], 3)
    two.weight = one.weight
    return Op(lambda self, x: self.one(x).sin() + self.two(x), one=one, two=two)


@block()
def weight_of_weight(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x @ self.w @ self.w.T, w=weight(shape[-1], shape[-1]))


@block()
def weight_norm(r: Random, shape: Shape) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(shape[-1], 3))


@block()
def lora(r: Random, shape: Shape) -> nn.Module:
    frozen = nn.Linear(shape[-1], 3).requires_grad_(False)
    up = nn.Linear(2, 3, bias=False)
    if r.random() < 0.5:
        nn.init.zeros_(up.weight)
    return Op(
        lambda self, x: self.frozen(x) + 2 * self.up(self.down(x)),
        frozen=frozen, down=nn.Linear(shape[-1], 2, bias=False), up=up,
    )  # fmt: skip


@block()
def dora(r: Random, shape: Shape) -> nn.Module:
    def adapted(self: Any, x: Tensor) -> Tensor:
        w = self.frozen.weight + self.up @ self.down
        scale = self.m / w.detach().norm(dim=1)
        return F.linear(x, w * scale[:, None], self.frozen.bias)

    return Op(
        adapted, frozen=nn.Linear(shape[-1], 3).requires_grad_(False), up=weight(3, 2), down=weight(2, shape[-1]),
        m=weight(3, scale=1.0),
    )  # fmt: skip


@block()
def unused(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x * 1.5, nobody=nn.Linear(2, 2))


# Residuals, gates, heads --------------------------------------------------------------------------------------------


@block()
def residual(r: Random, shape: Shape) -> nn.Module:
    last = nn.Linear(4, shape[-1])
    if r.random() < 0.4:
        nn.init.zeros_(last.weight)
    return Op(lambda self, x: x + self.two(torch.relu(self.one(x))), one=nn.Linear(shape[-1], 4), two=last)


@block()
def gated(r: Random, shape: Shape) -> nn.Module:
    return Op(
        lambda self, x: self.a(x) * torch.sigmoid(self.b(x)), a=nn.Linear(shape[-1], 3), b=nn.Linear(shape[-1], 3)
    )


@block()
def checkpointed(r: Random, shape: Shape) -> nn.Module:
    inner = nn.Sequential(nn.Linear(shape[-1], 4), nn.Tanh(), nn.RMSNorm(4) if r.random() < 0.4 else nn.Linear(4, 4))
    return Op(lambda self, x: checkpoint(self.inner, x, use_reentrant=False), inner=inner)
