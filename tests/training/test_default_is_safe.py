"""What the defaults once did: collapse where labels are rare, and lose models to larger budgets."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sordina.privacy import Budget
from sordina.training import Trainer, evaluate

ROWS, WIDTH = 3000, 12


def rows(share: float) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=draw)
    score = x[:, :3].sum(1) + 0.5 * torch.randn(ROWS, generator=draw)
    return x, (score > score.quantile(1 - share)).long()


def losses(share: float, epsilon: float, model: nn.Module, epochs: float, batch_size: int = 256) -> float:
    data = rows(share)
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    Trainer(
        model, nn.functional.cross_entropy, Budget(epsilon, 1e-5), batch_size=batch_size, epochs=epochs, seed=1,
        track_epsilon=False, accountant="rdp",
    ).fit(data)  # fmt: skip
    return float(evaluate(model, nn.functional.cross_entropy, data)["loss"])


def test_rare_labels_do_not_collapse():
    constant = -(0.05 * math.log(0.05) + 0.95 * math.log(0.95))
    assert losses(0.05, 2.0, nn.Linear(WIDTH, 2), epochs=5) < 0.7 * constant


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_larger_budget_does_no_harm(epochs):
    network = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    found = [losses(0.5, epsilon, network, epochs) for epsilon in (1.0, 10.0, 200.0)]
    assert found[2] <= found[1] + 0.02 <= found[0] + 0.04
