"""The noise really added to released gradients has the claimed standard deviation, for every policy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordina.clipping import (
    Automatic,
    FallingNorm,
    Fixed,
    Follow,
    Online,
    PerLayer,
    Quantile,
    Sector,
    Trailing,
    TypicalNorm,
    arrange,
)
from sordina.gradients.explicit import MatrixTape
from sordina.plan import Plan
from sordina.privacy import Adjacency, Budget
from sordina.private_step import PrivateStep
from sordina.sampling import FixedSize, Poisson

SIZE = 200_000
NU = 0.7
CASES = {
    "fixed": (Fixed(0.3), Poisson(4, 100), 0.3 * NU),
    "fixed replace-one": (Fixed(0.3), FixedSize(4, 100), 0.6 * NU),
    "automatic": (Automatic(), Poisson(4, 100), NU),
    "trailing": (Trailing(threshold=0.5), Poisson(4, 100), 0.5 * NU),
    "quantile": (Quantile(threshold=0.2, inflation=0.01), Poisson(4, 100), 0.2 * NU * 1.01),
    "online": (Online(threshold=0.1), Poisson(4, 100), 0.1 * NU * 1.01),
    "typical norm": (TypicalNorm(threshold=0.1), Poisson(4, 100), 0.1 * NU * 2**0.5),
    "falling norm": (FallingNorm(threshold=0.1), Poisson(4, 100), 0.1 * NU * 2**0.5),
    "online thesis": (Online.as_in_thesis(0.1), Poisson(4, 100), 0.1 * NU * 1.01),
    "sector": (Sector(threshold=0.4), FixedSize(4, 100), 0.8 * NU),
    "sector follow": (Sector(threshold=0.4, follow=Follow()), FixedSize(4, 100), 0.8 * NU * 1.01),
    "per layer": (PerLayer(Fixed(0.3)), Poisson(4, 100), 0.3 * NU * math.sqrt(2)),
}


@pytest.mark.parametrize("name", CASES)
def test_released_gradients_carry_the_claimed_noise(name):
    policy, sampler, claimed = CASES[name]
    plan = Plan(sampler, 1, Budget(1, 1e-5), NU)
    parts = arrange(policy, ["a.weight", "b.weight"])
    step = PrivateStep(plan, parts, [SIZE] * len(parts))
    for answer in step.finish(torch.zeros(1), np.random.default_rng(5)):
        noise = answer.answers[0].double()
        assert float(noise.std()) == pytest.approx(claimed, rel=0.01)
        assert abs(float(noise.mean())) < 5 * claimed / math.sqrt(SIZE)
        assert answer.noise[0] == pytest.approx(claimed, rel=1e-12)


def test_a_scale_wrong_by_three_per_cent_would_be_seen():
    noise = np.random.default_rng(5).standard_normal(SIZE) * 1.03
    assert noise.std() != pytest.approx(1.0, rel=0.01)


def test_side_queries_carry_their_own_noise():
    plan = Plan(Poisson(4, 100), 1, Budget(1, 1e-5), NU)
    policy = Online.as_in_thesis(0.1)
    step = PrivateStep(plan, arrange(policy, ["w"]), [SIZE])
    (answer,) = step.finish(torch.zeros(1), np.random.default_rng(6))
    assert float(answer.answers[1].std()) == pytest.approx(7.124 * NU, rel=0.01)


def test_the_sum_is_released_around_its_true_value():
    plan = Plan(Poisson(4, 100), 1, Budget(1, 1e-5), NU)
    step = PrivateStep(plan, arrange(Fixed(2.0), ["w"]), [SIZE])
    vectors = torch.zeros(3, SIZE)
    vectors[0, 0], vectors[1, 0], vectors[2, 0] = 1000.0, 1.0, -0.5
    step.absorb(MatrixTape(vectors))
    (answer,) = step.finish(torch.zeros(1), np.random.default_rng(7))
    assert abs(float(answer.answers[0][0]) - 2.5) < 5 * 2.0 * NU
    assert plan.adjacency is Adjacency.ADD_REMOVE


def test_many_units_are_drawn_as_by_a_coin_each():
    """Of many units the gaps are drawn, not the coins: sizes are binomial, every unit is as likely, order is kept."""
    sampler, size = Poisson(2000, 250_000), 260_000
    rng = np.random.default_rng(0)
    drawn = [sampler.draw(size, rng) for _ in range(300)]
    sizes = np.array([len(one) for one in drawn])
    expected = size * sampler.rate
    assert abs(sizes.mean() - expected) < 4 * np.sqrt(expected / 300)
    assert 0.8 < sizes.var() / expected < 1.2
    assert all((np.diff(one) > 0).all() and one[0] >= 0 and one[-1] < size for one in drawn)
    counts = np.histogram(np.concatenate(drawn), 50, (0, size))[0]
    assert abs(counts / counts.mean() - 1).max() < 5 / np.sqrt(counts.mean())
    assert len(Poisson(1e-300, size).draw(size, rng)) == 0
