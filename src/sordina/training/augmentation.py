"""Augmentation multiplicity: several views of a sample in a step, their gradients averaged before they are clipped.

A unit that is drawn is taken ``views`` times, every time changed a little (De et al. 2022). Its gradient is the mean
over the views, clipped once, so the bound, the noise and the price are those of a step without views; only time grows.

**Why samples stay apart.** A function of one's own is called for one row at a time, and what it returns is copied at
once, so it sees no other row unless it keeps one: a function whose view of a row depends on what it was given before
(if only by the toss of a coin), or on random numbers of its own (whose seed may be known), is refused, and so is one
that holds the data (MixUp). Its numbers come from a generator whose seed is drawn for every step from the run's own,
which nobody knows: whatever another sample uses up of them, the law of this sample's views is the same. A function that
fails on a row, or changes its form, leaves that row as it is: nothing stops, and nothing is told.
"""

from __future__ import annotations

import dis
import functools
import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sordina.errors import InvalidInput
from sordina.gradients._chance import Generators
from sordina.gradients._kept_state import KeptState
from sordina.gradients.removal import CHANCE
from sordina.training.batches import Rows

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
        if image.dim() < 2:
            raise InvalidInput("an image has a height and a width; this is one row of numbers.")
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


def readings(rows: Rows, augment: Augmentation | None) -> list[Callable[[], Any]]:
    """Ways to read rows, where code of the user's does that: it may keep something of them.

    They are alike but for which rows are read, and for how many: each begins with what that code keeps now, so that
    what moves on from reading to reading (a running mean) shows which row was read. A count of rows is no better.

    Args:
        rows: The data.
        augment: What changes a row.
    """
    if isinstance(rows.source, tuple) and augment is None:
        return []
    source = None if isinstance(rows.source, tuple) else rows.source
    kept = KeptState([source, rows.collate, augment], others=_large(source))

    def read(*indices: int) -> None:
        kept.restore()
        batch = rows.take(np.array(indices))
        if augment is not None:
            augmented(batch, augment, 0)

    chosen = CHANCE.sample(range(rows.size), min(rows.size, _TOGETHER))
    return [*[functools.partial(read, index) for index in chosen[:_READ]], functools.partial(read, *chosen)]


_READ, _TOGETHER = 4, 32
"""So many rows are read one by one, and so many at once."""
_LARGE = 256
"""Containers of more things, and tensors of so many times as many numbers, hold the data, or a cache of it."""


def _large(source: Any) -> Iterator[Any]:
    """What of a data set is too large to be put back whenever a row is read."""
    todo, seen = [source], set[int]()
    while todo:
        holder = todo.pop()
        within = holder if isinstance(holder, (list, tuple)) else getattr(holder, "__dict__", {}).values()
        for value in within:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, (list, tuple, dict, set, frozenset, deque)):
                if len(value) > _LARGE:
                    yield value
                elif isinstance(value, (list, tuple)):
                    todo.append(value)
            elif isinstance(value, (Tensor, np.ndarray)):
                if math.prod(value.shape) > _LARGE**2:
                    yield value
            elif isinstance(value, Dataset):
                todo.append(value)


def _changed(inputs: Tensor, augment: Augmentation, generator: torch.Generator) -> Tensor:
    if isinstance(augment, ImageShift):
        return augment.many(inputs, generator)
    views = inputs.detach().clone()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would tell of a row
        for row, place in zip(inputs.detach(), views, strict=True):
            _write(place, row, augment, generator)
    return views


def _write(place: Tensor, row: Tensor, augment: Augmentation, generator: torch.Generator) -> None:
    """Put the view of ``row`` there, if it is one."""
    try:
        view = augment(row.clone(), generator)
        if view.shape == row.shape and view.dtype == row.dtype:
            place.copy_(view)
    except Exception:
        place.copy_(row)


