"""FSVRG: the full gradient first, then local steps whose variance it reduces (Konecny et al. 2016; 004 2.4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Objective, own
from sordina.federated.population import Cohort, RowOrder
from sordina.privacy import check_positive

GRADIENT, PHASE = "gradient", "phase"


@dataclass(frozen=True)
class VarianceReduced:
    """Phase 0: ``-h grad F_k(theta)``. Phase 1: ``theta_k - theta`` after one pass of

        theta_k <- theta_k - h_k (grad f_i(theta_k) - grad f_i(theta) + grad F(theta)),   h_k = h / (steps of client k)

    (004 2.4.4: ``h_k = h / n_k`` for n_k steps on one row each, here a batch size of 1; clients then make about equal
    progress, however many rows they have). The factor h in phase 0 is public and brings both phases to the scale
    of one step, so that one clipping bound can serve them.
    """

    objective: Objective
    steps: LocalSteps
    """``rate`` is h."""
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """A gradient or a pass, as the server asks."""
        model = everyone(sent["model"], cohort)
        if not int(sent[PHASE]):
            gradient = self.objective.gradient(model, cohort.whole())
            return ClientResult(-self.steps.learning_rate * gradient, sizes(cohort)), state
        full, rate = sent[GRADIENT], self.steps.learning_rate / self._taken(cohort).to(model)[:, None]
        end = own(model)
        for batch in self.steps.batches(cohort, order):
            live = end[: len(batch.mask)]
            noisy = self.objective.gradient(live, batch) - self.objective.gradient(model[: len(live)], batch)
            live -= rate[: len(live)] * (noisy + full)
        return ClientResult(end - model, sizes(cohort)), state

    def _taken(self, cohort: Cohort) -> torch.Tensor:
        """The number of steps of each client, at least 1."""
        rows = torch.from_numpy(cohort.sizes)
        if self.steps.steps is not None:
            return torch.full_like(rows, self.steps.steps)
        return (-(-rows // self.steps.batch_size) * self.steps.epochs).clamp(min=1)


# FSVRG at the server: two exchanges make one step (Konecny et al. 2016; 004 2.4.4).


@dataclass(frozen=True)
class FsvrgState:
    """The model, the last full gradient, and which exchange comes next: 0 asks for gradients, 1 for steps."""

    model: Tensor
    gradient: Tensor
    phase: int = 0


@dataclass(frozen=True)
class FsvrgServer:
    """Even rounds: ``grad F = mean_k grad F_k``. Odd rounds: ``theta <- theta + rate * mean_k (theta_k - theta)``.

    Each exchange is a round of its own and is charged as one. ``step`` is the clients' h, in units of which they
    send their gradients.
    """

    step: float
    learning_rate: float = 1.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("FSVRG's step", self.step)
        check_positive("server learning rate", self.learning_rate)

    def init(self, models: Tensor) -> FsvrgState:
        """The model, before its first gradient."""
        if len(models) != 1:
            raise InvalidInput(f"FSVRG trains one model, got {len(models)}; use ifca or metric-pfl for several.")
        return FsvrgState(models[0].clone(), torch.zeros_like(models[0]))

    def configure(self, state: FsvrgState) -> Arrays:
        """Model, gradient and what is wanted."""
        return {"model": state.model, GRADIENT: state.gradient, PHASE: torch.tensor(state.phase)}

    def update(self, state: FsvrgState, release: Release) -> FsvrgState:
        """Keep the gradient, or step along the mean."""
        if not state.phase:
            return FsvrgState(state.model, -release.mean / self.step, 1)
        return FsvrgState(state.model + self.learning_rate * release.mean, state.gradient)

    def models(self, state: FsvrgState) -> Tensor:
        """The one model."""
        return state.model[None]
