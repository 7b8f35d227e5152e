"""Linear maps: ``torch.nn.Linear`` over any leading dimensions, and the transposed ``Conv1D`` of GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sordina.gradients.layout import Fold, widen
from sordina.gradients.terms import Dense, Lookup, Pair, Term, outer


def linear(module: nn.Linear, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``y = x W^T + c``: ``g_W = sum_t b_t x_t^T`` and ``g_c = sum_t b_t``."""
    weight, bias = own(module, "weight"), own(module, "bias")
    if b.dim() == 2 and fold.rows == 1:
        left = Dense(widen(b))
        if weight is not None:
            yield weight, Pair(left, Dense(widen(input)))
        if bias is not None:
            yield bias, left
        return
    places = fold.places(b)
    if weight is not None:
        yield weight, outer(places, fold.places(input))
    if bias is not None:
        yield bias, Dense(places.sum(1))


def conv1d_of_gpt2(module: nn.Module, b: Tensor, fold: Fold, x: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """``y = x W + c``: the same, transposed."""
    right = fold.places(b)
    if (weight := own(module, "weight")) is not None:
        yield weight, outer(fold.places(x), right)
    if (bias := own(module, "bias")) is not None:
        yield bias, Dense(right.sum(1))


def own(module: nn.Module, name: str) -> Tensor | None:
    """The module's parameter of that name, if it has one of its own and it learns."""
    parameter = module._parameters.get(name)
    return parameter if parameter is not None and parameter.requires_grad else None


# Look-up tables: ``torch.nn.Embedding`` and ``torch.nn.EmbeddingBag``.


def embedding(module: nn.Embedding, b: Tensor, fold: Fold, input: Tensor) -> Iterator[tuple[Tensor, Term]]:
    """A table; its padding row learns nothing."""
    if (weight := own(module, "weight")) is not None:
        yield weight, lookup(module, fold.places(input, keep=0)[..., 0], fold.places(b))


def embedding_bag(
    module: nn.EmbeddingBag,
    b: Tensor,
    fold: Fold,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Iterator[tuple[Tensor, Term]]:
    """Sums or means of rows: a place's gradient is its bag's, times its weight or divided by the bag's size."""
    if (weight := own(module, "weight")) is None:
        return
    if input.dim() == 2:
        indices, weights, real = input, per_sample_weights, torch.ones_like(input, dtype=torch.bool)
    else:
        assert offsets is not None
        indices, weights, real = _padded(module, input, offsets, per_sample_weights)
    if module.padding_idx is not None:
        real = real & (indices != module.padding_idx)
    share = real.to(widen(b).dtype)
    if module.mode == "mean":
        share = share / share.sum(1, keepdim=True).clamp_min(1)
    if weights is not None:
        share = share * weights
    values = widen(b)[:, None, :] * share[:, :, None]
    yield weight, lookup(module, fold.places(indices, keep=0)[..., 0], fold.places(values))


def _padded(
    module: nn.EmbeddingBag, a: Tensor, offsets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Bags of different sizes as one rectangle, and which of its places are real."""
    starts = offsets[:-1] if module.include_last_offset else offsets
    ends = torch.cat([starts[1:], offsets[-1:] if module.include_last_offset else offsets.new_tensor([len(a)])])
    sizes = ends - starts
    steps = torch.arange(int(sizes.max()) if len(sizes) else 0, device=a.device)
    real = steps < sizes[:, None]
    place = (starts[:, None] + steps).clamp_max(max(0, len(a) - 1))
    return a[place], None if weights is None else weights[place], real


def lookup(module: nn.Embedding | nn.EmbeddingBag, indices: Tensor, values: Tensor) -> Lookup:
    """The term of a table, its padding row silenced."""
    if module.padding_idx is not None:
        values = values.masked_fill((indices == module.padding_idx)[..., None], 0)
    return Lookup(indices, values, module.num_embeddings)
