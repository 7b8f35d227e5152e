"""How far a clipped sum moves without a record: what tests of things beside a model's results share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sordina.gradients import Engine
from sordina.queries import VectorQuery

ROWS = 12
BOUND = 0.1
Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]


def usual_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def change(model: nn.Module, first: Tensor, x: Tensor, losses: Losses = usual_losses) -> float:
    """How far the clipped sum moves when the last record is removed, in units of the bound, after a first batch."""
    y, sums = torch.arange(len(x)) % 2, list[Tensor]()
    with Engine(model) as engine:
        engine.record(losses(model, first, y)).scalars()
        engine._calls.removal.left = engine._calls.study.left = 10**9  # no random test is due
        for count in (len(x), len(x) - 1):
            tape = engine.record(losses(model, x[:count], y[:count]))
            sums.append(tape.contract([VectorQuery((BOUND / tape.scalars().norms.clamp_min(1e-30)).clamp(max=1))])[0])
    return float((sums[0] - sums[1]).norm()) / BOUND


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def large_last() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
    last = x.clone()
    last[:8, 2], last[-1, 2] = -1, 1e4
    return x, last
