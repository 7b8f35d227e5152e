from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sordina.plan import Plan
from sordina.privacy import Budget
from sordina.sampling import Poisson


@pytest.fixture
def plan():
    """A plan whose noise is given, so that no accountant runs."""
    return Plan(Poisson(20, 100), steps=8, budget=Budget(8, 1e-5), noise_multiplier=1.3)


@pytest.fixture
def data():
    return _drawn(0)


@pytest.fixture
def held_out():
    return _drawn(1)


def _drawn(seed):
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


@pytest.fixture
def model(make_model):
    return make_model()


@pytest.fixture
def make_model():
    """Always the same small network."""

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))

    return make


@pytest.fixture
def rng():
    return np.random.default_rng(0)
