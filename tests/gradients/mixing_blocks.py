"""Blocks of the grammar that mix samples, planted on purpose: refused, or their sensitivity stays within the bound."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from tests.gradients.random_blocks import MIXING, Op, Shape, block
from torch import Tensor, nn

__all__ = ["MIXING"]


def spread(x: Tensor) -> Tensor:
    """A batch's mean and deviation, by hand."""
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 0.1).sqrt()


@block(mixing=True)
def own_batch_norm(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: spread(self.f(x)), f=nn.Linear(shape[-1], 3))


@block(mixing=True)
def gated_batch_norm(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + self.g * spread(x), g=nn.Parameter(torch.tensor(0.0)))


@block(mixing=True)
def detached_mean(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x - x.detach().mean(0))


@block(mixing=True)
def largest_of_all(r: Random, shape: Shape) -> nn.Module:
    def scaled(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            largest = x.abs().max().clamp_min(1e-3)
        return x / largest

    return Op(scaled)


@block(mixing=True)
def batch_norm(r: Random, shape: Shape) -> nn.Module:
    if len(shape) == 4:
        return nn.BatchNorm3d(shape[0])
    return (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(shape[0])


@block(mixing=True)
def neighbour(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + 0.5 * x.roll(1, 0))


@block(mixing=True)
def silent_neighbour(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x + 0.5 * x.detach().flip(0))


@block(mixing=True)
def batch_softmax(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x * x.softmax(0))


@block(mixing=True)
def batch_cumulative(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x.cumsum(0))


@block(mixing=True)
def divided_by_size(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x / len(x))


@block(mixing=True)
def fake_quantisation(r: Random, shape: Shape) -> nn.Module:
    def quantised(self: Any, x: Tensor) -> Tensor:
        step = (x.detach().max() - x.detach().min()) / 4 + 1e-3
        return x + ((x / step).round() * step - x).detach()

    return Op(quantised)


@block(mixing=True)
def batch_branch(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: x * 3 if bool(x.mean() > 0) else x.sin())


@block(2, mixing=True)
def wrong_view(r: Random, shape: Shape) -> nn.Module:
    """A view where a transposition was meant."""
    return Op(
        lambda self, x: self.f(x.reshape(x.shape[1], x.shape[0], -1).cumsum(0).reshape_as(x)),
        f=nn.Linear(shape[1], 3),
    )


@block(1, mixing=True)
def batch_attention(r: Random, shape: Shape) -> nn.Module:
    return Op(lambda self, x: self.f(x @ x.T).softmax(-1) @ x, f=nn.Identity())


@block(1, mixing=True)
def capacity(r: Random, shape: Shape) -> nn.Module:
    """An expert takes the rows that score highest, and no others."""

    def routed(self: Any, x: Tensor) -> Tensor:
        scores = self.router(x)[:, 0]
        kept = scores.detach().topk((len(x) + 1) // 2).indices
        return x.index_add(0, kept, self.f(x[kept]))

    return Op(routed, router=nn.Linear(shape[0], 1), f=nn.Linear(shape[0], shape[0]))


@block(mixing=True)
def running_mean(r: Random, shape: Shape) -> nn.Module:
    """A buffer that keeps raw data."""

    def centred(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.m.lerp_(x.mean(0), 0.1)
        return x - 0 * self.m

    return Op(centred, m=torch.zeros(shape))


@block(mixing=True)
def by_position(r: Random, shape: Shape) -> nn.Module:
    def scaled(self: Any, x: Tensor) -> Tensor:
        return x * torch.arange(1, len(x) + 1).to(x).view(-1, *[1] * (x.dim() - 1))

    return Op(scaled)


@block(mixing=True)
def pairs(r: Random, shape: Shape) -> nn.Module:
    """Mixes only where the batch can be cut in two."""
    return Op(lambda self, x: x + 0.5 * x.detach().roll(len(x) // 2, 0) if len(x) % 2 == 0 else x)


@block(mixing=True)
def outliers(r: Random, shape: Shape) -> nn.Module:
    """Rescales a batch that has a large value."""

    def scaled(self: Any, x: Tensor) -> Tensor:
        largest = x.detach().abs().max()
        return x / largest if bool(largest > 3) else x

    return Op(scaled)


@block(mixing=True)
def sorted_rows(r: Random, shape: Shape) -> nn.Module:
    """Samples in another order: the losses belong to others."""
    return Op(lambda self, x: x[x.detach().flatten(1).sum(1).argsort()])


@block(mixing=True)
def coin(r: Random, shape: Shape) -> nn.Module:
    """Mixes now and then, by the toss of a coin."""

    def tossed(self: Any, x: Tensor) -> Tensor:
        return 0.5 * (x + x.detach().roll(1, 0)) if float(torch.rand(())) < 0.3 else x

    return Op(tossed)


@block(mixing=True)
def seeded_noise(r: Random, shape: Shape) -> nn.Module:
    """Random numbers that depend on all samples."""

    def noisy(self: Any, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(int((x.detach() > 0).sum()))
        return x * torch.rand(x.shape, generator=generator, dtype=x.dtype)

    return Op(noisy)


@block(mixing=True)
def loud_gradient(r: Random, shape: Shape) -> nn.Module:
    """Nothing forward; backward, the gradients of a batch become smaller if one of them is large."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient / max(1.0, float(gradient.abs().max()) / limit)

    limit = r.choice([0.1, 1.0, 100.0])
    return Op(lambda self, x: Scaled.apply(x))
