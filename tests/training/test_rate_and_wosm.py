from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sordina.clipping import Decay
from sordina.clipping.policy import ReleasedNorm
from sordina.errors import InvalidInput
from sordina.training import AdamWOSM, AutomaticRate, DistanceRate, LearningRateRule, SteadyRate
from sordina.training.learning_rates import Start, turning_length

UP, DOWN = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])


def test_the_thesis_rule_multiplies_by_a_constant_factor():
    rule = LearningRateRule(Decay(2.5e-3))
    state = rule.init(Start(600, 0.0, 50, 1.0))
    for gradient in (UP, UP, UP, DOWN):
        state = rule.adapt(state, gradient, noise=0.05)
    assert state.factor == pytest.approx(math.exp(2.5e-3 * (1 + 1 - 1)))
    assert rule.learning_rate(state, 0.5) == pytest.approx(0.5 * state.factor)


def automatic(steps: int, weights: int = 400, size: float = 0.1, travel: float = 2.0):
    rule = AutomaticRate(travel)
    return rule, rule.init(Start(steps, 0.1, weights, size))


def walk(rule, state, gradients, noise):
    """The rates of a run over ``gradients``, and how far plain SGD gets with them."""
    rates, place = [], torch.zeros_like(gradients[0])
    for gradient in gradients:
        state = rule.adapt(state, gradient, noise)
        rates.append(rule.learning_rate(state, base=0.1))
        place = place - rates[-1] * gradient
    return rates, place, state


def test_the_distance_rate_is_its_formula():
    """DoG, eq. 1: the largest distance so far over the root of the sum of squares, until the middle of the run."""
    rule, draw, noise = DistanceRate(), torch.Generator().manual_seed(0), 0.2
    gradients = torch.randn(10, 30, generator=draw, dtype=torch.float64)
    state = rule.init(Start(steps=20, learning_rate=0.5, weights=30, size=1.0))
    place = torch.zeros(30, dtype=torch.float64)
    farthest = 0.5 * float(gradients[0].norm())
    for t in range(10):
        state = rule.adapt(state, gradients[t], noise)
        expected = farthest / float(gradients[: t + 1].norm())
        assert rule.learning_rate(state, 0.5) == pytest.approx(expected)
        place = place - expected * gradients[t]
        farthest = max(farthest, float(place.norm()))


def test_the_given_rate_is_the_first_one():
    rule = DistanceRate()
    state = rule.adapt(rule.init(Start(20, 0.37, 2, 1.0)), UP, noise=0.1)
    assert rule.learning_rate(state, base=9.0) == pytest.approx(0.37)


