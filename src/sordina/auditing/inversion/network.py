"""The network that DLG is shown on: twice differentiable, so every activation is a sigmoid (000 section 2.5.1)."""

from __future__ import annotations

import torch
from torch import nn

from sordina.errors import InvalidInput


def sigmoid_network(
    side: int = 28, classes: int = 10, channels: int = 1, *, width: int = 12, seed: int = 0
) -> nn.Sequential:
    """The convolutional network of Zhu et al. (2019), weights uniform in [-1/2, 1/2], double precision."""
    if side < 4:
        raise InvalidInput(f"images need at least 4 x 4 pixels, got {side}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        half = -(-side // 2)
        quarter = -(-half // 2)
        model = nn.Sequential(
            nn.Conv2d(channels, width, 5, padding=2, stride=2), nn.Sigmoid(),
            nn.Conv2d(width, width, 5, padding=2, stride=2), nn.Sigmoid(),
            nn.Conv2d(width, width, 5, padding=2, stride=1), nn.Sigmoid(),
            nn.Flatten(), nn.Linear(width * quarter * quarter, classes),
        )  # fmt: skip
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model.double()
