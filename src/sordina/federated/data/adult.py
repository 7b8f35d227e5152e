"""Adult among 50 clients, for the federated support vector machine of 003 section VI-D."""

from __future__ import annotations

import numpy as np
import torch

from sordina.datasets import load
from sordina.errors import InvalidInput
from sordina.federated.data.federation import Federation, Groups
from sordina.federated.partition import by_label, by_quantity, iid, take


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
