"""Whether a loss is convex in the weights of a model with one matrix: a sigmoid behind it may bend it.

A linear model bears long steps, for its loss is convex and leads back from wherever it was. A matrix behind which a
sigmoid feeds a mean square is as small, but not so: one long step drives the outputs to where no gradient is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sordina.gradients._tracing import changed
from sordina.training.batches import Rows, blank_batch, inputs_and_target
from sordina.training.losses import Loss, at_rest, per_sample

_POINTS = 5
"""So many points of a line are looked at, the weights in the middle."""
_LENGTHS = (1.0, 8.0)
"""So far apart are these points, in units in which weights move an output by about one."""
_ROUNDING = 1e-4


def convex_as_far_as_seen(model: nn.Module, loss: Loss, rows: Rows) -> bool:
    """Whether the loss is convex along lines through the weights, for rows that are made up; True if nobody can tell.

    Args:
        model: What is to be trained; it is left as it was.
        loss: Of one value per sample.
        rows: The data, of which only shapes and types count.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if any(isinstance(each, nn.UninitializedParameter) for each in trained) or not _one_matrix(trained):
        return True
    each = per_sample(loss)
    with at_rest(model, each.loss), torch.no_grad():
        values = [one.detach().clone() for one in trained]
        try:
            return all(_bends_upwards(line) for line in _lines(model, each, rows, trained, values))
        except Exception:  # the model or the loss does not take what is made up
            return True
        finally:
            for parameter, value in zip(trained, values, strict=True):
                parameter.data = value


def _one_matrix(trained: Sequence[Tensor]) -> bool:
    return sum(each.dim() > 1 for each in trained) == 1


def _lines(
    model: nn.Module, loss: Loss, rows: Rows, trained: Sequence[Tensor], values: Sequence[Tensor]
) -> Iterator[Tensor]:
    """The losses of made-up rows at points of lines: a row for each point."""
    chance = torch.Generator().manual_seed(0)

    def drawn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=chance).to(like)

    batch, length = blank_batch(rows)
    inputs, target = inputs_and_target(
        tuple(changed(batch, lambda one: drawn(one) if one.is_floating_point() else one))
    )
    target = changed(target, lambda one: one.new_zeros(one.shape))
    for step in _LENGTHS:
        ways = [drawn(one) * step / max(1, one[0].numel() if one.dim() > 1 else 1) ** 0.5 for one in values]
        points = []
        for point in range(-(_POINTS // 2), _POINTS // 2 + 1):
            for parameter, value, way in zip(trained, values, ways, strict=True):
                parameter.data = value + point * way
            points.append(loss(model(*inputs), target).double().reshape(length, -1).sum(1))
        yield torch.stack(points)


def _bends_upwards(line: Tensor) -> bool:
    """Whether no second difference is below zero by more than rounding."""
    bends, size = line.diff(n=2, dim=0), line.abs().amax(0)
    return not bool((bends < -_ROUNDING * size).any())
