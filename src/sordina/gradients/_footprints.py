"""Which functions of PyTorch a call runs, one after the other: whatever was switched, and wherever, other work shows.

Nobody can list all places in which a program may keep a switch: attributes of schedulers, weak references, context
variables, files. But what a switch turns on is work, and all work of a model goes through functions of PyTorch. So the
functions of every call are followed, with the plain values among their arguments (but not with their tensors, and
numbers but roughly). A call that does what none did before is tested before it counts.

What changes all the time does not have the model tested all the time: layers that are left out at random, loops over
sequences of any length. After `MOST_TRAILS` calls that were new as a whole, one is new only if a function follows upon
another that it never followed, and that at most `MOST_TESTS` times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

MOST_TRAILS, MOST_TESTS = 16, 64
_EXACT = 8
"""Whole numbers up to this are told by themselves: dimensions. Larger ones are mostly sizes, of batches and others."""
_APART = 4096
"""Added, for -1 and -2 have the same hash in Python, and so have 1 and True."""
_THEMSELVES = frozenset({bool, str, type(None), torch.dtype, torch.device, torch.layout, type(...)})
_MANY = 16


class Trail:
    """What one call did."""

    __slots__ = ("fresh", "known", "last", "whole")

    def __init__(self, known: set[int]) -> None:
        self.known, self.fresh, self.last, self.whole = known, list[int](), 0, 0

    def step(self, function: Any, args: Any, kwargs: Any) -> None:
        """Note a function that runs."""
        step = hash((function, tuple([_told(each) for each in args]), _told_by_name(kwargs) if kwargs else None))
        pair = hash((self.last, step))
        self.last, self.whole = step, hash((self.whole, step))
        if pair not in self.known:
            self.fresh.append(pair)


def _told(value: Any) -> Any:
    """What an argument is, roughly: cheap, for it is asked for every function that runs."""
    kind = value.__class__
    if kind is int:
        return value + _APART if -_EXACT <= value <= _EXACT else int
    if kind is float:
        if value in (0.0, 1.0) or not math.isfinite(value):
            return str(value)
        return value > 0, math.frexp(value)[1] + _APART
    if kind in _THEMSELVES:
        return value
    if kind is tuple or kind is list:
        return tuple([_told(each) for each in value[:_MANY]])
    if kind is slice:
        return slice, _told(value.start), _told(value.stop), _told(value.step)
    return kind


def _told_by_name(values: dict[str, Any]) -> Any:
    return tuple([(name, _told(each)) for name, each in values.items()])


class Following(TorchFunctionMode):
    """Notes what runs; one for all that are interested, for each costs."""

    active: ClassVar[Following | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.trail: Trail | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it, and go on."""
        if self.trail is not None:
            self.trail.step(func, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)


class followed:
    """In here, what runs is noted in ``trail``, and in no other; None stands for none."""

    __slots__ = ("before", "mode", "trail")

    def __init__(self, trail: Trail | None) -> None:
        self.trail, self.mode = trail, None if trail is None or Following.active is not None else Following()

    def __enter__(self) -> Trail | None:
        """Begin."""
        if self.mode is not None:
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            Following.active = self.mode
        if (active := Following.active) is not None:
            self.before, active.trail = active.trail, self.trail
        return self.trail

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Go on with what was noted before."""
        if (active := Following.active) is not None:
            active.trail = self.before
        if self.mode is not None:
            Following.active = None
            self.mode.__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]


def same_chance() -> Callable[[], None]:
    """What puts the random numbers of PyTorch, Python and NumPy back to where they are now."""
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002

    def back() -> None:
        torch.set_rng_state(drawn[0])
        random.setstate(drawn[1])
        np.random.set_state(drawn[2])  # noqa: NPY002

    return back


class Footprints:
    """What calls did so far."""

    def __init__(self) -> None:
        self._pairs, self._trails, self._tests = set[int](), set[int](), 0

    def trail(self) -> Trail:
        """Of a call that begins."""
        return Trail(self._pairs)

    def new(self, trail: Trail) -> bool:
        """Whether a call did what none did before, and must be tested."""
        if trail.whole in self._trails or self._tests >= MOST_TRAILS + MOST_TESTS:
            return False
        if not trail.fresh and self._tests >= MOST_TRAILS:
            return False
        self._tests += 1
        return True

    def learn(self, trail: Trail) -> None:
        """What this call did was studied or tested."""
        self._pairs.update(trail.fresh)
        if len(self._trails) < MOST_TRAILS * MOST_TESTS:
            self._trails.add(trail.whole)
