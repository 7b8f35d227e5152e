"""What a client uses for itself, where that is not simply the server's model. It never leaves the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordina.federated.algorithms.algorithm import ClientWork, everyone
from sordina.federated.algorithms.ifca import HYPOTHESES, best
from sordina.federated.messages import Arrays
from sordina.federated.objective import Objective
from sordina.federated.population import Cohort, RowOrder

OWN, MET = "personal", "met"


@dataclass(frozen=True)
class Personal:
    """A mixture for each client: ``weights (U, M)`` of ``models (U, M, P)``; mostly M = 1."""

    weights: Tensor
    models: Tensor


@runtime_checkable
class PersonalWork(Protocol):
    """Client work that ends in models of the clients' own."""

    def personal(self, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder) -> Personal:
        """The models these clients would use after being sent ``sent``."""
        ...


def alone(models: Tensor) -> Personal:
    """One model for each client, ``(U, P)``."""
    return Personal(models.new_ones(len(models), 1), models[:, None])


def started(state: Arrays, model: Tensor) -> Tensor:
    """The clients' own models; one that has none yet begins at ``model``. States start at zero, ``met`` says since."""
    return torch.where(state[MET] > 0, state[OWN], model)


def used(
    work: ClientWork, objective: Objective, sent: Arrays, cohort: Cohort, state: Arrays, order: RowOrder
) -> Personal:
    """What clients would use: their own models, the hypothesis that fits them best, or the server's model."""
    if isinstance(work, PersonalWork):
        return work.personal(sent, cohort, state, order)
    if HYPOTHESES in sent:
        return alone(sent[HYPOTHESES][best(objective, sent[HYPOTHESES], cohort)])
    return alone(everyone(sent["model"], cohort))