def check_augmentation(augment: Augmentation | None, views: int, batch: Any, data: Any = None) -> None:
    """Refuse, before anything is spent, views of nothing and functions that fail on zeros, remember or hold the data.

    Args:
        augment: What changes a row.
        views: How often a unit is taken.
        batch: Zeros in the form of the data; None if none is known.
        data: What is trained on.
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
    if _remembers(augment, first[0]):
        raise InvalidInput(
            "augment remembers: its view of a row depends on rows before, or on random numbers of its own, so one "
            "record would be in the views of others, where no bound sees it. Keep nothing between calls, and draw from "
            "the generator it is given."
        )
    if data is not None and _holds(augment, data):
        raise InvalidInput(
            "augment holds the training data, so that one record could be in the views of others (MixUp, CutMix), "
            "where no bound sees it. A view may be made of its own row, of random numbers and of public data only."
        )


_ROUND, _TOSSES = 16, 16
"""So many made-up rows are given, then again in another order; so often, where random numbers are drawn."""


def _remembers(augment: Augmentation, zeros: Tensor) -> bool:
    """Whether the view of a row, by the same random numbers, is another one once other rows were seen.

    Where the function draws numbers, rows are tried by so many seeds that a coin of a few per cent falls either way.
    """
    chance, drew = Generators(), False

    def view(row: int, seed: int, case: int) -> Tensor | None:
        nonlocal drew
        chance.seed(seed, case)
        own = torch.Generator().manual_seed(seed)
        before = chance.states(), own.get_state()
        try:
            return augment(torch.full_like(zeros, row), own).detach().clone()
        except Exception:
            return None
        finally:
            drew = drew or chance.states() != before[0] or not torch.equal(own.get_state(), before[1])

    kept = chance.kept()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(_TOSSES):
                if number > 1 and not drew:
                    break
                asked = [
                    (place % 3, _SEEDS.getrandbits(32), (0, 0, 0, 0, 0, 0, 1, 2)[place % 8]) for place in range(_ROUND)
                ]
                first = [view(*each) for each in asked]
                for place in (*range(_ROUND - 2, -1, -1), _ROUND - 1):  # before each comes another one than at first
                    one, again = first[place], view(*asked[place])
                    if one is not None and again is not None and not _same(one, again):
                        return True
    finally:
        for put_back in kept:
            put_back()
    return False


_SEEDS = random.SystemRandom()


def _same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one, two, equal_nan=True)


def _holds(augment: Any, data: Any) -> bool:
    """Whether a function reaches ``data``, or memory of its tensors, by what it closes over, is bound to or names."""
    ours = {place for one in _reached(data) for place in _places(one)}
    return any(place in ours for one in _reached(augment) for place in _places(one))


def _reached(one: Any, depth: int = 5) -> list[Any]:
    """``one`` and what it holds: at most so deep."""
    found, level = [one], [one]
    seen = {id(one)}
    for _ in range(depth):
        parts = [part for each in level for part in _parts(each) if id(part) not in seen]
        level = list({id(part): part for part in parts}.values())
        seen.update(map(id, level))
        found += level
    return found


def _places(one: Any) -> list[int]:
    """Where the memory of a tensor or an array begins; the object itself, if it is a data set."""
    if isinstance(one, np.ndarray):
        while isinstance(one.base, np.ndarray):
            one = one.base
        return [int(one.__array_interface__["data"][0])]
    if isinstance(one, Tensor):
        with suppress(Exception):
            return [int(one.untyped_storage().data_ptr())] if one.numel() else []
    return [id(one)] if isinstance(one, Dataset) else []


def _parts(one: Any) -> list[Any]:
    """What a function or an object holds."""
    if isinstance(one, (Tensor, np.ndarray, str, bytes, int, float, type, ModuleType, torch.Generator)):
        return []
    if isinstance(one, (tuple, list, set)):
        return list(one)[:_MOST]
    if isinstance(one, dict):
        return list(one.values())[:_MOST]
    if isinstance(one, FunctionType):
        named = {each.argval for each in dis.get_instructions(one) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        cells = [cell for cell in one.__closure__ or () if cell != CellType()]
        found = [one.__globals__[name] for name in named if name in one.__globals__]
        return [*found, *(cell.cell_contents for cell in cells), one.__defaults__, one.__kwdefaults__]
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, functools.partial):
        return [one.func, one.args, one.keywords]
    return [getattr(one, "__dict__", None), vars(type(one)).get("__call__")]


_MOST = 1000
"""So many members of a list are looked at."""
