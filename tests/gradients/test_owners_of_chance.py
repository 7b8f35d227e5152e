"""Random numbers have owners too: those of each sample are no reason to run it alone, those of all together are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sordina.gradients import Engine


def centred(x):
    noise = torch.randn_like(x)
    return x + noise - noise.mean(0)


def runs_alone(forward):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(6, 8), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(forward(self.inner(x)))

    model = Model()
    with Engine(model) as engine:
        model(torch.randn(9, 6))
        return engine._calls._last.alone


def test_chance_of_each_sample_is_no_reason_to_run_alone():
    """Distributions that check their arguments, noise, stochastic depth; that of all together is one."""
    assert not runs_alone(lambda h: torch.distributions.Normal(h[:, :4], F.softplus(h[:, 4:]) + 1e-3).rsample())
    assert not runs_alone(lambda h: h[:, :4] + torch.rand(len(h), 4) * torch.empty(len(h), 1).bernoulli_(0.5))
    assert runs_alone(lambda h: h[:, :4] + centred(h[:, 4:]))
    assert runs_alone(lambda h: centred(h[:, :4].detach() * 0) + h[:, 4:])
