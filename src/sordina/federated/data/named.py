"""Federations by name: Adult, hospitals, writers, and clients drawn from synthetic laws."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordina.datasets import Data, load
from sordina.datasets import hospital as charges
from sordina.errors import InvalidInput
from sordina.federated.data.partition import (
    Federation,
    Groups,
    Shard,
    by_cluster,
    by_key,
    by_label,
    by_quantity,
    iid,
    rotate,
    take,
)

# Adult among 50 clients, for the federated support vector machine of 003 section VI-D.


def adult(
    rng: np.random.Generator, *, clients: int = 50, partition: str = "iid", alpha: float = 0.5, model: str = "svm"
) -> Federation:
    """Training rows dealt out by ``partition`` (iid, label or quantity); the test set is one validation client."""
    data = load("adult")
    x, y = data.train.tensors
    if partition == "iid":
        parts = iid(len(y), clients, rng)
    elif partition == "label":
        parts = by_label(y.numpy(), clients, rng, alpha=alpha)
    elif partition == "quantity":
        parts = by_quantity(len(y), clients, rng, alpha=alpha)
    else:
        raise InvalidInput(f"unknown partition {partition!r}: choose iid, label or quantity.")
    groups = {
        name: Groups(column.names, [column.train[torch.from_numpy(rows)] for rows in parts], [column.test])
        for name, column in data.groups.items()
    }
    return Federation(
        name="adult",
        train=take(x, y, parts),
        validation=[(data.test.tensors[0], data.test.tensors[1])],
        model=model,
        loss="hinge" if model == "svm" else "cross-entropy",
        metric="accuracy",
        options={"inputs": x.shape[1]},
        groups=groups,
        source=data.source,
    )


# Hospitals as clients: 2947 of them, 2062 to train and 885 to validate (000 section 2.5.1).

_TRAIN_SHARE = 0.7


def hospital(rng: np.random.Generator, *, conditions: int = 3, contiguous: bool = True) -> Federation:
    """One client per hospital, one row per condition it treats; the rule that gives 2947 is told in `datasets`."""
    hospitals = charges.read(conditions=conditions, contiguous=contiguous)
    tables = [torch.tensor(rows, dtype=torch.float32) for rows in hospitals.values()]
    shards = [(table[:, :3], table[:, 3:]) for table in tables]
    order = rng.permutation(len(shards))
    cut = int(_TRAIN_SHARE * len(shards))
    return Federation(
        name="hospital",
        train=[shards[index] for index in order[:cut]],
        validation=[shards[index] for index in order[cut:]],
        model="hospital",
        loss="mse",
        metric="rmse",
        root=True,
        source=f"CMS inpatient charges, fiscal year 2011: {len(shards)} hospitals",
    )


# Clients that follow one of two linear laws: 000 section 2.5.1, and section 2.5.2 with a minority.
#
# The thesis does not print the law of ``x``; here ``x ~ N(0, I)``, as in IFCA's experiment (Ghosh et al. 2020), which
# it follows.

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


def synthetic_outcome(values: Tensor, groups: Tensor) -> Tensor:
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
        outcome=synthetic_outcome,
        source="synthetic, 000 section 2.5.2",
    )


def _shares(clients: int, minority: float, rng: np.random.Generator) -> list[int]:
    few = round(minority * clients)
    return [int(index) for index in rng.permutation(np.repeat([0, 1], [clients - few, few]))]


# Writers as clients, some of whose paper was turned: FEMNIST (000 section 2.5.1) and MNIST, which stands in for it.

_VALIDATION_SHARE = 0.1


def even_or_odd(values: Tensor, groups: Tensor) -> Tensor:
    """000 section 2.5.2: an even class counts as 1 for upright writers and as 0 for turned ones."""
    return torch.where(groups == 0, values % 2 == 0, values % 2 == 1).long()


def _turned(
    data: Data, model: str, shards: tuple[list[Shard], list[Shard]], probability: float, rng: np.random.Generator
) -> Federation:
    (train, train_turned), (held_out, held_out_turned) = (rotate(part, rng, probability=probability) for part in shards)
    clusters = (train_turned, held_out_turned)
    inputs = {"inputs": train[0][0][0].numel()} if model == "mlp" else {}
    return Federation(
        name=data.name,
        train=train,
        validation=held_out,
        model=model,
        loss="cross-entropy",
        metric="accuracy",
        options={"classes": data.classes, **inputs},
        clusters=clusters,
        groups={"orientation": by_cluster(("upright", "turned"), train, held_out, clusters)},
        outcome=even_or_odd,
        source=data.source,
    )


def mnist_writers(rng: np.random.Generator, *, probability: float = 0.5, model: str = "small-cnn") -> Federation:
    """539 writers to train and 297 others to validate, each turned by 90 degrees with a ``probability``."""
    data = load("mnist-writers")
    assert data.users is not None
    train = take(data.train.tensors[0], data.train.tensors[1], by_key(data.users.train.numpy()))
    held_out = take(data.test.tensors[0], data.test.tensors[1], by_key(data.users.test.numpy()))
    return _turned(data, model, (train, held_out), probability, rng)


def femnist(rng: np.random.Generator, *, probability: float = 0.5, model: str = "femnist-cnn") -> Federation:
    """All writers of LEAF's files, a tenth of them held out to validate, each turned with a ``probability``."""
    data = load("femnist")
    assert data.users is not None
    x, y = (torch.cat([data.train.tensors[part], data.test.tensors[part]]) for part in (0, 1))
    shards = take(x, y, by_key(torch.cat([data.users.train, data.users.test]).numpy()))
    order = rng.permutation(len(shards))
    cut = max(1, round(_VALIDATION_SHARE * len(shards)))
    held_out = [shards[index] for index in order[:cut]]
    train = [shards[index] for index in order[cut:]]
    return _turned(data, model, (train, held_out), probability, rng)
