from __future__ import annotations

import itertools
import math

import pytest
import torch

from sordina.clipping import Decay
from sordina.errors import InvalidInput
from sordina.training import AdamWOSM, AutomaticRate, LearningRateRule
from sordina.training.rate import Start

UP, DOWN = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])


def test_the_thesis_rule_multiplies_by_a_constant_factor():
    rule = LearningRateRule(Decay(2.5e-3))
    state = rule.init(Start(600, 0.0, 50, 1.0))
    for gradient in (UP, UP, UP, DOWN):
        state = rule.adapt(state, gradient)
    assert state.factor == pytest.approx(math.exp(2.5e-3 * (1 + 1 - 1)))
    assert rule.learning_rate(state, 0.5, noise=123.0) == pytest.approx(0.5 * state.factor)


def test_the_automatic_rate_is_in_units_of_the_noise():
    rule = AutomaticRate(travel=4.0)
    state = rule.init(Start(steps=100, noise=1.0, weights=50, size=0.05))
    assert rule.learning_rate(state, base=0.1, noise=0.01) == pytest.approx(4 * 0.05 / 10 / 0.01)
    assert rule.learning_rate(state, base=0.1, noise=0.02) == pytest.approx(4 * 0.05 / 10 / 0.02)
    assert rule.learning_rate(state, base=0.1, noise=0.0) == 0.1


def test_noise_alone_moves_a_weight_as_far_as_stated_and_the_rate_falls_in_the_second_half():
    rule, noise, steps = AutomaticRate(travel=2.0), 0.3, 400
    state, rates = rule.init(Start(steps, 1.0, 10, 0.1)), []
    for _ in range(steps):
        state = rule.adapt(state, torch.zeros(1))
        rates.append(rule.learning_rate(state, 0.1, noise))
    whole = rates[0] * noise * math.sqrt(steps)
    assert whole == pytest.approx(2.0 * 0.1)
    assert rates[: steps // 2] == [rates[0]] * (steps // 2)
    assert rates[-1] == pytest.approx(rates[0] * 2 / steps)
    assert all(later < sooner for sooner, later in itertools.pairwise(rates[steps // 2 :]))


def test_no_step_of_agreeing_gradients_is_longer_than_the_weights():
    """C = 2, nu = 3, batch 60: a mean gradient of norm C moves the weights by rho C."""
    rule, C = AutomaticRate(travel=100.0), 2.0
    state = rule.init(Start(steps=4, noise=3 / 60, weights=25, size=0.2))
    assert rule.learning_rate(state, 0.1, noise=C * 3 / 60) * C == pytest.approx(0.2 * math.sqrt(25))


def test_weights_that_start_at_zero_can_move():
    rule = AutomaticRate()
    assert rule.learning_rate(rule.init(Start(100, 0.01, 10, 0.0)), 0.1, noise=1.0) > 0


@pytest.mark.parametrize("start", [1e-4, 1e2])
def test_the_rule_finds_the_rate_of_a_quadratic_from_far_away(start):
    """f(x) = |x|^2 / 2 with noise: the best constant rate lies near 1; the rule must come within a factor of 3."""
    rule, draw = LearningRateRule(), torch.Generator().manual_seed(0)
    state, x = rule.init(Start(600, 0.0, 50, 1.0)), torch.full((50,), 10.0)
    for _ in range(600):
        gradient = x + 0.05 * torch.randn(50, generator=draw)
        state = rule.adapt(state, gradient)
        x = x - start * state.factor * gradient
        x = x.clamp(-1e3, 1e3)
    assert start * state.factor < 3
    assert float(x.norm()) < 2.0


def test_adam_wosm_is_its_formula():
    weight = torch.zeros(3, requires_grad=True)
    optimizer = AdamWOSM([weight], lr=1e-3)
    optimizer.param_groups[0]["noise"] = 0.5
    moment, expected = torch.zeros(3), torch.zeros(3)
    for step in range(1, 5):
        gradient = torch.tensor([1.0, -2.0, float(step)])
        weight.grad = gradient.clone()
        optimizer.step()
        moment = 0.9 * moment + 0.1 * gradient
        expected = expected - 1e-3 * moment / (1 - 0.9**step) / (0.5 + 1e-8)
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize(
    "wrong", [lambda: Decay(0), lambda: Decay(1, 0), lambda: AutomaticRate(travel=0), lambda: Decay(math.nan)]
)
def test_bad_rates_are_refused(wrong):
    with pytest.raises(InvalidInput):
        wrong()
