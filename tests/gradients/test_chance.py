"""Generators that a model holds itself are held by tests, put back afterwards, and hide no mixing."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sordina.gradients import Engine
from sordina.gradients._chance import COINS, Generators, WithoutChance
from sordina.gradients.structure import Mixing

KINDS = {
    "python": random.Random,
    "numpy": np.random.default_rng,
    "old numpy": np.random.RandomState,
    "philox": lambda seed: np.random.Generator(np.random.Philox(seed)),
    "torch": lambda seed: torch.Generator().manual_seed(seed),
}
NAMED = np.random.default_rng()


def _drawn(rng, shape=()):
    """Numbers between zero and one of any of `KINDS`."""
    if isinstance(rng, torch.Generator):
        return torch.rand(shape, generator=rng)
    if isinstance(rng, random.Random):
        return torch.tensor([rng.random() for _ in range(int(np.prod(shape)))]).view(shape)
    return torch.as_tensor(rng.random_sample(shape) if isinstance(rng, np.random.RandomState) else rng.random(shape))


class Inner(nn.Module):
    """What is done to the values by random numbers."""

    def __init__(self, rng, what):
        super().__init__()
        self.hidden, self.what, self.calls = SimpleNamespace(rng=rng), what, 0

    def forward(self, x):
        rng, what = self.hidden.rng, self.what
        self.calls += 1
        if what == "named":
            return x * torch.from_numpy(NAMED.random(x.shape) > 0.1).to(x)
        if what == "dropout":
            return x * (_drawn(rng, tuple(x.shape)) > 0.1).to(x)
        if what == "layer drop":
            return x if float(_drawn(rng)) < 0.1 else x + x.tanh()
        if what == "order":
            return x / 2 + x[_drawn(rng, (len(x),)).argsort(stable=True)] / 2
        if what == "seeded":
            rng.seed(self.calls)
            return x * (_drawn(rng, tuple(x.shape)) > 0.1).to(x)
        return x - x.mean(0) if float(_drawn(rng)) < 0.1 else x


def _model(kind, what, seed=5):
    return nn.Sequential(nn.Linear(6, 8), Inner(KINDS[kind](seed), what), nn.Linear(8, 3)).train()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["dropout", "layer drop"])
def test_a_model_with_a_generator_of_its_own_is_no_mixing(kind, what):
    """It had been refused as such, always; and its numbers go on as if nothing had been tested."""
    model, x = _model(kind, what), torch.randn(8, 6)
    with Engine(model) as engine:
        for _ in range(3):
            engine.demand_tests()
            norms = engine.record(model(x).square().sum(1)).scalars().norms
            assert bool(norms.isfinite().all())
    if what == "layer drop":
        plain = _model(kind, what)
        for _ in range(3):
            plain(x)
        assert Generators(model).states()[0][1:] == Generators(plain).states()[0][1:]
        assert Generators(model).states()[1][2:] == Generators(plain).states()[1][2:]


def test_a_generator_that_methods_name_is_held():
    model = _model("numpy", "named")
    assert id(NAMED.bit_generator) in Generators(model).all
    with Engine(model) as engine:
        engine.record(model(torch.randn(8, 6)).square().sum(1))


def _called(engine, model, x):
    for _ in range(20):
        engine.demand_tests()
        model(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["coin", "order"])
def test_no_generator_of_its_own_hides_mixing(kind, what):
    """Constants in the place of numbers from torch's had: every order was that of the samples."""
    model, x = _model(kind, what), torch.randn(16, 6)
    with Engine(model) as engine, pytest.raises(Mixing):
        _called(engine, model, x)


def test_numbers_that_a_model_seeds_itself_are_not_chance():
    """By the number of a call: one sample at a time, each would get other numbers without one before it."""
    model = _model("python", "seeded")
    with Engine(model), pytest.raises(Mixing, match="seeds random numbers"):
        model(torch.randn(8, 6))


class SeedsItself(nn.Module):
    """Random numbers by seeds that everybody may know."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.number, self.own = kind, 0, torch.Generator().manual_seed(3)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        self.number += 1
        h, new = self.first(x), torch.Generator().manual_seed(self.number)
        if self.kind == "everybody's":
            torch.manual_seed(42)
            h = nn.functional.dropout(h, 0.5)
        elif self.kind == "its own":
            h = h + torch.randn(h.shape, generator=self.own.manual_seed(3), dtype=h.dtype)
        elif self.kind == "a new one":
            h = h * (torch.rand(h.shape, generator=new) < 0.5)
        else:
            h = h @ torch.randn(8, 8, generator=new, dtype=h.dtype)
        return self.last(h)


@pytest.mark.parametrize("kind", ["everybody's", "its own", "a new one"])
def test_numbers_by_a_seed_of_the_forward_pass_are_no_chance(kind):
    """Without a sample, others get other ones that everybody knows: 5 to 9 times the bound."""
    model, x = SeedsItself(kind), torch.randn(8, 6)
    torch.manual_seed(42)
    with Engine(model), pytest.raises(Mixing, match="seeds random numbers"):
        model(x)


def test_numbers_by_a_seed_that_are_the_same_for_all_are_no_mixing(caplog):
    model, x = SeedsItself("a projection"), torch.randn(8, 6)
    with Engine(model) as engine:
        for _ in range(5):
            engine.demand_tests()
            engine.record(model(x).square().sum(1))
    assert "one sample at a time" not in caplog.text


def test_coins_fall_as_they_seldom_do():
    holder = nn.Module()
    holder.all = [KINDS[kind](0) for kind in ("python", "numpy", "old numpy")]
    generators = Generators(holder)
    for case in COINS:
        generators.seed(case, case)
        low = [float(_drawn(rng)) for rng in holder.all]
        assert max(low) < 0.03 if case == 1 else min(low) > 0.97


def test_a_value_that_is_no_number_is_no_chance():
    """It differed from itself: one such record could decide that all samples run one at a time."""
    snapshot = Generators().kept()
    with WithoutChance() as chance:
        assert not chance.left(lambda seed: chance.begin(1, seed) or [torch.tensor([float("nan"), 1.0])])
        assert chance.left(lambda seed: chance.begin(1, seed) or [torch.tensor([float("nan"), float(seed)])])
    for put_back in snapshot:
        put_back()