def test_noise_alone_moves_a_weight_as_far_as_stated():
    """A walk of pure noise at half the run: the rate settles at its first over sqrt(2), and neither grows nor falls.

    The squared distance wanders by ``sum 4 / (t d)``, relatively: a standard deviation of 2.3 % for d = 40 000.
    """
    steps, noise, draw = 400, 0.3, torch.Generator().manual_seed(1)
    rule, state = automatic(steps, weights=40_000)
    gradients = noise * torch.randn(steps // 2, 40_000, generator=draw)
    rates, place, _ = walk(rule, state, gradients, noise)
    settled = 2.0 * 0.1 / math.sqrt(steps) / noise / math.sqrt(2)
    assert rates[10:] == pytest.approx([settled] * (len(rates) - 10), rel=0.05)
    assert float(place.square().mean().sqrt()) == pytest.approx(2.0 * 0.1 * math.sqrt(1 / 2) / math.sqrt(2), rel=0.05)


def test_steps_have_the_same_length_whatever_the_threshold():
    draw = torch.Generator().manual_seed(2)
    gradients = torch.randn(30, 400, generator=draw)
    for scale in (1e-6, 1e3):
        rule, state = automatic(60)
        rates, _, _ = walk(rule, state, gradients, noise=1.0)
        scaled, _, _ = walk(rule, state, gradients * scale, noise=scale)
        assert [rate * scale for rate in scaled] == pytest.approx(rates, rel=1e-4)


def test_agreement_raises_the_rate_and_disagreement_lowers_it():
    noise, draw = 0.1, torch.Generator().manual_seed(3)
    signal = torch.ones(400) * noise
    rule, state = automatic(1000)
    agreeing = [signal + noise * torch.randn(400, generator=draw) for _ in range(200)]
    turning = [(-1) ** t * 3 * signal + noise * torch.randn(400, generator=draw) for t in range(200)]
    up, _, _ = walk(rule, state, agreeing, noise)
    down, _, _ = walk(rule, state, turning, noise)
    assert up[-1] > 10 * up[0]
    assert down[-1] < down[0] / 2


def test_the_rate_falls_to_zero_in_the_second_half():
    rule, state = automatic(40)
    draw = torch.Generator().manual_seed(4)
    rates, _, state = walk(rule, state, torch.randn(40, 400, generator=draw), noise=1.0)
    assert rates[-1] < rates[19] / 15
    assert state.distance < math.inf


def test_a_first_step_of_agreeing_gradients_does_not_leave_the_weights_behind():
    """However much larger than the noise the first gradient is, the first step is a tenth of the weights' length."""
    rule, state = automatic(100)
    state = rule.adapt(state, torch.full((400,), 1e6), noise=0.01)
    assert rule.learning_rate(state, 0.1) * 1e6 * 20 == pytest.approx(0.1 * 0.1 * 20, rel=1e-4)


def test_without_noise_the_rate_given_stays():
    rule, state = automatic(100)
    assert rule.learning_rate(rule.adapt(state, UP, noise=0.0), base=0.1) == 0.1


def test_weights_that_start_at_zero_can_move():
    rule, state = automatic(100, size=0.0)
    assert rule.learning_rate(rule.adapt(state, torch.ones(400), noise=1.0), 0.1) > 0


@pytest.mark.parametrize("noise", [1e-6, 0.3, 1e3])
def test_steady_steps_are_as_long_as_stated_whatever_the_noise(noise):
    """A gradient of one standard deviation in every step: half the reach in the first half, a quarter in the second.

    The falling half adds ``sum_{t=n/2}^{n-1} 2 (1 - t/n) / n``, which is a quarter and ``1 / (2 n)``.
    """
    rule, gradients = SteadyRate(reach=3.0), [torch.full((5,), noise)] * 200
    state = rule.init(Start(200, 0.1, 5, 1.0))
    rates, place, _ = walk(rule, state, gradients, noise)
    assert rates[:100] == pytest.approx([3.0 / 200 / noise] * 100)
    assert place.tolist() == pytest.approx([-3.0 * (0.75 + 1 / 400)] * 5, rel=1e-4)


def test_a_steady_rate_follows_a_threshold_that_moves():
    """The noise on the mean is proportional to the threshold: half of it, twice the rate."""
    rule = SteadyRate()
    state = rule.adapt(rule.init(Start(10, 0.1, 5, 1.0)), UP, noise=0.2)
    first = rule.learning_rate(state, 0.1)
    assert rule.learning_rate(rule.adapt(state, UP, noise=0.1), 0.1) == pytest.approx(2 * first)


def test_without_noise_the_rate_given_stays_steady_or_not():
    rule = SteadyRate()
    assert rule.learning_rate(rule.adapt(rule.init(Start(10, 0.1, 2, 1.0)), UP, noise=0.0), base=0.1) == 0.1


@pytest.mark.parametrize("start", [1e-4, 1.0])
def test_the_distance_rate_finds_its_way_on_a_quadratic(start):
    """f(x) = |x|^2 / 2 from 10 in each of 50 directions; a constant rate of 1e-4 would stay at 9.4 in 600 steps."""
    rule, draw = DistanceRate(), torch.Generator().manual_seed(0)
    state, x = rule.init(Start(600, start, 50, 1.0)), torch.full((50,), 10.0)
    for _ in range(600):
        gradient = x + 0.05 * torch.randn(50, generator=draw)
        state = rule.adapt(state, gradient, noise=0.05)
        x = x - rule.learning_rate(state, start) * gradient
    assert float(x.norm()) < 2.0


@pytest.mark.parametrize("start", [1e-4, 1e2])
def test_the_rule_finds_the_rate_of_a_quadratic_from_far_away(start):
    """f(x) = |x|^2 / 2 with noise: the best constant rate lies near 1; the rule must come within a factor of 3."""
    rule, draw = LearningRateRule(), torch.Generator().manual_seed(0)
    state, x = rule.init(Start(600, 0.0, 50, 1.0)), torch.full((50,), 10.0)
    for _ in range(600):
        gradient = x + 0.05 * torch.randn(50, generator=draw)
        state = rule.adapt(state, gradient, noise=0.05)
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
    "wrong",
    [
        lambda: Decay(0),
        lambda: Decay(1, 0),
        lambda: Decay(1, 2, power=0),
        lambda: AutomaticRate(travel=0),
        lambda: SteadyRate(reach=0),
        lambda: Decay(math.nan),
    ],
)
def test_bad_rates_are_refused(wrong):
    with pytest.raises(InvalidInput):
        wrong()


