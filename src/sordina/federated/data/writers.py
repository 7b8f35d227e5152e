"""Writers as clients, some of whose paper was turned: FEMNIST (000 section 2.5.1) and MNIST, which stands in for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordina.datasets import Data, load
from sordina.federated.data.federation import Federation, by_cluster
from sordina.federated.partition import Shard, by_key, rotate, take

_VALIDATION_SHARE = 0.1


def outcome(values: Tensor, groups: Tensor) -> Tensor:
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
        outcome=outcome,
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
