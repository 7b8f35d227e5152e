"""Augmentation multiplicity: several views of a sample in a step, their gradients averaged before they are clipped.

A unit that is drawn is taken ``views`` times, every time changed a little (De et al. 2022). Its gradient is the mean
over the views, clipped once, so the bound, the noise and the price are those of a step without views; only time grows.

**Why samples stay apart.** A function of one's own is called for one row at a time, so it sees no other. Its numbers
come from a generator whose seed is drawn for every step from the run's own, which nobody knows: whatever another sample
uses up of them, the law of this sample's views is the same. A function that fails on a row, or changes its form, leaves
that row as it is: nothing stops, and nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sordina.errors import InvalidInput

Augmentation: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""From one input, without a batch dimension, and a generator, to another of the same form."""


@dataclass(frozen=True)
class ImageShift:
    """Shift an image by up to ``pixels`` in each direction, with zeros where nothing was; perhaps mirror it.

    Args:
        pixels: At most so far.
        flip: Mirror left and right half of the time: not for digits or letters.
    """

    pixels: int = 2
    flip: bool = False

    def __post_init__(self) -> None:
        if self.pixels < 0:
            raise InvalidInput(f"an image is shifted by 0 pixels or more, got {self.pixels}.")

    def __call__(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """One image (..., height, width)."""
        return self.many(image[None], generator)[0]

    def many(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (n, ..., height, width), every one by numbers of its own: the same as one by one, and faster."""
        count, (height, width), far = len(images), images.shape[-2:], self.pixels
        drawn = torch.randint(0, 2 * far + 1, (count, 2), generator=generator)
        mirrored = torch.rand(count, generator=generator) < 0.5 if self.flip else torch.zeros(count, dtype=torch.bool)
        padded = torch.nn.functional.pad(images.reshape(count, -1, height, width), [far] * 4)
        columns = drawn[:, 1:] + torch.where(mirrored[:, None], torch.arange(width).flip(0), torch.arange(width))
        rows = drawn[:, :1] + torch.arange(height)
        which = torch.arange(count)[:, None, None]
        moved = padded.movedim(1, 3)[which, rows[:, :, None], columns[:, None, :]]
        return moved.movedim(3, 1).reshape(images.shape)


def augmented(batch: Any, augment: Augmentation, seed: int) -> Any:
    """``batch`` with its first input changed, row by row.

    Args:
        batch: A tensor, or a sequence of tensors of which the first is changed.
        augment: What changes a row.
        seed: Secret, and new for every batch.
    """
    if isinstance(batch, Tensor):
        return _changed(batch, augment, torch.Generator().manual_seed(seed))
    if not isinstance(batch, Sequence) or not batch or not isinstance(batch[0], Tensor):
        raise InvalidInput("augment changes the first tensor of a batch: give data as tensors, or as items (x, y).")
    first = _changed(batch[0], augment, torch.Generator().manual_seed(seed))
    return [first, *batch[1:]] if isinstance(batch, list) else (first, *batch[1:])


def _changed(inputs: Tensor, augment: Augmentation, generator: torch.Generator) -> Tensor:
    if isinstance(augment, ImageShift):
        return augment.many(inputs, generator)
    return torch.stack([_one(row, augment, generator) for row in inputs]) if len(inputs) else inputs


def _one(row: Tensor, augment: Augmentation, generator: torch.Generator) -> Tensor:
    try:
        view = augment(row.clone(), generator)
        return view if view.shape == row.shape and view.dtype == row.dtype else row
    except Exception:
        return row


def check_augmentation(augment: Augmentation | None, views: int, batch: Any) -> None:
    """Refuse, before anything is spent, views of nothing and functions that do not take a row of zeros.

    Args:
        augment: What changes a row.
        views: How often a unit is taken.
        batch: Zeros in the form of the data; None if none is known.
    """
    if isinstance(views, bool) or not isinstance(views, int) or views < 1:
        raise InvalidInput(f"views are a whole number of at least 1, got {views!r:.40}.")
    if augment is None:
        if views > 1:
            raise InvalidInput(f"{views} views of a sample differ only if something changes them: give augment=.")
        return
    if not callable(augment):
        raise InvalidInput(f"augment is a function (input, generator) -> input, got a {type(augment).__name__}.")
    first = batch if isinstance(batch, Tensor) else batch[0] if isinstance(batch, Sequence) and batch else None
    if not isinstance(first, Tensor):
        raise InvalidInput("augment changes the first tensor of a batch: give data as tensors, or as items (x, y).")
    try:
        view = augment(first[0].clone(), torch.Generator().manual_seed(0))
    except Exception as error:
        raise InvalidInput(f"augment fails on an input of zeros: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(view, Tensor) or view.shape != first[0].shape or view.dtype != first.dtype:
        raise InvalidInput(
            f"augment must keep the form of an input, {tuple(first[0].shape)} {first.dtype}; it returned "
            f"{(tuple(view.shape), view.dtype) if isinstance(view, Tensor) else type(view).__name__}."
        )