def first_rate(
    noise: float,
    norm: float = 2.0,
    steps: int = 100,
    matrices: int = 2,
    found: bool = True,
    size: int = 400,
    weight=1.0,
):
    rule = AutomaticRate()
    gradient = torch.full((size,), norm / size**0.5)
    state = rule.adapt(rule.init(Start(steps, 0.1, size, weight, matrices)), gradient, noise, ReleasedNorm(norm, found))
    return rule.learning_rate(state, 0.1) / state.trust


def test_with_a_typical_norm_the_first_step_is_bounded_however_little_noise_there_is():
    """Of agreeing gradients one step moves an output by `reach`; the noise of a run moves it by `walk`."""
    for noise in (1e-3, 1e-9):
        assert first_rate(noise) * 2.0**2 == pytest.approx(AutomaticRate().reach, rel=1e-3)
    assert first_rate(0.5) * 2.0 * 0.5 * 10 == pytest.approx(AutomaticRate().walk)
    assert first_rate(1e-9, matrices=1) == pytest.approx(2 * first_rate(1e-9))


def test_a_network_with_group_norms_may_turn_its_matrices():
    """Its first gradients are the longer the smaller its weights are: three convolutions learnt 80 % of hard digits
    in steps of `reach`, and 88 % in steps that turn them."""
    rule = AutomaticRate()
    gradient = torch.full((400,), 1.0)  # of norm 20
    lengths = [
        rule.learning_rate(state, 0.1) / state.trust * 20
        for turning in (0.0, 1e-3, 0.5)
        for state in [
            rule.adapt(rule.init(Start(100, 0.1, 400, 1.0, 4, 1.0, turning)), gradient, 1e-6, ReleasedNorm(20.0, True))
        ]
    ]
    assert lengths == pytest.approx([rule.reach / 20, rule.reach / 20, 1.2 * 0.5], rel=1e-3)


def test_a_linear_model_behind_group_norms_has_nothing_to_turn():
    assert AutomaticRate().init(Start(100, 0.1, 400, 1.0, matrices=1, turning=0.5)).turning == 0


