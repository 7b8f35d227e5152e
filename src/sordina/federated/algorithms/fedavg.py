"""FedSGD, FedAvg and FedProx: local gradients or steps, and a server that adds their mean (004 2.3, 2.4.2; 002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordina.errors import InvalidInput, SordinaError
from sordina.federated.algorithms.algorithm import LocalSteps, everyone, sizes, towards
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Batch, Objective
from sordina.federated.population import Cohort, RowOrder
from sordina.federated.privacy.placement import clipped_rows
from sordina.privacy import check_positive

# FedSGD, FedAvg and FedProx at the server: add the mean update (004 2.3, 2.4.2; 002).


@dataclass(frozen=True)
class AddMean:
    """``theta <- theta + rate * mean_k v_k``, with ``momentum`` on the means if wanted.

    The momentum is the server's own: it reads released means only, so it costs no privacy.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    needs_vectors: bool = False

    def __post_init__(self) -> None:
        check_positive("server learning rate", self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise InvalidInput(f"server momentum must lie in [0, 1), got {self.momentum}.")

    def init(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """The model and a resting velocity."""
        if len(models) != 1:
            raise InvalidInput(
                f"this strategy trains one model, got {len(models)}; use ifca or metric-pfl for several."
            )
        return models[0].clone(), models[0] * 0

    def configure(self, state: tuple[Tensor, Tensor]) -> Arrays:
        """The model."""
        return {"model": state[0]}

    def update(self, state: tuple[Tensor, Tensor], release: Release) -> tuple[Tensor, Tensor]:
        """Step along the mean."""
        model, velocity = state
        velocity = self.momentum * velocity + release.mean
        return model + self.learning_rate * velocity, velocity

    def models(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """The one model."""
        return state[0][None]


# FedAvg and FedProx: some local steps, sent as the difference to the global model (002; 004 2.3).


@dataclass(frozen=True)
class LocalTraining:
    """``v_k = theta_k - theta`` after local SGD on ``F_k + mu/2 |theta_k - theta|^2``; FedAvg is ``mu = 0``."""

    objective: Objective
    steps: LocalSteps
    mu: float = 0.0
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise InvalidInput(f"the proximal weight mu must be >= 0, got {self.mu}.")

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Train every client from the global model."""
        model = everyone(sent["model"], cohort)
        correct = towards(self.objective.parts(model), self.mu) if self.mu else None
        end, _ = self.steps.run(self.objective, model, cohort, order, correct)
        return ClientResult(end.sub_(model), sizes(cohort)), state


# FedSGD: one gradient on all local rows (004 2.4.2).


@dataclass(frozen=True)
class LocalGradient:
    """``v_k = -grad F_k(theta)``: an update like any other, so servers add it."""

    objective: Objective
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """One full-batch gradient per client."""
        gradients = self.objective.gradient(everyone(sent["model"], cohort), cohort.whole())
        return ClientResult(-gradients, sizes(cohort)), state


# A gradient in which every record's share is clipped: record-level privacy at the client (003 section VI-D).


@dataclass(frozen=True)
class ClippedGradient:
    """``v_k = -(1/m) sum_i clip(grad f(theta; x_i), C)`` over the client's records, with a *public* divisor m.

    One record more or less changes v_k by at most C / m. Dividing by the client's own count would tell it.
    """

    objective: Objective
    clip: float
    divisor: float
    rows_at_once: int = 4096
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive("clipping threshold per record", self.clip)
        check_positive("public divisor", self.divisor)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def unmoved(self, sent: Arrays) -> ClientResult:
        """No records."""
        zero = torch.zeros(1, self.objective.size, dtype=sent["model"].dtype)
        return ClientResult(zero, torch.zeros(1), record_bound=self.clip / self.divisor)

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Every record as a client of one row; then clip, and add up by owner."""
        x, y, owner = cohort.rows()
        model = sent["model"]
        total = torch.zeros(len(cohort), self.objective.size, dtype=model.dtype)
        for first in range(0, len(x), self.rows_at_once):
            rows = slice(first, first + self.rows_at_once)
            gradients = record_gradients(self.objective, model, x[rows], y[rows])
            total.index_add_(0, owner[rows], clipped_rows(gradients, self.clip))
        return ClientResult(-total / self.divisor, sizes(cohort), record_bound=self.clip / self.divisor), state


def record_gradients(objective: Objective, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of every record, each a client of one row; zero for a record on which model or loss fail alone.

    Otherwise one record would take all others of its client with it, or stop the run when it is drawn. What fails on
    zeros too is a fault of model or loss, and is told.

    Args:
        objective: Model and loss.
        model: The model's numbers.
        x: The records' inputs.
        y: Their targets.
    """

    def together(x: Tensor, y: Tensor) -> Tensor:
        batch = Batch(x[:, None], y[:, None], torch.ones(len(x), 1, dtype=model.dtype))
        return objective.gradient(model.expand(len(x), -1), batch)

    try:
        return together(x, y)
    except SordinaError:
        raise
    except Exception:
        pass
    found = torch.zeros(len(x), objective.size, dtype=model.dtype)
    for row in range(len(x)):
        one = slice(row, row + 1)
        try:
            found[one] = together(x[one], y[one])
        except SordinaError:
            raise
        except Exception:
            together(torch.zeros_like(x[one]), torch.zeros_like(y[one]))
    return found
