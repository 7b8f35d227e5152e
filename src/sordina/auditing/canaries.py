"""Canary gradients, with full knowledge of everything released: the strongest adversary the guarantee speaks of.

The world is the worst case. The model is linear and its loss is its output, so the gradient of a record is the record.
A canary is a long vector along a coordinate that nobody else uses; the other records are known. The auditor sees every
noised gradient that the optimiser receives, and nothing before it. Training is the library's own: sampler, engine,
clipping policy, noise and step (`sordina.training.Private`), with whatever fault was planted in it.

The seam is a `Trial`: which canaries are in, and what was then seen along each. One canary in many runs gives
independent trials; many canaries in one run give the one-run audit (see `sordina.auditing.library`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sordina.auditing.scores import BoolArray, FloatArray
from sordina.clipping import Fixed, Policy
from sordina.errors import InvalidInput
from sordina.training import Plan, Private
from sordina.types import Adjacency


@dataclass(frozen=True)
class Trace:
    """What the auditor saw of a run, step by step, in units of the sensitivity that the policy states."""

    projections: FloatArray
    """(steps, canaries): the released sum along each canary."""
    energies: FloatArray
    """(steps,): log of the released sum's squared length. Noise or thresholds that react to the data show here."""


class Trial(Protocol):
    """Run the private steps with some of the canaries in, and say what was released."""

    @property
    def plan(self) -> Plan:
        """What is claimed."""
        ...

    @property
    def canaries(self) -> int:
        """How many there are to put in."""
        ...

    def __call__(self, included: BoolArray, rng: np.random.Generator) -> Trace:
        """One run."""
        ...


@dataclass(frozen=True)
class CanaryTrial:
    """Train on ``background`` records and the canaries that are in. Canaries come first: faults live at the edges.

    Under add/remove a canary that is out is absent; under replace-one its opposite takes its place. ``fault`` may spoil
    the bound run before it starts; the plan, and with it the claim, stays what it was.
    """

    plan: Plan
    clipping: Policy[Any] = field(default_factory=Fixed)
    canaries: int = 1
    background: int = 8
    length: float = 100.0
    """Norm of a canary: far above any threshold, so that clipping is tested too."""
    fault: Callable[[Private], None] | None = None

    def __call__(self, included: BoolArray, rng: np.random.Generator) -> Trace:
        """One run of all planned steps."""
        model = nn.Linear(self.background + self.canaries, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = Private(model, optimizer, self._records(included), self.plan, self.clipping, rng=rng)
        if self.fault is not None:
            self.fault(private)
        projections: list[Tensor] = []
        energies: list[Tensor] = []
        stated = self._bound(private)

        def look(*_: Any) -> None:
            nonlocal stated
            assert model.weight.grad is not None
            released = model.weight.grad.flatten().double() * (self.plan.sampler.expected_batch / stated)
            projections.append(released[self.background :])
            energies.append(released.square().sum().clamp(min=1e-30).log())
            stated = self._bound(private)

        optimizer.register_step_pre_hook(look)
        for inputs, _ in private:
            private.step(model(inputs).flatten())
        if private.engine is not None:
            private.engine.close()
        return Trace(torch.stack(projections).numpy(), torch.stack(energies).numpy())

    def _bound(self, private: Private) -> float:
        """The sensitivity that the policy states for its gradient query at this moment: public."""
        return float(self.clipping.bounds(private.private_step.states[0], self.plan.adjacency)[0])

    def _records(self, included: BoolArray) -> tuple[Tensor, Tensor]:
        if included.shape != (self.canaries,):
            raise InvalidInput(f"{self.canaries} canaries, but memberships of shape {included.shape}.")
        columns = self.background + self.canaries
        rows = np.zeros((self.canaries, columns), dtype=np.float32)
        rows[:, self.background :] = np.diag(np.where(included, self.length, -self.length))
        if self.plan.adjacency is Adjacency.ADD_REMOVE:
            rows = rows[included]
        inputs = torch.from_numpy(np.concatenate([rows, np.eye(self.background, columns, dtype=np.float32)]))
        return inputs, torch.zeros(len(inputs))


def likelihood(trace: Trace, plan: Plan) -> FloatArray:
    """Per canary, the log-likelihood ratio of "in" and "out" of what was seen, under the claimed noise.

    A step shows ``N(b, nu^2)`` with b = 0, except with probability q (the sampling rate), when it shows the canary:
    b = 1 against nothing under add/remove, b = 1/2 against -1/2 under replace-one, in units of the sensitivity.
    """
    rate = getattr(plan.sampler, "rate", None)
    if rate is None:
        rate = plan.sampler.expected_batch / getattr(plan.sampler, "population")  # noqa: B009 - not in the protocol
    inside, outside = (1.0, 0.0) if plan.adjacency is Adjacency.ADD_REMOVE else (0.5, -0.5)
    variance = plan.noise_multiplier**2

    def log_density(mean: float) -> FloatArray:
        shown = (trace.projections - mean / 2) * mean / variance
        with np.errstate(divide="ignore"):
            mixed: FloatArray = np.logaddexp(np.log1p(-rate), np.log(rate) + shown)
        return mixed

    ratio: FloatArray = (log_density(inside) - log_density(outside)).sum(axis=0)
    return ratio


def energy(trace: Trace, plan: Plan) -> FloatArray:
    """The largest log-length of a released sum: the same for all canaries, and blind to their direction."""
    return np.full(trace.projections.shape[1], float(trace.energies.max()))
