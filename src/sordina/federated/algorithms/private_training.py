"""Local private training: a client runs DP-SGD on its own records, so that its whole update is private per record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sordina.clipping import Fixed
from sordina.federated.algorithms.algorithm import LocalSteps, sizes
from sordina.federated.messages import Arrays, ClientResult
from sordina.federated.objective import Batch, Objective
from sordina.federated.population import Cohort, RowOrder
from sordina.gradients.explicit import MatrixTape
from sordina.plan import check_whole
from sordina.privacy import Adjacency, check_positive
from sordina.private_step import release
from sordina.sampling import Poisson


@dataclass(frozen=True)
class PrivateLocalTraining:
    """``v_k = theta_k - theta`` after ``steps`` steps of DP-SGD on the client's records.

    A step draws every record by a coin of its own (``sampler.rate``, a public number), clips its gradient to
    ``threshold``, adds Gaussian noise of ``noise_multiplier * threshold`` to the sum, and divides by the public
    expected batch: one record more or less changes the sum by at most the threshold, so a step is one Poisson-sampled
    Gaussian mechanism, whatever the client's size. What comes after the noise is post-processing, the update included.

    Args:
        objective: Model and loss.
        local: The learning rate; its batches are those of the sampler.
        sampler: Draws a step's records.
        steps: Private steps in a participation.
        threshold: To which a record's gradient is clipped.
        noise_multiplier: The noise, relative to the threshold.
        mu: The pull towards the global model (FedProx).
        rows_at_once: The most gradients that are in memory together.
    """

    objective: Objective
    local: LocalSteps
    sampler: Poisson
    steps: int
    threshold: float
    noise_multiplier: float
    mu: float = 0.0
    rows_at_once: int = 1024
    state_sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("private steps", self.steps)
        check_positive("clipping threshold per record", self.threshold)
        check_positive("noise multiplier", self.noise_multiplier)

    def width(self, sent: Arrays) -> int:
        """One number per parameter."""
        return self.objective.size

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """Refused: the noise needs a generator of the client's own, see `run_private`."""
        raise AssertionError("private local training draws noise: call perform(work, ..., rng).")

    def run_private(
        self, sent: Arrays, cohort: Cohort | None, state: Arrays, rng: np.random.Generator
    ) -> tuple[ClientResult, Arrays]:
        """Train every client from the global model; without a cohort, one client that has no record.

        Args:
            sent: The global model.
            cohort: The clients and their records.
            state: What clients keep: nothing.
            rng: Draws records and noise: secure, unless the run must be repeatable.
        """
        model = sent["model"]
        if cohort is None:
            return ClientResult(self._trained(model, None, None, rng)[None], torch.zeros(1)), state
        x, y, owner = cohort.rows()
        vectors = []
        for client in range(len(cohort)):
            mine = owner == client
            vectors.append(self._trained(model, x[mine], y[mine], rng))
        return ClientResult(torch.stack(vectors), sizes(cohort)), state

    def _trained(self, model: Tensor, x: Tensor | None, y: Tensor | None, rng: np.random.Generator) -> Tensor:
        moved = torch.zeros_like(model)
        bounds = Fixed(self.threshold).bounds(None, Adjacency.ADD_REMOVE)
        for _ in range(self.steps):
            total = torch.zeros_like(model)
            if x is not None and y is not None:
                for part in torch.split(torch.from_numpy(self.sampler.draw(len(x), rng)), self.rows_at_once):
                    total += self._clipped(model + moved, x[part], y[part])
            released = release([total], bounds, [self.noise_multiplier], self.sampler.expected_batch_size, rng)
            moved = moved - self.local.learning_rate * (released.mean() + self.mu * moved)
        return moved

    def _clipped(self, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the records' clipped gradients, each record a client of one row; one that is not finite adds 0."""
        if not len(x):
            return torch.zeros_like(model)
        batch = Batch(x[:, None], y[:, None], torch.ones(len(x), 1, dtype=model.dtype))
        gradients = self.objective.gradient(model.expand(len(x), -1), batch)
        finite = gradients.norm(dim=1, keepdim=True).isfinite()
        tape = MatrixTape(torch.where(finite, gradients, 0.0))
        return tape.contract(Fixed(self.threshold).ask(tape.scalars(), None))[0].to(model.dtype)
