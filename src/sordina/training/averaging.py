"""Averages of released weights: post-processing, so free, and what is validated, saved and returned.

Every step leaves weights ``w_t`` that are released. Their noise goes back and forth around what was learnt, and in an
average most of it cancels. With ``m`` the average so far,

    m <- m + a (w_t - m),      tail: a = 1/k for the k-th step of the last ``share`` of a run, whose mean it is;
                               exponential: a = max(1/t, 1/(memory T)), so that about ``memory T`` steps count.

Both follow from the number of steps, which is public. Training goes on from ``w_t``, never from ``m``. Buffers are not
averaged: those that may change hold nothing of the data (``public_buffers``) and keep their last value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sordina.errors import InvalidInput


class Averaging(Protocol):
    """Which steps of a run are averaged, and how much a new one counts."""

    def begins(self, steps: int) -> int:
        """How many of ``steps`` steps are taken before the average begins."""
        ...

    def weight(self, count: int, steps: int) -> float:
        """How much the next weights count, after ``count`` in the average, in a run of ``steps`` steps."""
        ...


@dataclass(frozen=True)
class TailAverage:
    """The mean of the weights in the last ``share`` of the steps.

    Args:
        share: Between 0 and 1.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"the share of a tail average must lie in (0, 1], got {self.share}.")

    def begins(self, steps: int) -> int:
        """After the steps that are left out."""
        return min(steps - 1, round((1 - self.share) * steps))

    def weight(self, count: int, steps: int) -> float:
        """All count alike."""
        return 1 / (count + 1)


@dataclass(frozen=True)
class ExponentialAverage:
    """A mean in which weights count less the longer ago they were.

    Args:
        memory: The part of a run after which they count 1/e.
    """

    memory: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.memory <= 1:
            raise InvalidInput(f"the memory of an exponential average must lie in (0, 1], got {self.memory}.")

    def begins(self, steps: int) -> int:
        """At once."""
        return 0

    def weight(self, count: int, steps: int) -> float:
        """As in a mean at first, then a constant."""
        return max(1 / (count + 1), min(1.0, 1 / (self.memory * steps)))


NAMES = ("tail", "ema", "none")


def averaging_named(name: str | Averaging | None) -> Averaging | None:
    """The averaging called ``name``; a rule stays what it is.

    >>> averaging_named("tail")
    TailAverage(share=0.5)

    Args:
        name: "tail", "ema", "none", a rule, or None.
    """
    if isinstance(name, str):
        if name not in NAMES:
            raise InvalidInput(f"unknown averaging {name!r}: choose one of {', '.join(NAMES)}.")
        known: dict[str, Averaging | None] = {"tail": TailAverage(), "ema": ExponentialAverage(), "none": None}
        return known[name]
    if name is not None and not callable(getattr(name, "weight", None)):
        raise InvalidInput(f"averaging is a rule of sordina.training or its name, got a {type(name).__name__}.")
    return name


class WeightAverage:
    """The average of ``parameters`` over a run.

    Args:
        rule: Which steps count, and how much.
        parameters: What is trained; read at every step, and changed by `shown` and `adopt` only.
        steps: How many steps the run has.
    """

    def __init__(self, rule: Averaging, parameters: Sequence[Tensor], steps: int) -> None:
        self.rule, self.steps = rule, steps
        self._parameters = list(parameters)
        self._means: list[Tensor] = []
        self._count = 0

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take the weights after ``step`` into the average, if they count."""
        if step <= self.rule.begins(self.steps):
            return
        weight = self.rule.weight(self._count, self.steps)
        if not self._means:
            self._means = [parameter.detach().clone() for parameter in self._parameters]
        else:
            for mean, parameter in zip(self._means, self._parameters, strict=True):
                mean.lerp_(parameter.detach(), weight)
        self._count += 1

    @torch.no_grad()
    def adopt(self) -> None:
        """Make the average the weights: for the end of a run. Nothing changes before the average has begun."""
        for mean, parameter in zip(self._means, self._parameters, strict=bool(self._means)):
            parameter.copy_(mean)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The average in place of the weights, while the block lasts."""
        before = [parameter.detach().clone() for parameter in self._parameters] if self._means else []
        self.adopt()
        try:
            yield
        finally:
            with torch.no_grad():
                for old, parameter in zip(before, self._parameters, strict=bool(before)):
                    parameter.copy_(old)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"count": self._count, "means": self._means}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's `state`."""
        self._count, self._means = int(state["count"]), list(state["means"])
