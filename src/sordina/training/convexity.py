"""What a rate rule should know of a model and its loss, found on rows that are made up: public facts.

A linear model bears long steps, for its loss is convex and leads back from wherever it was. A matrix behind which a
sigmoid feeds a mean square is as small, but not so: one long step drives the outputs to where no gradient is left. So
it is with a network whose outputs are bounded. But there it is known what targets may be, and so what the loss is at
first: a step that is meant to gain more than that is too long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordina.gradients._tracing import changed, tensors_in
from sordina.training.batches import Rows, blank_batch, inputs_and_target
from sordina.training.losses import Loss, PerSample, at_rest, per_sample

_POINTS = 5
"""So many points of a line are looked at, the weights in the middle."""
_LENGTHS = (0.5, 2.0)
"""So far apart are these points, in units in which weights move an output by one; beyond 17 a probability is one."""
_ROUNDING = 1e-4
_DRAWS = 32
"""So many targets are made up for a row."""
_MOST_GAIN = 0.5
"""The unit of a loss over what it is at first: with a reach of three units a step is meant to gain 1.5 times that."""


def facts_of_loss(model: nn.Module, loss: Loss, rows: Rows) -> dict[str, Any]:
    """What differs from `Start`'s own: a single matrix that is no linear model, the unit of a loss of bounded outputs.

    Args:
        model: What is to be trained; it is left as it was.
        loss: Of one value per sample.
        rows: The data, of which only shapes and types count.
    """
    bent = {} if convex_as_far_as_seen(model, loss, rows) else {"matrices": 2}
    first = first_loss(model, loss, rows)
    return bent | ({} if first is None else {"unit": min(1.0, _MOST_GAIN * first)})


def first_loss(model: nn.Module, loss: Loss, rows: Rows) -> float | None:
    """What the loss is before training, if outputs are bounded, for targets anywhere within; None if nobody can tell.

    Outputs are bounded if they stay as large when all weights are a hundred times as large.

    Args:
        model: What is to be trained; it is left as it was.
        loss: Of one value per sample.
        rows: The data, of which only shapes and types count.
    """
    each = loss if isinstance(loss, PerSample) else per_sample(loss)
    with _weights_aside(model, each) as (trained, values):
        if not trained:
            return None
        try:
            inputs, target, _ = _made_up(rows)
            first, sizes, low, high = model(*inputs), list[float](), math.inf, -math.inf
            for times in (10.0, 1000.0):
                for parameter, value in zip(trained, values, strict=True):
                    parameter.data = value * times
                ends = list(tensors_in([model(*inputs)]))
                low, high = min(float(end.min()) for end in ends), max(float(end.max()) for end in ends)
                sizes.append(max(-low, high))
            if not 0 < sizes[1] <= 2 * sizes[0]:
                return None
            chance = torch.Generator().manual_seed(2)

            def within(one: Tensor) -> Tensor:
                return _between(one, low, high, chance) if one.is_floating_point() else one

            found = sum(float(each(first, changed(target, within)).double().mean()) for _ in range(_DRAWS)) / _DRAWS
            return found if 0 < found < math.inf else None
        except Exception:  # the model or the loss does not take what is made up
            return None


def convex_as_far_as_seen(model: nn.Module, loss: Loss, rows: Rows) -> bool:
    """Whether the loss is convex along lines through the weights, for rows that are made up; True if nobody can tell.

    Args:
        model: What is to be trained; it is left as it was.
        loss: Of one value per sample.
        rows: The data, of which only shapes and types count.
    """
    if not _one_matrix(model):
        return True
    each = loss if isinstance(loss, PerSample) else per_sample(loss)
    with _weights_aside(model, each) as (trained, values):
        try:
            return all(_bends_upwards(line) for line in _lines(model, each, rows, trained, values))
        except Exception:  # the model or the loss does not take what is made up
            return True


@contextmanager
def _weights_aside(model: nn.Module, loss: Loss) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The trained parameters, which may be changed in here, and what they are now; none if some are not made yet."""
    trained: list[Tensor] = [each for each in model.parameters() if each.requires_grad]
    if any(isinstance(each, nn.UninitializedParameter) for each in trained):
        yield [], []
        return
    with at_rest(model, loss.loss if isinstance(loss, PerSample) else loss), torch.no_grad():
        values = [one.detach().clone() for one in trained]
        try:
            yield trained, values
        finally:
            for parameter, value in zip(trained, values, strict=True):
                parameter.data = value


def _one_matrix(model: nn.Module) -> bool:
    trained = [each for each in model.parameters() if each.requires_grad]
    known = not any(isinstance(each, nn.UninitializedParameter) for each in trained)
    return known and sum(each.dim() > 1 for each in trained) == 1


def _lines(
    model: nn.Module, loss: Loss, rows: Rows, trained: Sequence[Tensor], values: Sequence[Tensor]
) -> Iterator[Tensor]:
    """The losses of made-up rows at points of lines: a row for each point."""
    inputs, target, length = _made_up(rows)
    chance = torch.Generator().manual_seed(1)
    for step in _LENGTHS:
        ways = [_drawn(one, chance) * step / max(1, one[0].numel() if one.dim() > 1 else 1) ** 0.5 for one in values]
        points = []
        for point in range(-(_POINTS // 2), _POINTS // 2 + 1):
            for parameter, value, way in zip(trained, values, ways, strict=True):
                parameter.data = value + point * way
            points.append(loss(model(*inputs), target).double().reshape(length, -1).sum(1))
        yield torch.stack(points)


def _made_up(rows: Rows) -> tuple[Any, Any, int]:
    """Inputs of random numbers, targets of zeros, and how many."""
    chance = torch.Generator().manual_seed(0)
    batch, length = blank_batch(rows)
    made = changed(batch, lambda one: _drawn(one, chance) if one.is_floating_point() else one)
    inputs, target = inputs_and_target(tuple(made))
    return inputs, changed(target, lambda one: one.new_zeros(one.shape)), length


def _between(like: Tensor, low: float, high: float, chance: torch.Generator) -> Tensor:
    return (low + (high - low) * torch.rand(like.shape, generator=chance)).to(like)


def _drawn(like: Tensor, chance: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=chance).to(like)


def _bends_upwards(line: Tensor) -> bool:
    """Whether no second difference is below zero by more than rounding."""
    bends, size = line.diff(n=2, dim=0), line.abs().amax(0)
    return not bool((bends < -_ROUNDING * size).any())
