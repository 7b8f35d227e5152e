"""The private step: sums are clipped, noised and adapted to, in this order and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordina.accounting import Event, Gaussian
from sordina.clipping import Part
from sordina.clipping.policy import spread
from sordina.errors import TrainingFailed
from sordina.seam import Released, Scalars, Tape, VectorQuery
from sordina.training.noise import release
from sordina.training.parallel import Team
from sordina.training.plan import Plan


class PrivateStep:
    """Gathers the queries of a logical batch over any number of tapes, then releases their noised answers once.

    ``sizes`` are the lengths of the parts' vectors. Until `finish` the policies keep the state with which every tape of
    the batch was clipped.
    """

    def __init__(self, plan: Plan, parts: Sequence[Part], sizes: Sequence[int], team: Team | None = None) -> None:
        self.plan = plan
        self.parts = tuple(parts)
        self.sizes = tuple(sizes)
        self.team = team or Team()
        self.states: list[Any] = [part.policy.init(size) for part, size in zip(self.parts, self.sizes, strict=True)]
        share = plan.noise_multiplier * len(self.parts) ** 0.5
        self.multipliers = [part.policy.split(share) for part in self.parts]
        for part, state in zip(self.parts, self.states, strict=True):
            part.policy.bounds(state, plan.adjacency)
        self._totals: list[list[Tensor] | None] = [None] * len(self.parts)

    def event(self) -> Event:
        """What one step costs, derived from the noise that is really added."""
        return self.plan.sampler.event(Gaussian(spread([nu for shares in self.multipliers for nu in shares])))

    def absorb(self, tape: Tape) -> None:
        """Clip the samples of one tape and add them to the batch's totals."""
        for group, (part, state) in enumerate(zip(self.parts, self.states, strict=True)):
            direction = part.policy.direction(state)
            queries = part.policy.ask(tape.scalars(direction, group), state)
            answers = tape.contract(queries, direction, group)
            totals = self._totals[group]
            self._totals[group] = (
                answers if totals is None else [t.add_(a) for t, a in zip(totals, answers, strict=True)]
            )

    def finish(self, like: Tensor, rng: np.random.Generator) -> list[Released]:
        """Noise the totals of the batch, adapt the policies to what was released, and return it, part by part."""
        released = []
        for group, part in enumerate(self.parts):
            bounds = part.policy.bounds(self.states[group], self.plan.adjacency)
            totals = self._collect(group, like)
            answer = release(totals, bounds, self.multipliers[group], self.plan.sampler.expected_batch, rng)
            for total in answer.answers:
                self.team.agree(total)
            self.states[group] = part.policy.adapt(self.states[group], answer)
            released.append(answer)
        self._totals = [None] * len(self.parts)
        return released

    def _collect(self, group: int, like: Tensor) -> list[Tensor]:
        totals = self._totals[group]
        if totals is None:
            totals = self._zeros(group, like)
        totals = [self.team.add(total) for total in totals]
        if not all(map(finite, totals)):
            raise TrainingFailed(
                "a gradient is not finite, so training stopped; the steps taken stay on record. Lower the learning "
                "rate or check the data for NaN and very large values."
            )
        return totals

    def _zeros(self, group: int, like: Tensor) -> list[Tensor]:
        """The totals of an empty batch: zero vectors and zero counts, in the shapes the policy's queries have."""
        nobody = like.new_zeros(0)
        policy, state = self.parts[group].policy, self.states[group]
        direction = policy.direction(state)
        queries = policy.ask(Scalars(nobody, None if direction is None else nobody), state)
        return [like.new_zeros(self.sizes[group] if isinstance(query, VectorQuery) else ()) for query in queries]

    @property
    def thresholds(self) -> list[float]:
        """The current threshold of each part."""
        return [part.policy.threshold(state) for part, state in zip(self.parts, self.states, strict=True)]


def finite(values: Tensor) -> bool:
    """Whether all values are finite; a finite sum says so in one pass."""
    return math.isfinite(float(values.detach().sum())) or bool(torch.isfinite(values).all())
