"""Convolutions and transposed convolutions in one to three dimensions.

``g_W[o, c, k] = sum_t b[o, t] x[c, s t + d k]``: a product of the output gradient with the windows of the padded input.
A transposed convolution is the adjoint of a convolution, so input and output gradient only swap their roles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients.layers.linear import own
from sordina.gradients.layout import Fold, widen
from sordina.gradients.norms import NormEstimate, Weights, factors, squared_lengths, unit_roundoff
from sordina.gradients.terms import Dense, Outer, Term, chunks

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
    def kind(self) -> torch.dtype:
        """In which precision."""
        return self.image.dtype

    @property
    def size(self) -> int:
        """Values per vector."""
        return self.signal.shape[1] * (self.image.shape[1] // self.groups) * prod(self.kernel)

    def estimate(self) -> NormEstimate:
        """Written down in pieces of the batch that stay in cache; then summed on another path.

        ``M <= |signal| |windows|`` (Cauchy-Schwarz), and a value of the image is in at most `_visits` windows. Where
        there are few places, a ghost norm of signal and windows costs less than to write the vectors down.
        """
        if self._few_places:
            return self._ghost()
        squares = torch.cat([squared_lengths(rows) for _, rows in self._pieces()])
        each = torch.linalg.vector_norm(self.signal, dim=1).double().flatten(1)
        sizes = torch.linalg.vector_norm(each, dim=1) * factors(self.image.flatten(1))
        places = self.fold.by_row(each.count_nonzero(1)[:, None])[:, 0]
        majorant = self.fold.by_row(sizes[:, None])[:, 0] * self._visits**0.5
        return NormEstimate(squares, majorant, 0.0, 2 * (places + 2) * unit_roundoff(self.kind))

    @property
    def _few_places(self) -> bool:
        """As in `outer`: a ghost norm costs ``T^2 (r + c)``, writing the vectors down ``T r c``."""
        places, depth = self.fold.rows * prod(self.signal.shape[2:]), self.image.shape[1] * prod(self.kernel)
        return self.groups == 1 and places * (self.signal.shape[1] + depth) < self.signal.shape[1] * depth

    def _ghost(self) -> NormEstimate:
        """The estimate of windows and signal as an `Outer`, in pieces of the batch; the sum goes another path."""
        rows, places = self.fold.rows, prod(self.signal.shape[2:])
        depth, found = self.image.shape[1] * prod(self.kernel), list[NormEstimate]()
        for piece in chunks(self.units, rows * depth * places * self.image.element_size()):
            where = slice(piece.start * rows, piece.stop * rows)
            windows = self._windows(self._padded(self.image[where])).reshape(-1, depth, places).mT
            left = self.signal[where].flatten(2).mT
            units = piece.stop - piece.start
            found.append(Outer(left.reshape(units, rows * places, -1), windows.reshape(units, -1, depth)).estimate())
        majorant = torch.cat([each.majorant for each in found if each.majorant is not None])
        sum_error = torch.cat([torch.as_tensor(each.sum_error) for each in found])
        return NormEstimate(torch.cat([each.squares for each in found]), majorant, found[0].square_error, 2 * sum_error)

    @property
    def _visits(self) -> int:
        steps = zip(self.kernel, self.stride, self.dilation, strict=True)
        return prod(-(-size // stride) if dilation == 1 else size for size, stride, dilation in steps)

    def project(self, direction: Tensor) -> Tensor:
        """``<b_i, conv(x_i; u)>``."""
        weight = direction.reshape(self.signal.shape[1], -1, *self.kernel)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel) - 1]
        answer = convolve(self.image, weight, None, self.stride, self.padding, self.dilation, self.groups)
        answer = answer[(slice(None), slice(None), *(slice(0, n) for n in self.signal.shape[2:]))]
        return self.fold.by_row((answer * self.signal).flatten(1).sum(1, keepdim=True))[:, 0]

    def contract(self, weights: Weights, out: Tensor) -> None:
        """The ordinary weight gradient of scaled output gradients."""
        split = weights.split
        if split is None:
            torch.stack([self._weight_gradient(self.image, self.signal, row) for row in weights.rows], out=out)
            return
        image, signal = (split.arranged(x.view(self.units, -1, *x.shape[1:])) for x in (self.image, self.signal))
        for part, target in zip(split.parts(), (out[1], out[0]), strict=True):
            target.copy_(
                self._weight_gradient(image[part].flatten(0, 1), signal[part].flatten(0, 1), split.scale[part])
            )
        out[0].add_(out[1], alpha=split.ratio)

    def _weight_gradient(self, image: Tensor, signal: Tensor, scale: Tensor) -> Tensor:
        scale = scale.repeat_interleave(self.fold.rows).view(-1, *[1] * (signal.dim() - 1))
        weight = image.new_empty(1).expand(signal.shape[1], image.shape[1] // self.groups, *self.kernel)
        geometry = (self.stride, self.padding, self.dilation, False, [0] * len(self.kernel), self.groups)
        mask = [False, True, False]
        answer: Tensor = torch.ops.aten.convolution_backward(signal * scale, image, weight, None, *geometry, mask)[1]
        return answer.flatten()

    def rows(self, where: slice) -> Tensor:
        """Some of the vectors, written down."""
        return torch.cat([rows for _, rows in self._pieces(where)])

    def take(self, units: Tensor) -> Correlation:
        """Some of the units."""
        rows = (units[:, None] * self.fold.rows + torch.arange(self.fold.rows, device=units.device)).flatten()
        image, signal = self.image.index_select(0, rows), self.signal.index_select(0, rows)
        return replace(self, image=image, signal=signal, fold=self.fold._replace(units=len(units)))

    def written(self) -> Dense:
        """All of the vectors, written down."""
        out = self.signal.new_empty(self.units, self.size)
        for where, rows in self._pieces():
            out[where] = rows
        return Dense(out)

    def _pieces(self, units: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Windows times output gradients, in pieces of the batch that stay in cache."""
        units = units or slice(0, self.units)
        rows, blocks = self.fold.rows, self.groups
        places, depth = prod(self.signal.shape[2:]), self.image.shape[1] * prod(self.kernel)
        for piece in chunks(units.stop - units.start, rows * depth * places * self.image.element_size()):
            start, stop = (units.start + piece.start) * rows, (units.start + piece.stop) * rows
            windows = self._windows(self._padded(self.image[start:stop]))
            matrix = windows.reshape((stop - start) * blocks, depth // blocks, places)
            signal = self.signal[start:stop].reshape((stop - start) * blocks, -1, places)
            product = torch.bmm(signal, matrix.mT).view((stop - start), -1)
            where = slice(units.start + piece.start, units.start + piece.stop)
            yield where, product if rows == 1 else product.view(-1, rows, self.size).sum(1)

    def _padded(self, image: Tensor) -> Tensor:
        return F.pad(image, [side for p in reversed(self.padding) for side in (p, p)]) if any(self.padding) else image

    def _windows(self, image: Tensor) -> Tensor:
        """A view (n, c, kernel.., places..) of the padded image."""
        steps = image.stride()[2:]
        strides = [d * s for d, s in zip(self.dilation, steps, strict=True)]
        jumps = [j * s for j, s in zip(self.stride, steps, strict=True)]
        shape = (*image.shape[:2], *self.kernel, *self.signal.shape[2:])
        return image.as_strided(shape, (*image.stride()[:2], *strides, *jumps), image.storage_offset())


def convolution(module: Conv, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``torch.nn.Conv1d`` to ``Conv3d``, with every padding mode."""
    if (weight := own(module, "weight")) is not None:
        zeros = module.padding_mode == "zeros"
        padding = _numbers(module) if zeros else ()
        if not padding:
            sides = module._reversed_padding_repeated_twice
            input = F.pad(input, sides) if zeros else F.pad(input, sides, mode=module.padding_mode)
            padding = (0,) * len(module.kernel_size)
        yield weight, _kept(_correlation(module, input, b, padding, fold))
    if (bias := own(module, "bias")) is not None:
        yield bias, _shift(b, fold)


def transposed(
    module: ConvTranspose, b: Tensor, fold: Fold, input: Tensor, output_size: Sequence[int] | None = None
) -> Iterator[tuple[Tensor, Term]]:
    """``torch.nn.ConvTranspose1d`` to ``ConvTranspose3d``; ``output_size`` shows in the shape of ``b`` already."""
    if (weight := own(module, "weight")) is not None:
        yield weight, _kept(_correlation(module, b, input, _numbers(module), fold))
    if (bias := own(module, "bias")) is not None:
        yield bias, _shift(b, fold)


def _numbers(module: Conv | ConvTranspose) -> tuple[int, ...]:
    """The padding as numbers; empty if it has a name."""
    return () if isinstance(module.padding, str) else module.padding


def _correlation(
    module: Conv | ConvTranspose, image: Tensor, signal: Tensor, padding: tuple[int, ...], fold: Fold
) -> Correlation:
    geometry = (module.kernel_size, module.stride, padding, module.dilation, module.groups)
    return Correlation(widen(image), widen(signal), *geometry, fold)


def _shift(b: Tensor, fold: Fold) -> Dense:
    return Dense(fold.by_row(widen(b).flatten(2).sum(2)))


def _kept(term: Correlation) -> Term:
    """Write the vectors down when they take no more room than the two tensors they come from."""
    return term.written() if term.units * term.size <= term.image.numel() + term.signal.numel() else term
