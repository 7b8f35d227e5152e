"""Faults to plant in a private run, each a mistake people have made; an audit that misses one is no audit.

=====================  =============================================================================================
fault                  what goes wrong
=====================  =============================================================================================
``no-noise``           nothing is added
``half-noise``         the noise has half the standard deviation that is accounted
``no-clipping``        gradients enter as they are, noise as if they were clipped
``raw-threshold``      the threshold is the largest raw norm of the batch (003's adaptive clipping, errata 10)
``sticky-sampler``     the first record is in every batch, accounted as a Poisson sample
=====================  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sordina.clipping import Fixed, Policy
from sordina.errors import InvalidInput
from sordina.privacy import Adjacency
from sordina.queries import Query, Scalars, VectorQuery
from sordina.sampling import Poisson, Sampler
from sordina.training import Private

Fault = Callable[[Private], None]


def no_noise(private: Private) -> None:
    """Nothing is added."""
    _scale_noise(private, 0.0)


def half_noise(private: Private) -> None:
    """Half of the noise that is accounted."""
    _scale_noise(private, 0.5)


def no_clipping(private: Private) -> None:
    """Gradients as they are."""
    _set_policy(private, _Unclipped())


def raw_threshold(private: Private) -> None:
    """The threshold is the largest raw norm of the batch, and the noise follows it."""
    _set_policy(private, _RawMaximum())


def sticky_sampler(private: Private) -> None:
    """The first record takes part always."""
    private.plan = replace(private.plan, sampler=_Sticky(private.plan.sampler))


FAULTS: dict[str, Fault] = {
    "no-noise": no_noise,
    "half-noise": half_noise,
    "no-clipping": no_clipping,
    "raw-threshold": raw_threshold,
    "sticky-sampler": sticky_sampler,
}


def fault(name: str) -> Fault:
    """The fault called ``name``."""
    if name not in FAULTS:
        raise InvalidInput(f"no fault is called {name!r}. Choose one of {', '.join(FAULTS)}.")
    return FAULTS[name]


def _scale_noise(private: Private, factor: float) -> None:
    step = private.private_step
    sound = step.split

    def scaled() -> list[tuple[float, ...]]:
        return [tuple(factor * nu for nu in shares) for shares in sound()]

    step.split = scaled  # type: ignore[method-assign]


def _set_policy(private: Private, policy: Policy[Any]) -> None:
    step = private.private_step
    step.parts = tuple(replace(part, policy=policy) for part in step.parts)


@dataclass(frozen=True)
class _Unclipped(Fixed):
    """Says that it clips, and does not."""

    def ask(self, scalars: Scalars, state: None) -> tuple[Query, ...]:
        return (VectorQuery(torch.ones_like(scalars.norms)),)


@dataclass(frozen=True)
class _RawMaximum(Fixed):
    """Reads its threshold off the batch it clips."""

    seen: list[float] = field(default_factory=lambda: [1.0])

    def ask(self, scalars: Scalars, state: None) -> tuple[Query, ...]:
        if len(scalars.norms):
            self.seen[0] = float(scalars.norms.max())
        return (VectorQuery(torch.ones_like(scalars.norms)),)

    def bounds(self, state: None, adjacency: Adjacency) -> tuple[float, ...]:
        return (self.seen[0] if adjacency is Adjacency.ADD_REMOVE else 2 * self.seen[0],)


class _Sticky(Poisson):
    """Draws like the sampler it wraps, and adds record 0."""

    def __init__(self, sampler: Sampler) -> None:
        if not isinstance(sampler, Poisson):
            raise InvalidInput("the sticky sampler spoils Poisson sampling only.")
        super().__init__(sampler.batch_size, sampler.population)

    def draw(self, size: int, rng: np.random.Generator) -> Any:
        return np.union1d(super().draw(size, rng), [0]).astype(np.int64)