def test_what_turns_the_matrices_of_a_network():
    """The root of the sum of squared spectral norms over the number of matrices, for random weights."""
    torch.manual_seed(0)
    body = [nn.Conv2d(8, 64, 3), nn.GroupNorm(4, 64), nn.ReLU(), nn.Flatten(), nn.Linear(64, 128)]
    spectral = [float(torch.linalg.matrix_norm(each.weight.detach().flatten(1), 2)) for each in (body[0], body[4])]
    assert turning_length(nn.Sequential(*body)) == pytest.approx(math.hypot(*spectral) / 2, rel=0.05)
    assert turning_length(nn.Sequential(*body[:1], *body[2:])) == 0
    body[0].requires_grad_(False)
    assert turning_length(nn.Sequential(*body)) == pytest.approx(spectral[1], rel=0.05)
    body[4].requires_grad_(False)
    assert turning_length(nn.Sequential(*body)) == 0


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_absurd_matrices_have_no_length_to_turn():
    """Weights that are empty, or beyond all numbers."""
    huge = nn.Linear(2, 2).double()
    nn.init.constant_(huge.weight, 1e200)
    for layer in (nn.Linear(0, 3), nn.Linear(3, 0), huge):
        assert turning_length(nn.Sequential(layer, nn.GroupNorm(1, 4))) == 0


def test_few_steps_of_a_linear_model_are_short():
    """Four steps on features whose mean is large ended with a log loss of 4, each step undoing the last."""
    assert first_rate(1e-9, steps=4, matrices=1) == pytest.approx(first_rate(1e-9, matrices=1) / 4)
    assert first_rate(1e-9, steps=4) == pytest.approx(first_rate(1e-9))


def test_the_weights_of_a_network_are_not_swamped_by_noise():
    """Wide networks learn with small weights: AG News had lost three points to noise many times their size."""
    assert first_rate(0.5, weight=0.02) * 0.5 * 10 == pytest.approx(2 * 0.02)
    assert first_rate(0.5, weight=0.02, matrices=1) == first_rate(0.5, matrices=1)


@pytest.mark.parametrize(("noise", "sizes"), [(0.12, 2.0), (0.06, 2.0), (0.015, 1.0), (0.003, 0.7), (3e-5, 0.7)])
def test_a_run_that_gets_far_anyway_lets_noise_move_its_weights_less(noise, sizes):
    """Nothing but noise is seen in a step; the noise of 900 steps is that part of what gradients could add up to."""
    rule, weight = AutomaticRate(), 1e-4
    state = rule.adapt(rule.init(Start(900, 0.1, 400, weight)), torch.full((400,), noise), noise, ReleasedNorm(2, True))
    assert rule.learning_rate(state, 0.1) / state.trust * noise * 30 == pytest.approx(sizes * weight)


def test_the_first_step_does_not_depend_on_the_scale_of_the_inputs():
    """Inputs a thousand times as large: gradients too, and the weights that are sought a thousand times smaller."""
    for noise in (1e-4, 0.4):
        assert first_rate(1000 * noise, 2000.0) * 1e6 == pytest.approx(first_rate(noise))


def test_nothing_moves_while_the_scale_is_sought_unless_the_run_is_about_to_end():
    assert first_rate(0.1, found=False) == 0
    assert first_rate(0.1, found=False, steps=3) > 0


def test_where_noise_is_all_there_is_a_run_goes_less_far():
    hopeless, hopeful = first_rate(10.0), first_rate(1.0)
    assert hopeless * 10.0 < 0.2 * hopeful * 1.0


def rates(gradients, noise: float, steps: int = 1000):
    rule = AutomaticRate()
    state, found = rule.init(Start(steps, 0.1, 400, 1.0)), []
    for gradient in gradients:
        state = rule.adapt(state, gradient, noise, ReleasedNorm(2.0, True))
        found.append(rule.learning_rate(state, 0.1) / state.trust)
    return found


def test_steps_shorten_as_gradients_vanish_and_never_pass_the_reach():
    gradients = [torch.full((400,), 0.1 * 0.9**number) + 1e-7 for number in range(400)]
    moved = [2.0 * rate * float(one.norm()) for rate, one in zip(rates(gradients, 1e-6), gradients, strict=True)]
    assert max(moved) <= AutomaticRate().reach * (1 + 1e-3)
    assert moved[100] < 0.05 * moved[0]


