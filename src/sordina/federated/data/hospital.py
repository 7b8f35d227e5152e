"""Hospitals as clients: 2947 of them, 2062 to train and 885 to validate (000 section 2.5.1)."""

from __future__ import annotations

import numpy as np
import torch

from sordina.datasets import hospital as charges
from sordina.federated.data.federation import Federation

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
