"""Clients that follow one of two linear laws: 000 section 2.5.1, and section 2.5.2 with a minority.

The thesis does not print the law of ``x``; here ``x ~ N(0, I)``, as in IFCA's experiment (Ghosh et al. 2020), which it
follows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordina.errors import InvalidInput
from sordina.federated.data.federation import Federation, by_cluster
from sordina.federated.partition import Shard

OPTIMA = ((5.0, 6.0), (4.0, -4.5))
"""theta_1* and theta_2* of eq. 2.26 and 2.27."""
MINORITY_OFFSET = 15.0


def _client(cluster: int, samples: int, offset: float, rng: np.random.Generator) -> Shard:
    """``y = x . theta* + offset + u``, ``u ~ U[0, 1)``."""
    x = rng.standard_normal((samples, 2))
    y = x @ np.array(OPTIMA[cluster]) + offset + rng.random(samples)
    return torch.from_numpy(x).float(), torch.from_numpy(y).float().unsqueeze(1)


def _clients(clusters: list[int], samples: int, offsets: tuple[float, ...], rng: np.random.Generator) -> list[Shard]:
    if not clusters or samples < 1:
        raise InvalidInput(f"synthetic data need clients and samples, got {len(clusters)} clients of {samples}.")
    return [_client(cluster, samples, offsets[cluster], rng) for cluster in clusters]


def synthetic(rng: np.random.Generator, *, clients: int = 100, validation: int = 100, samples: int = 10) -> Federation:
    """000 section 2.5.1: every client draws its law with a fair coin; validation clients are drawn alike."""
    clusters = ([int(c) for c in rng.integers(2, size=clients)], [int(c) for c in rng.integers(2, size=validation)])
    train, held_out = (_clients(part, samples, (0.0, 0.0), rng) for part in clusters)
    return Federation(
        name="synthetic",
        train=train,
        validation=held_out,
        model="linear",
        loss="mse",
        metric="mse",
        clusters=clusters,
        optima=tuple(torch.tensor(theta) for theta in OPTIMA),
        source="synthetic, 000 section 2.5.1",
    )


def outcome(values: Tensor, groups: Tensor) -> Tensor:
    """Loan approved: ``y >= 0`` in the majority, ``y <= 15`` in the minority (sigmoid at 0.5, 000 section 2.5.2)."""
    flat = values.reshape(groups.shape)
    return torch.where(groups == 0, flat >= 0, flat <= MINORITY_OFFSET).long()


def synthetic_fairness(
    rng: np.random.Generator, *, clients: int = 1000, validation: int = 1000, samples: int = 10, minority: float = 0.2
) -> Federation:
    """000 section 2.5.2: most follow the first law, a minority the second plus 15 and is judged the other way.

    The offset needs an intercept, so the model has three parameters.
    """
    if not 0 < minority < 1:
        raise InvalidInput(f"the minority's share must lie strictly between 0 and 1, got {minority}.")
    clusters = (_shares(clients, minority, rng), _shares(validation, minority, rng))
    offsets = (0.0, MINORITY_OFFSET)
    train, held_out = (_clients(part, samples, offsets, rng) for part in clusters)
    return Federation(
        name="synthetic-fairness",
        train=train,
        validation=held_out,
        model="linear",
        loss="mse",
        metric="mse",
        options={"bias": True},
        clusters=clusters,
        optima=tuple(torch.tensor([*theta, offset + 0.5]) for theta, offset in zip(OPTIMA, offsets, strict=True)),
        groups={"group": by_cluster(("majority", "minority"), train, held_out, clusters)},
        outcome=outcome,
        source="synthetic, 000 section 2.5.2",
    )


def _shares(clients: int, minority: float, rng: np.random.Generator) -> list[int]:
    few = round(minority * clients)
    return [int(index) for index in rng.permutation(np.repeat([0, 1], [clients - few, few]))]
