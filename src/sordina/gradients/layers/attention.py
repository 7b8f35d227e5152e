"""``torch.nn.MultiheadAttention``, its fused projections taken apart so that each can be listened to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients.combined_terms import Block
from sordina.gradients.layout import Fold
from sordina.gradients.terms import Dense, Term, outer


def forward(
    module: nn.MultiheadAttention,
    tap: Callable[..., None],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same function as the module's own forward pass; ``is_causal`` is only a hint there, the mask decides."""
    if query.dim() != 3:
        options = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        return nn.MultiheadAttention.forward(module, query, key, value, *options)
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    self_attention = query is key and key is value
    if not module.batch_first:
        turned = {id(x): x.transpose(0, 1) for x in (query, key, value)}
        query, key, value = turned[id(query)], turned[id(key)], turned[id(value)]
    q, k, v = _together(module, tap, query) if self_attention else _apart(module, tap, query, key, value)
    mask = _merged(attn_mask, key_padding_mask, q, k, module.num_heads)
    k, v = _learned(module, tap, k, v)
    q, k, v = (x.view(*x.shape[:2], module.num_heads, module.head_dim).transpose(1, 2) for x in (q, k, v))
    if module.add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(*x.shape[:2], 1, x.shape[3])], 2) for x in (k, v))
    if mask is not None:
        mask = F.pad(mask, (0, k.shape[2] - mask.shape[3]))
    output, weights = _attend(module, q, k, v, mask, need_weights)
    output = module.out_proj(output.transpose(1, 2).flatten(2))
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return output if module.batch_first else output.transpose(0, 1), weights


def _attend(
    module: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    rate = module.dropout if module.training else 0.0
    if not need_weights:
        return F.scaled_dot_product_attention(q, k, v, mask, rate), None
    scores = (q / sqrt(q.shape[3])) @ k.mT
    weights = (scores if mask is None else scores + mask).softmax(-1)
    weights = F.dropout(weights, rate) if rate else weights
    return weights @ v, weights


def _merged(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, k: Tensor, heads: int
) -> Tensor | None:
    """Both masks as one additive mask that broadcasts to (batch, heads, targets, sources)."""
    mask = None
    if attn_mask is not None:
        mask = _additive(attn_mask, q)
        mask = mask.view(1, 1, *mask.shape) if mask.dim() == 2 else mask.view(len(q), heads, *mask.shape[1:])
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, q)[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
    return mask


def _together(module: nn.MultiheadAttention, tap: Callable[..., None], x: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value of one input."""
    if not module._qkv_same_embed_dim:
        return _apart(module, tap, x, x, x)
    projected = F.linear(x, module.in_proj_weight, module.in_proj_bias)

    def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
        left = fold.places(b)
        yield from _wanted((module.in_proj_weight, lambda: outer(left, fold.places(x.detach()))))
        yield from _wanted((module.in_proj_bias, lambda: Dense(left.sum(1))))

    tap("in_proj", projected, build, (x,))
    return projected.chunk(3, -1)


def _apart(
    module: nn.MultiheadAttention, tap: Callable[..., None], query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    """Query, key and value of different inputs: each has its third of the rows of the stacked parameters."""
    width, stacked = module.embed_dim, module._qkv_same_embed_dim
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    if stacked:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)

    def one(third: int, x: Tensor) -> Tensor:
        projected = F.linear(x, weights[third], biases[third])

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            left, start = fold.places(b), third * width
            term = outer(left, fold.places(x.detach()))
            if stacked:
                whole = module.in_proj_weight
                yield from _wanted(
                    (whole, lambda: Block(term, start * whole.shape[1], whole.numel() // 3, whole.numel()))
                )
            else:
                yield from _wanted((weights[third], lambda: term))
            yield from _wanted((module.in_proj_bias, lambda: Block(Dense(left.sum(1)), start, width, 3 * width)))

        tap(f"in_proj.{third}", projected, build, (x,))
        return projected

    return one(0, query), one(1, key), one(2, value)


def _learned(module: nn.MultiheadAttention, tap: Callable[..., None], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Append the learned key and value, if the module has them."""
    if module.bias_k is None or module.bias_v is None:
        return k, v

    def append(x: Tensor, bias: Tensor) -> Tensor:
        copies = bias.expand(len(x), 1, -1)

        def build(b: Tensor, fold: Fold) -> Iterator[tuple[Tensor, Term]]:
            yield from _wanted((bias, lambda: Dense(fold.total(b))))

        tap("bias_kv", copies, build, (x,))
        return torch.cat([x, copies], 1)

    return append(k, module.bias_k), append(v, module.bias_v)


def _wanted(*found: tuple[Any, Callable[[], Term]]) -> Iterator[tuple[Tensor, Term]]:
    for parameter, term in found:
        if parameter is not None and parameter.requires_grad:
            yield parameter, term()
