"""Online sensitivity optimisation: let the loss say which way the threshold should go (000 chapter 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordina.clipping.policy import ball, shrink, side_query
from sordina.seam import Query, Released, ScalarQuery, Scalars, VectorQuery
from sordina.types import Adjacency, check_positive


@dataclass(frozen=True)
class OnlineState:
    """The threshold, the step number and the released vectors the next decision needs."""

    C: float
    step: int = 0
    gradient: Tensor | None = None
    derivative: Tensor | None = None


@dataclass(frozen=True)
class Online:
    initial: float = 0.1
    rate: float = 2.5e-3
    inflation: float = 0.01

    def init(self, size: int) -> OnlineState:
        return OnlineState(self.initial)

    def direction(self, state: OnlineState) -> Tensor | None:
        return None

    def ask(self, scalars: Scalars, state: OnlineState) -> tuple[Query, ...]:
        norms = scalars.norms
        own = shrink(norms, state.C)
        clipped = torch.where((norms > state.C) & norms.isfinite(), 1 / norms, torch.zeros_like(norms))
        return (VectorQuery(own), VectorQuery(clipped))

    def bounds(self, state: OnlineState, adjacency: Adjacency) -> tuple[float, ...]:
        return (ball(state.C, adjacency), ball(1.0, adjacency))

    def split(self, noise_multiplier: float) -> tuple[float, ...]:
        return side_query(noise_multiplier, self.inflation)

    def adapt(self, state: OnlineState, released: Released) -> OnlineState:
        g, q = released.mean(0), released.mean(1)
        C = state.C
        if state.derivative is not None:
            C *= math.exp(self.rate * float(torch.sign(g @ state.derivative)))
        return OnlineState(C, state.step + 1, g, q)

    def threshold(self, state: OnlineState) -> float:
        return state.C
