"""Convolutions and transposed convolutions in one to three dimensions.

``g_W[o, c, k] = sum_t b[o, t] x[c, s t + d k]``: a product of the output gradient with the windows of the padded input.
A transposed convolution is the adjoint of a convolution, so input and output gradient only swap their roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients.layers.fold import Fold, widen
from sordina.gradients.layers.linear import wants
from sordina.gradients.terms import Dense, Term, chunks

Conv: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
ConvTranspose: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


@dataclass(frozen=True)
class Correlation:
    """``g_i[o, c, k] = sum_t signal_i[o, t] image_i[c, stride t + dilation k]``, channels in ``groups`` blocks."""

    image: Tensor
    signal: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    fold: Fold

    @property
    def units(self) -> int:
        """How many vectors."""
        return self.fold.units

    @property
    def size(self) -> int:
        """Values per vector."""
        return self.signal.shape[1] * (self.image.shape[1] // self.groups) * prod(self.kernel)

    def squared_norms(self) -> Tensor:
        """Written down in pieces of the batch that stay in cache."""
        each = prod(self.kernel) * self.image.shape[1] * prod(self.signal.shape[2:]) * self.image.element_size()
        parts = [torch.linalg.vector_norm(self.rows(where), dim=1) for where in chunks(self.units, each)]
        return torch.cat(parts).square_()

    def project(self, direction: Tensor) -> Tensor:
        """``<b_i, conv(x_i; u)>``."""
        weight = direction.reshape(self.signal.shape[1], -1, *self.kernel)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel) - 1]
        answer = convolve(self.image, weight, None, self.stride, self.padding, self.dilation, self.groups)
        answer = answer[(slice(None), slice(None), *(slice(0, n) for n in self.signal.shape[2:]))]
        return self.fold.by_row((answer * self.signal).flatten(1).sum(1, keepdim=True))[:, 0]

    def contract(self, weights: Tensor, out: Tensor) -> None:
        """The ordinary weight gradient of scaled output gradients."""
        shape = (self.signal.shape[1], self.image.shape[1] // self.groups, *self.kernel)
        weight = self.image.new_empty(1).expand(shape)
        none, zeros = [False, True, False], [0] * len(self.kernel)
        scale = weights.repeat_interleave(self.fold.rows, 1)
        for factor, target in zip(scale, out, strict=True):
            scaled = self.signal * factor.view(-1, *[1] * (self.signal.dim() - 1))
            geometry = (self.stride, self.padding, self.dilation, False, zeros, self.groups)
            answer = torch.ops.aten.convolution_backward(scaled, self.image, weight, None, *geometry, none)[1]
            target.copy_(answer.flatten())

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down: windows times output gradients."""
        rows = self.fold.rows
        part = slice(where.start * rows, where.stop * rows)
        image, signal = self._padded(self.image[part]), self.signal[part]
        count, blocks = len(image), self.groups
        windows = self._windows(image).reshape(count * blocks, -1, prod(signal.shape[2:]))
        product = torch.bmm(signal.reshape(count * blocks, -1, windows.shape[2]), windows.mT)
        return product.view(len(range(where.start, where.stop)), rows, -1).sum(1)

    def _padded(self, image: Tensor) -> Tensor:
        return F.pad(image, [side for p in reversed(self.padding) for side in (p, p)])

    def _windows(self, image: Tensor) -> Tensor:
        """A view (n, c, kernel.., places..) of the padded image."""
        steps = image.stride()[2:]
        strides = [d * s for d, s in zip(self.dilation, steps, strict=True)]
        jumps = [j * s for j, s in zip(self.stride, steps, strict=True)]
        shape = (*image.shape[:2], *self.kernel, *self.signal.shape[2:])
        return image.as_strided(shape, (*image.stride()[:2], *strides, *jumps), image.storage_offset())


def convolution(module: Conv, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """``torch.nn.Conv1d`` to ``Conv3d``, with every padding mode."""
    if wants(module, "weight"):
        padding = module.padding
        if module.padding_mode != "zeros":
            a, padding = F.pad(a, module._reversed_padding_repeated_twice, mode=module.padding_mode), 0
        elif isinstance(padding, str):
            a, padding = F.pad(a, module._reversed_padding_repeated_twice), 0
        yield "weight", _kept(_correlation(module, a, b, padding, fold))
    if wants(module, "bias"):
        yield "bias", _shift(b, fold)


def transposed(module: ConvTranspose, a: Tensor, b: Tensor, fold: Fold) -> Iterator[tuple[str, Term]]:
    """``torch.nn.ConvTranspose1d`` to ``ConvTranspose3d``."""
    if wants(module, "weight"):
        yield "weight", _kept(_correlation(module, b, a, module.padding, fold))
    if wants(module, "bias"):
        yield "bias", _shift(b, fold)


def _correlation(
    module: Conv | ConvTranspose, image: Tensor, signal: Tensor, padding: int | tuple[int, ...] | str, fold: Fold
) -> Correlation:
    pads = (padding,) * len(module.kernel_size) if isinstance(padding, int) else padding
    assert not isinstance(pads, str)
    geometry = (module.kernel_size, module.stride, pads, module.dilation, module.groups)
    return Correlation(widen(image), widen(signal), *geometry, fold)


def _shift(b: Tensor, fold: Fold) -> Dense:
    return Dense(fold.by_row(widen(b).flatten(2).sum(2)))


def _kept(term: Correlation) -> Term:
    """Write the vectors down when they take no more room than the two tensors they come from."""
    if term.units * term.size > term.image.numel() + term.signal.numel():
        return term
    each = prod(term.kernel) * term.image.shape[1] * prod(term.signal.shape[2:]) * term.image.element_size()
    return Dense(torch.cat([term.rows(where) for where in chunks(term.units, each)]))
