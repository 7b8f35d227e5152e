"""What an algorithm is: a server strategy (state in, state out) and the work of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from sordina import random
from sordina._stacked_models import Parts
from sordina.federated.messages import Arrays, ClientResult, Release
from sordina.federated.objective import Batch, Objective, own
from sordina.federated.population import Cohort, RowOrder
from sordina.privacy import check_positive

# The seam of strategies: state in, state out, released values only.

State = TypeVar("State")


class ServerStrategy(Protocol[State]):
    """What the server sends, and what it makes of what it may see."""

    @property
    def needs_vectors(self) -> bool:
        """Whether a mean is not enough."""
        ...

    def init(self, models: Tensor) -> State:
        """The state before the first round, from initial models ``(k, P)``."""
        ...

    def configure(self, state: State) -> Arrays:
        """What every client of the next round is sent."""
        ...

    def update(self, state: State, release: Release) -> State:
        """The next state."""
        ...

    def models(self, state: State) -> Tensor:
        """The models as they stand, ``(k, P)``: what would be deployed."""
        ...


# The seam of client work, and the local steps most of it is made of.


class ClientWork(Protocol):
    """A pure function of what was sent, the clients' data, the clients' states and the order of their rows.

    Every tensor has one row per client and no client looks at another's, so a cohort of one is the plain loop and a
    cohort of a hundred is the same thing in one computation.
    """

    @property
    def objective(self) -> Objective:
        """Model and loss."""
        ...

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The vectors a client keeps between rounds: name and length; they start at zero."""
        ...

    def width(self, sent: Arrays) -> int:
        """The length of the vector each client will produce."""
        ...

    def run(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> tuple[ClientResult, Arrays]:
        """The outcome and the next state. The cohort is sorted by size, largest first."""
        ...


@runtime_checkable
class PrivateWork(Protocol):
    """Client work that draws noise of its own on the way, so that what it ends in is private already."""

    def run_private(
        self, sent: Arrays, cohort: Cohort | None, state: Arrays, rng: np.random.Generator
    ) -> tuple[ClientResult, Arrays]:
        """As `ClientWork.run`; without a cohort, what a client without rows would send."""
        ...


def perform(
    work: ClientWork, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder, rng: np.random.Generator
) -> tuple[ClientResult, Arrays]:
    """Run ``work``, with the client's own noise if it wants any.

    Args:
        work: The client's work.
        sent: What the server sent.
        cohort: The clients, largest first.
        state: What they keep between rounds.
        order: Of their rows.
        rng: Noise; most work draws none. If it is a secure one, chance in the model (dropout) comes from a fresh secret
            seed: by a public one, a client or a record would shift the masks of others.
    """
    if random.releasable(rng):
        random.reseed_globally()
    if isinstance(work, PrivateWork):
        return work.run_private(sent, cohort, state, rng)
    return work.run(sent, cohort, state, order)


Correction = Callable[[Parts], Parts]
"""``parameters -> what to add to the gradients`` of the first clients of the cohort."""


def towards(centre: Parts, weight: float, less: Parts | None = None) -> Correction:
    """The gradient of ``weight/2 |theta - centre|^2``, minus ``less`` if given."""

    def correct(live: Parts) -> Parts:
        count = len(live[0])
        pull = torch._foreach_mul(torch._foreach_sub(live, [part[:count] for part in centre]), weight)
        return list(pull if less is None else torch._foreach_sub(pull, [part[:count] for part in less]))

    return correct


@dataclass(frozen=True)
class LocalSteps:
    """Plain SGD on the client's own rows: ``epochs`` passes in batches of ``batch_size``, or ``steps`` steps."""

    learning_rate: float
    batch_size: int
    epochs: int = 1
    steps: int | None = None

    def __post_init__(self) -> None:
        check_positive("learning rate", self.learning_rate)

    def run(
        self,
        objective: Objective,
        start: Tensor,
        cohort: Cohort,
        order: RowOrder,
        correct: Correction | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """From ``start (U, P)`` to where each client ends, and how many steps each made.

        Parameters where ``mask`` is 0 are held at 0.
        """
        flat = own(start if mask is None else start * mask)
        parts = objective.parts(flat)
        taken = torch.zeros(len(cohort), dtype=start.dtype)
        for batch in self.batches(cohort, order):
            taking = len(batch.mask)
            live = [part[:taking] for part in parts]
            extra = correct(live) if correct is not None else None
            objective.descend(live, batch, self.learning_rate)
            if extra is not None:
                torch._foreach_add_(live, extra, alpha=-self.learning_rate)
            if mask is not None:
                flat[:taking] *= mask[:taking]
            taken[:taking] += 1
        return flat, taken

    def batches(self, cohort: Cohort, order: RowOrder) -> Iterator[Batch]:
        """The batches of these steps."""
        return cohort.batches(order, batch_size=self.batch_size, epochs=self.epochs, steps=self.steps)


def unmoved(work: ClientWork, sent: Arrays) -> ClientResult:
    """What one client would compute that learns nothing: no step from where it was sent.

    Args:
        work: The client's work. Work that sends whole models, or bounds a record's effect, has an ``unmoved`` of its
            own; for the rest it is an update of zero.
        sent: What the server sent.
    """
    own_way = getattr(work, "unmoved", None)
    if own_way is not None:
        found: ClientResult = own_way(sent)
        return found
    return ClientResult(torch.zeros(1, work.width(sent), dtype=dtype_of(sent)), torch.zeros(1))


def dtype_of(sent: Arrays) -> torch.dtype:
    """The kind of number in which clients compute and answer: that of the models they are sent."""
    return next(value.dtype for value in sent.values() if value.is_floating_point())


def sizes(cohort: Cohort) -> Tensor:
    """The clients' row counts as a tensor."""
    return torch.from_numpy(cohort.sizes)


def everyone(model: Tensor, cohort: Cohort) -> Tensor:
    """The same model for every client, ``(U, P)``, without copying it."""
    return model.expand(len(cohort), -1)
