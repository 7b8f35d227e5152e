"""What a record adds to a clipped sum is the same in company and alone, where gradients are computed in another way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sordina.gradients import Engine
from sordina.gradients.norms import FADING, TOO_LARGE
from sordina.queries import SLACK, VectorQuery


class Places(nn.Module):
    """A linear map at many places; the second argument is its output gradient."""

    def __init__(self, width=64):
        super().__init__()
        self.map = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.map(x)


def answers(model, x, y, threshold=1.0):
    """Norms, and what the first record adds."""
    with Engine(model) as engine:
        tape = engine.record((model(x) * y).flatten(1).sum(1))
        norms = tape.scalars().norms
        own = (threshold / norms).clamp(max=1)
        own[1:] = 0
        return norms, tape.contract([VectorQuery(own)])[0]


def cancelling(seed, rows=3, places=20, width=64):
    """Records whose places cancel to a part of 1 to 1/1000: their norms are told up to `SLACK` too large."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(rows, places, width, generator=generator) for _ in range(2))
    left = 10 ** (-3 * torch.rand(rows, 1, 1, generator=generator))
    x[:, 1::2], y[:, 1::2] = x[:, 0::2], -y[:, 0::2] * (1 + left)
    return 100 * x, y


def test_a_record_adds_the_same_alone_although_norms_are_upper_bounds():
    loosest = 0.0
    for seed in range(40):
        model, (x, y) = Places(), cancelling(seed)
        norms, added = answers(model, x, y)
        norm, alone = answers(model, x[:1], y[:1])
        truth = torch.einsum("tr,tc->rc", y[0].double(), x[0].double()).norm()
        loosest = max(loosest, float(norms[0] / truth) - 1)
        assert float((added - alone).norm()) < 1e-5
        assert float(norm[0]) == pytest.approx(float(norms[0]), rel=1e-6)
    assert SLACK / 4 < loosest <= SLACK + 1e-5  # so the norms were loose, and the test says something


def test_rows_of_one_user_add_the_same_alone():
    model = Places()

    def added(rows):
        with Engine(model) as engine:
            tape = engine.record((model(x[:rows]) * y[:rows]).flatten(1).sum(1), rows_per_unit=2)
            own = 1 / tape.scalars().norms
            own[1:] = 0
            return tape.contract([VectorQuery(own)])[0]

    for seed in range(40):
        x, y = cancelling(seed, rows=6)
        assert float((added(6) - added(2)).norm()) < 1e-5


class ClassToken(nn.Module):
    """A token that is copied for every sample: in a batch of one a copy cannot be told from the parameter."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.map, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        tokens = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(torch.tanh(self.map(tokens)).mean(1))


def test_what_a_batch_of_one_misleads_is_taken_from_autograd():
    model = ClassToken()
    x = torch.randn(4, 30, 8)
    with Engine(model) as engine:
        for rows in (4, 1):
            tape = engine.record(model(x[:rows]).square().sum(1))
            found = tape.contract([VectorQuery(torch.eye(rows)[0])])[0]
            truth = torch.autograd.grad(model(x[:1]).square().sum(), list(model.parameters()))
            assert torch.allclose(found, torch.cat([each.flatten() for each in truth]), rtol=1e-4, atol=1e-6)


class Saturated(nn.Module):
    """Inputs of any size, and small gradients: where tanh is saturated there are none at all."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize("size", [1e20, 1e29, 1e31, 1e35, 3e38])
def test_a_saturated_record_counts_in_company_as_it_does_alone(size):
    """Random model 6045000313: a factor of 1e35 made zero times infinity of it, but only in company."""
    model = Saturated()
    x, y = torch.randn(3, 4), torch.ones(3, 1)
    x[0] *= size / x[0].abs().max()
    norms, added = answers(model, x, y)
    norm, alone = answers(model, x[:1], y[:1])
    assert bool(norms.isfinite().all())
    assert torch.allclose(norms[:1], norm)
    assert float((added - alone).norm()) < 1e-5
    assert float(alone.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("middle", "threshold"), [(FADING, 1.0), (FADING, 1e-12), (3e29, 1.0), (TOO_LARGE, 1e-12), (1e38, 1.0)]
)
def test_no_rounding_decides_who_counts(middle, threshold):
    """Around every limit a norm that is a little larger adds a little less, never nothing in place of the bound."""
    model, y = nn.Linear(1, 1, bias=False), torch.ones(2, 1)
    added = []
    for shift in torch.linspace(-1e-5, 1e-5, 41).tolist():
        x = torch.tensor([[middle * (1 + shift)], [1.0]])
        added.append(float(answers(model, x, y, threshold)[1]) / threshold)
        added.append(float(answers(model, x[:1], y[:1], threshold)[1]) / threshold)
    assert max(added) - min(added) < 1e-4
    assert max(added) <= 1 + 1e-5


def test_parameters_in_sixteen_bits_are_not_rounded_for_who_is_alone():
    """Autograd rounds a gradient to the parameter's kind, rules do not: 1.0024 C with one of two equal records gone."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    x = torch.tensor([[1.0078125], [1.0078125]], dtype=torch.bfloat16)
    y = torch.tensor([[1.0234375], [1.0234375]], dtype=torch.bfloat16)
    norms, added = answers(model, x, y, 1e-3)
    norm, alone = answers(model, x[:1], y[:1], 1e-3)
    assert torch.equal(norms[:1], norm)
    assert torch.equal(added, alone)


@pytest.mark.parametrize(
    "make", [lambda: nn.Conv2d(8, 8, 3, padding=1), lambda: nn.Conv2d(8, 8, 1), lambda: nn.Linear(3, 8)]
)
def test_a_tiny_factor_of_a_huge_one_keeps_its_digits(make):
    """1e38 times 1e-15 is an ordinary number; 1e-15 times its weight of 1e-24 is not (1.001 C)."""
    model = make()
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = 1e37 * torch.randn(2, 8, 3, 3, generator=generator).clamp(-3, 3)
        y = 1e-15 * torch.randn(model(x).shape, generator=generator)
        for threshold in (1.0, 1e-4):
            _, added = answers(model, x, y, threshold)
            assert float(added.double().norm()) <= threshold * (1 + 1e-5)
