"""Divide rows among clients, make clients differ, and hold a federation's data together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordina.datasets import Data, load
from sordina.datasets import hospital as charges
from sordina.errors import InvalidInput
from sordina.privacy import check_positive

# Divide rows among clients, and make clients differ.
#
# `iid`, `by_quantity`, `by_label` and `by_key` return one array of row numbers per client; every row is used exactly
# once, and no client is empty unless ``smallest=0`` asks for it. `rotate` and `shift_concept` change clients that
# exist.

Rows: TypeAlias = npt.NDArray[np.int64]
Shard: TypeAlias = tuple[Tensor, Tensor]
"""``(x, y)`` of one client."""


def iid(count: int, clients: int, rng: np.random.Generator) -> list[Rows]:
    """Shuffle ``count`` rows and deal them out evenly.

    >>> [len(rows) for rows in iid(10, 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _check(count, clients, 1)
    return [np.sort(rows) for rows in np.array_split(rng.permutation(count), clients)]


def by_quantity(
    count: int, clients: int, rng: np.random.Generator, *, alpha: float = 1.0, smallest: int = 1
) -> list[Rows]:
    """Shuffled rows in unequal shares ~ Dirichlet(alpha): quantity skew, the stronger the smaller ``alpha``.

    >>> sum(len(rows) for rows in by_quantity(1000, 7, np.random.default_rng(0), alpha=0.3))
    1000
    """
    _check(count, clients, smallest)
    shares = rng.dirichlet(np.full(clients, check_positive("alpha", alpha)))
    free = count - clients * smallest
    cuts = _cuts(shares, free) + smallest * np.arange(1, clients)
    return [np.sort(rows) for rows in np.split(rng.permutation(count), cuts)]


def by_label(
    labels: npt.ArrayLike, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, smallest: int = 1
) -> list[Rows]:
    """Label skew (Hsu et al. 2019): the rows of each class go to the clients in shares ~ Dirichlet(alpha).

    A client left with fewer than ``smallest`` rows is then given random rows of whoever has the most.
    """
    kinds = np.asarray(labels)
    _check(len(kinds), clients, smallest)
    concentration = np.full(clients, check_positive("alpha", alpha))
    held: list[list[Rows]] = [[] for _ in range(clients)]
    for kind in np.unique(kinds):
        rows = rng.permutation(np.flatnonzero(kinds == kind))
        for client, part in enumerate(np.split(rows, _cuts(rng.dirichlet(concentration), len(rows)))):
            held[client].append(part)
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in held]
    return [np.sort(rows) for rows in _top_up(parts, smallest)]


def by_key(keys: npt.ArrayLike) -> list[Rows]:
    """One client per distinct key (writer, hospital), in the order of the keys.

    >>> [rows.tolist() for rows in by_key([7, 3, 7, 7])]
    [[1], [0, 2, 3]]
    """
    values = np.asarray(keys)
    _, counts = np.unique(values, return_counts=True)
    return list(np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1]))


def rotate(
    shards: Sequence[Shard], rng: np.random.Generator, *, probability: float = 0.5, quarter_turns: int = 1
) -> tuple[list[Shard], list[int]]:
    """Turn all images of a client counter-clockwise with a ``probability``; also says whom it turned (1) or not (0).

    000 section 2.5.1: ``rot_c ~ Bernoulli(1/2)``, 90 degrees.
    """
    if not 0 <= probability <= 1:
        raise InvalidInput(f"the probability of a rotation must lie in [0, 1], got {probability}.")
    turned = [int(draw < probability) for draw in rng.random(len(shards))]
    changed = [
        (torch.rot90(x, quarter_turns, dims=(-2, -1)) if turn else x, y)
        for (x, y), turn in zip(shards, turned, strict=True)
    ]
    return changed, turned


def shift_concept(
    shards: Sequence[Shard], rng: np.random.Generator, *, classes: int, clusters: int = 2
) -> tuple[list[Shard], list[int]]:
    """Give every cluster of clients its own meaning of the labels; also says which cluster each client is in.

    Clients are dealt out evenly and at random. Cluster 0 keeps its labels; each other cluster permutes them.
    """
    _check(len(shards), clusters, 1)
    meanings = [torch.arange(classes), *(torch.from_numpy(rng.permutation(classes)) for _ in range(clusters - 1))]
    cluster = [int(index) for index in rng.permutation(np.arange(len(shards)) % clusters)]
    return [(x, meanings[index][y]) for (x, y), index in zip(shards, cluster, strict=True)], cluster


def take(x: Tensor, y: Tensor, parts: Sequence[Rows]) -> list[Shard]:
    """The rows of each client as tensors."""
    return [(x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]) for rows in parts]


def _check(count: int, clients: int, smallest: int) -> None:
    if clients < 1 or smallest < 0:
        raise InvalidInput(f"at least one client and no negative sizes, got {clients} clients of {smallest} or more.")
    if clients * smallest > count:
        raise InvalidInput(f"{count} rows cannot give {clients} clients {smallest} or more each.")


def _cuts(shares: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    return np.rint(np.cumsum(shares)[:-1] * count).astype(np.int64)


def _top_up(parts: list[Rows], smallest: int) -> list[Rows]:
    sizes = np.array([len(rows) for rows in parts])
    while sizes.min() < smallest:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        parts[poor], parts[rich] = np.append(parts[poor], parts[rich][-1]), parts[rich][:-1]
        sizes[poor] += 1
        sizes[rich] -= 1
    return parts


# Clients with their data, and everything a run needs to know about them.


@dataclass(frozen=True)
class Groups:
    """A protected attribute: for each client, one code per row."""

    names: tuple[str, ...]
    train: list[Tensor]
    validation: list[Tensor]


@dataclass(frozen=True)
class Federation:
    """Training and held-out clients, as plain ``(x, y)`` tensors."""

    name: str
    train: list[Shard]
    validation: list[Shard]
    model: str
    """Name in `sordina.models`."""
    loss: str
    """Name in `sordina.models.losses`."""
    metric: str
    """Name in `sordina.models.metrics`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model."""
    root: bool = False
    """Whether a client minimises the root of its mean loss (RMSE) rather than the mean."""
    clusters: tuple[list[int], list[int]] | None = None
    """Which distribution each client (training, validation) comes from: known in a simulation only."""
    optima: tuple[Tensor, ...] = ()
    """The parameters the data were generated with, one flat vector per cluster."""
    groups: Mapping[str, Groups] = field(default_factory=dict)
    outcome: Callable[[Tensor, Tensor], Tensor] | None = None
    """For fairness: ``(values or predicted classes, group codes) -> 0/1``; none if the class is the outcome."""
    source: str = ""


def by_cluster(
    names: tuple[str, ...], train: list[Shard], validation: list[Shard], clusters: tuple[list[int], list[int]]
) -> Groups:
    """Groups in which all rows of a client are alike: a client's cluster is its group."""

    def codes(shards: list[Shard], cluster: list[int]) -> list[Tensor]:
        return [y.new_full((len(y),), index).long() for (_, y), index in zip(shards, cluster, strict=True)]

    return Groups(names, codes(train, clusters[0]), codes(validation, clusters[1]))


# Federations by name: Adult, hospitals, writers, and clients drawn from synthetic laws.

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
