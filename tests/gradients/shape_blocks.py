"""Blocks of the grammar that move samples about: reshapes, gathers, masks, statistics of one sample. All are sound."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients.random_blocks import SOUND, Evaluated, Op, Shape, block
from torch import Tensor, nn

__all__ = ["SOUND"]


# Shapes -------------------------------------------------------------------------------------------------------------


@block(2, 3, 4)
def flatten(r: Random, shape: Shape) -> nn.Module:
    return nn.Flatten()


@block(2, 3, 4)
def mean(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x.mean(1))


@block(2)
def last_step(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x[:, -1])


@block(2, 3, 4)
def swap(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x.transpose(1, -1))


@block(1)
def split_features(r: Random, shape: Shape) -> nn.Module:
    parts = r.choice([n for n in range(1, shape[0] + 1) if shape[0] % n == 0])
    return Op(lambda self, x: x.reshape(len(x), parts, -1))


@block(2)
def flat_tokens(r: Random, shape: Shape) -> nn.Module:
    """Layers that see (B * T, D), as in OPT, DeBERTa or video models."""
    layers = nn.Sequential(nn.Linear(shape[1], 3), nn.Tanh(), nn.LayerNorm(3) if r.random() < 0.5 else nn.Linear(3, 3))
    return Op(lambda self, x: self.f(x.reshape(-1, x.shape[-1])).view(len(x), -1, 3), f=layers)


@block(2)
def flat_frames(r: Random, shape: Shape) -> nn.Module:
    """A convolution over each step of a sequence, folded into the batch."""
    layer = nn.Conv1d(1, 2, 1)
    return Op(lambda self, x: self.f(x.reshape(-1, 1, x.shape[-1])).reshape(*x.shape[:2], -1), f=layer)


@block(2)
def windows(r: Random, shape: Shape) -> nn.Module:
    """Shifted windows folded into the batch, as in Swin."""
    size = r.choice([n for n in (1, 2, 3) if shape[0] % n == 0])

    def attend(self: Any, x: Tensor) -> Tensor:
        w = x.roll(1, 1).reshape(-1, size, x.shape[-1])
        return x + self.f(w.transpose(1, 2) @ w @ w.transpose(1, 2)).reshape(len(x), x.shape[1], -1).roll(-1, 1)

    return Op(attend, f=Op(lambda self, m: self.f(m.transpose(1, 2)), f=nn.Linear(shape[1], shape[1])))


@block(2)
def time_first(r: Random, shape: Shape) -> nn.Module:
    layers = nn.Sequential(nn.Linear(shape[1], 3), nn.Tanh(), nn.Linear(3, 3))
    return Op(lambda self, x: self.f(x.transpose(0, 1)).transpose(0, 1), f=layers)


@block(2)
def selected_tokens(r: Random, shape: Shape) -> nn.Module:
    """``hidden[mask]``: as many rows as the data has."""

    def selected(self: Any, x: Tensor) -> Tensor:
        mask = x[..., 0] > 0
        out = x.new_zeros(*x.shape[:2], 3)
        out[mask] = self.f(x[mask])
        return out

    return Op(selected, f=nn.Linear(shape[1], 3))


@block(1, 2)
def experts(r: Random, shape: Shape) -> nn.Module:
    """Each row goes to the expert it scores highest; experts see gathered rows."""

    def routed(self: Any, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scores = self.router(rows).softmax(-1)
        best = scores.argmax(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate((self.a, self.b)):
            (where,) = torch.where(best == number)
            out = out.index_add(0, where, expert(rows[where]) * scores[where, number, None])
        return x + out.view_as(x)

    width = shape[-1]
    return Op(routed, router=nn.Linear(width, 2), a=nn.Linear(width, width), b=nn.Linear(width, width))


@block(2)
def gathered(r: Random, shape: Shape) -> nn.Module:
    def chosen(self: Any, x: Tensor) -> Tensor:
        order = x[..., 0].argsort(1)
        return self.f(x.gather(1, order[..., None].expand_as(x)))

    return Op(chosen, f=nn.Linear(shape[1], 3))


@block(2)
def masked_mean(r: Random, shape: Shape) -> nn.Module:
    def pooled(self: Any, x: Tensor) -> Tensor:
        mask = (x[..., :1] > 0).to(x)
        return self.f(x * mask).sum(1) / mask.sum(1).clamp_min(1)

    return Op(pooled, f=nn.Linear(shape[1], 3))


@block(2)
def cumulative(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x.cumsum(1) * 0.5)


@block(3)
def patches(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: F.unfold(x, 2, stride=1).transpose(1, 2) if min(x.shape[2:]) > 1 else x.flatten(2))


@block(3)
def pool(r: Random, shape: Shape) -> nn.Module:
    return r.choice([nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(2), nn.Upsample(scale_factor=2)])


# Constants, statistics of one sample, no gradients ------------------------------------------------------------------


@block()
def buffer(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + self.c, c=torch.randn(shape))


@block()
def sample_statistics(r: Random, shape: Shape) -> nn.Module:
    def scaled(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            largest = x.flatten(1).abs().amax(1).clamp_min(1e-3).view(-1, *[1] * (x.dim() - 1))
        return x / largest

    return Op(scaled)


@block()
def stopped(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + self.f(x.detach()).sin(), f=nn.Linear(shape[-1], shape[-1]))


@block()
def dropout_off(r: Random, shape: Shape) -> nn.Module:
    return Evaluated(nn.Dropout(0.5)) if r.random() < 0.5 else nn.Dropout(0.0)


@block()
def frozen(r: Random, shape: Shape) -> nn.Module:
    return nn.Linear(shape[-1], 3).requires_grad_(False)


@block()
def straight_through(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + (x.round() - x).detach() + 0 * x)


@block()
def penalised(r: Random, shape: Shape) -> nn.Module:
    """A weight penalty inside of the model."""
    return Op(lambda self, x: x + 0.1 * self.f(x) + 0.01 * self.f.weight.square().sum(), f=nn.Linear(shape[-1], 1))


@block(1, 2)
def sorted_and_back(r: Random, shape: Shape) -> nn.Module:
    """A layer that sees the samples in another order, by their own values."""

    def ordered(self: Any, x: Tensor) -> Tensor:
        order = x.detach().flatten(1).sum(1).argsort(descending=down)
        return self.f(x[order])[order.argsort()]

    down = r.random() < 0.5
    return Op(ordered, f=nn.Linear(shape[-1], 3))


@block(2)
def chunked_tokens(r: Random, shape: Shape) -> nn.Module:
    """A layer on pieces of (B * T, D), as is done to save memory."""

    def pieces(self: Any, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).split(size)
        return torch.cat([self.f(piece) for piece in rows]).view(len(x), -1, 3)

    size = r.choice([2, 4, 5, 8, 20])
    return Op(pieces, f=nn.Linear(shape[1], 3))


@block()
def reversed_gradient(r: Random, shape: Shape) -> nn.Module:
    """Nothing forward, the opposite backward: domain-adversarial training."""

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return -0.5 * gradient

    return Op(lambda self, x: Reversed.apply(x))
