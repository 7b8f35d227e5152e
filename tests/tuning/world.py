"""What the tests of this folder share, a tiny world: two classes in the plane, a small network, a few steps."""

from __future__ import annotations

import torch
from torch import nn

import sordina as sd

ROWS, HELD_OUT, BATCH, STEPS = 400, 100, 40, 6


def world(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (rows,), generator=rng)
    return torch.randn(rows, 4, generator=rng) + 2.0 * y[:, None], y


def mlp(seed: int) -> sd.Trainer:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return sd.Trainer(model, nn.functional.cross_entropy, sd.Budget(1, 1e-5), batch_size=BATCH, steps=STEPS)


def conv(seed: int) -> sd.Trainer:
    """The same, but not a network that can be stacked."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 2))
    return sd.Trainer(model, nn.functional.cross_entropy, sd.Budget(1, 1e-5), batch_size=BATCH, steps=STEPS)