def test_a_gradient_that_explodes_moves_no_further_than_the_reach_of_a_few_steps():
    """The signal is a mean over five steps, so one gradient may count for five; then the rate has fallen."""
    gradients = [torch.full((400,), 0.1)] * 10 + [torch.full((400,), 100.0)] * 10
    moved = [2.0 * rate * float(one.norm()) for rate, one in zip(rates(gradients, 1e-6), gradients, strict=True)]
    assert max(moved) <= 5**0.5 * AutomaticRate().reach * (1 + 1e-3)
    assert moved[-1] <= 1.1 * AutomaticRate().reach


def test_a_strong_signal_may_walk_further_and_never_without_end():
    weak, strong, strongest = (
        rates([torch.full((400,), 0.5 * (1 + (signal / 20) ** 2) ** 0.5)] * 5, 0.5)[-1] for signal in (1, 15, 60)
    )  # of 400 numbers whose noise alone has a norm of 20 standard deviations
    assert strong > 1.5 * weak
    assert strongest * 2.0 * 0.5 * 1000**0.5 <= 4 * 0.7 * (1 + 1e-9)


def test_absurd_histories_move_nothing_and_raise_nothing():
    rule = AutomaticRate()
    for size in (0.0, 1e-38, 3e38, math.inf, math.nan):
        for noise in (1e-300, 1.0, 1e300):
            for norm in (5e-324, 1.0, 1e308):
                state = rule.init(Start(100, 0.1, 4, 0.1))
                for _ in range(3):
                    state = rule.adapt(state, torch.full((4,), size), noise, ReleasedNorm(norm, True))
                    assert math.isfinite(rule.learning_rate(state, 0.1))


def descended(unit: float, noise: float, steps: int = 200, adds_up: float = 1.0) -> tuple[float, float]:
    """A bowl of 400 numbers whose loss counts in ``unit``, the noise in units of a first gradient: what part of the
    first loss is left at the end, and the trust then."""
    draw = torch.Generator().manual_seed(0)
    curvature = unit * torch.linspace(0.02, 1.0, 400)
    weights = torch.ones(400)
    norm = float((curvature * weights).norm())
    rule, noise = AutomaticRate(), noise * norm
    state = rule.init(Start(steps, 0.1, 400, 0.05, 2, adds_up))
    for _ in range(steps):
        gradient = curvature * weights + noise * torch.randn(400, generator=draw)
        state = rule.adapt(state, gradient, noise, ReleasedNorm(norm, True))
        weights = weights - rule.learning_rate(state, 0.1) * gradient
    return float((curvature * weights**2).sum() / curvature.sum()), state.trust


@pytest.mark.parametrize("unit", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_a_loss_of_any_unit_is_descended(unit):
    """A mean over many pixels, targets in the thousands: without trust next to nothing is learned from 1e2 on."""
    assert descended(unit, 1e-4)[0] < 0.1


def test_noise_alone_is_no_reason_to_trust_more_or_less():
    rule = AutomaticRate()
    state, draw, found = rule.init(Start(1000, 0.1, 400, 1.0)), torch.Generator().manual_seed(0), []
    for _ in range(1000):
        state = rule.adapt(state, torch.randn(400, generator=draw), 1.0, ReleasedNorm(2.0, True))
        found.append(state.trust)
    assert found[0] < 0.1
    assert max(found) == 1
    assert sum(one == 1 for one in found) > 700  # one answer in forty is beyond two standard deviations


def test_noise_that_turns_back_by_itself_is_not_asked():
    """Anti-correlated noise would look like steps that are too long."""
    assert descended(1.0, 1e-4, adds_up=0.2)[1] == 1
    assert descended(1.0, 1e-4, steps=20)[1] == 1
