"""Guards about all samples, or any: what lies behind them is looked at, whatever is in front of it.

``if (x.abs() > 1e3).any(): x = x.clamp(-5, 5)`` lets one record clamp everybody else's values, and changes nothing on
made-up rows near one (4.3 times the bound); guards that share a line hid one another (4.9 times).
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sordina.gradients import Engine
from sordina.gradients._turns import MOST_TURNS, Turns
from sordina.queries import VectorQuery
from sordina.training.losses import per_sample

NAN, ROWS, BOUND = float("nan"), 32, 0.1


class Guarded(nn.Module):
    """Something in front of two layers."""

    def __init__(self, guard) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.guard, self.net = guard, nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(self.guard(x))


def alone(guard) -> str:
    """Why a model with such a guard runs one sample at a time."""
    model = Guarded(guard)
    with Engine(model) as engine:
        model(torch.randn(ROWS, 6))
        return str(engine._calls._last.alone)


def change(model, losses, x) -> float:
    """By how many bounds the last record changes the sum of clipped gradients, after a batch of ordinary records."""
    sums = []
    with Engine(model) as engine:
        engine.record(losses(model, torch.randn(ROWS, 6))).scalars()
        for rows in (ROWS, ROWS - 1):
            tape = engine.record(losses(model, x[:rows]))
            norms = tape.scalars().norms
            own = torch.where(norms.isfinite(), (BOUND / norms.clamp_min(1e-30)).clamp(max=1), 0.0)
            sums.append(tape.contract([VectorQuery(own)])[0])
    return float((sums[0] - sums[1]).norm()) / BOUND


def squares(model, x):
    return (model(x) - 1).square().sum(1)


def loud(last: float, scale: float = 10.0):
    torch.manual_seed(0)
    x = torch.randn(ROWS, 6)
    x[:24] *= scale
    x[-1, 2] = last
    return x


def clamped(x):
    return x.clamp(-5, 5) if (x.abs() > 1e3).any() else x


def cleaned(x):
    return torch.nan_to_num(x, nan=0.0).clamp(-5, 5) if torch.isnan(x).any() else x


def clamped_unless(x):
    return x if (x.abs() > 1e3).any() else x.clamp(-50, 50)


def another_mask(x):
    large = x > 100
    return torch.where(large, 0.0, x) if (x == 3).any() else x


def a_part_of_the_mask(x):
    large = x > 100
    return torch.where(large, 0.0, x) if large[:, 0].any() else x


def half_a_mask(x):
    large, three = x > 100, x.roll(1, 1) == 3
    return torch.where(large, 0.0, x) if (large & three).any() else x


@pytest.mark.parametrize(("guard", "last"), [(clamped, 1e4), (cleaned, NAN)])
def test_a_guard_that_changes_nothing_on_made_up_rows_lets_nobody_decide_for_others(guard, last):
    assert change(Guarded(guard), squares, loud(last)) <= 1 + 1e-5


def softly_clamped(x):
    return x / (1 + (x / 100) ** 8) if (x.abs() > 1e3).any() else x


@pytest.mark.parametrize("guard", [softly_clamped, clamped_unless, another_mask, a_part_of_the_mask, half_a_mask])
def test_a_choice_by_something_else_than_the_guard_is_run_apart(guard):
    assert "decide" in alone(guard)


def with_epsilon(x):
    size = x.abs().sum(1, keepdim=True)
    return x / (size + 1e-10 if (size == 0).any() else size)


def with_a_tensor(x):
    size = x.abs().sum(1, keepdim=True)
    return x / (size + torch.full((1,), 1e-10).to(x) if (size == 0).any() else size)


def bent_far_away(x):
    return x / (1 + (x / 1e12) ** 4) if (x == 0).any() else x


@pytest.mark.parametrize("guard", [with_epsilon, with_a_tensor, bent_far_away])
def test_a_number_that_no_made_up_row_comes_near_is_run_apart(guard):
    """A record of zeros let all others be divided by something else (4.2 C, where they are about as small)."""
    assert "decide" in alone(guard)


def test_a_guard_against_zero_lets_nobody_decide_for_others():
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0)) * 1e-12
    x[-1] = 0
    assert change(Guarded(with_epsilon), squares, x) <= 1 + 1e-5


def test_a_guard_of_a_loss_lets_nobody_decide_for_others():
    def finite(output, target):
        each = F.mse_loss(output, target, reduction="none").sum(1)
        return each if torch.isfinite(each).all() else each.nan_to_num(0.0).clamp(max=20)

    each = per_sample(finite)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    assert change(model, lambda model, x: each(model(x), torch.ones(len(x), 2)), loud(NAN, 200)) <= 1 + 1e-5


def same_truths(x):
    bad = x.isnan() | (x == -1)
    return torch.where(bad, 0.0, x) if bad.any() else x


def kept_as_it_is(x):
    return x.double().to(x.dtype) if (x.abs() > 1e3).any() else x


@pytest.mark.parametrize("guard", [same_truths, kept_as_it_is])
def test_a_choice_by_the_truths_of_the_guard_costs_nothing(guard):
    assert not alone(guard)


def filled(x, missing):
    return torch.where(missing, x.masked_fill(missing, 0).mean(0), x)


def exists(truths):
    return bool(truths.any())


def in_a_loop(x):
    columns = []
    for number, column in enumerate(x.unbind(1)):
        missing = column == -1
        if missing.any():
            if number == 0:
                raise ValueError("required")
            column = filled(column, missing)
        columns.append(column)
    return torch.stack(columns, 1)


def in_a_helper(x):
    if exists(x.isnan()):
        raise ValueError("not a number")
    return filled(x, x == -1) if exists(x == -1) else x


def behind_returns(x):
    if exists(x == 101):
        return x
    if exists(x == 102):
        return x * 1
    return filled(x, x == -1) if exists(x == -1) else x


def instead_of_another(x):
    if exists(x == 101):
        return filled(x, x == -1) if exists(x == -1) else x
    return x * 1 if exists(x == 102) else x


def deep_down(x):
    if x.isnan().any():
        raise ValueError("not a number")
    one, two, three = (x[:, number] == -1 for number in (2, 3, 4))
    if one.any() and two.any() and three.any():
        return filled(x, (one | two | three)[:, None])
    return x


def _in_a_script(x: torch.Tensor) -> torch.Tensor:
    if bool(x.isnan().any()):
        raise ValueError("not a number")
    missing = x == -1
    if bool(missing.any()):
        x = torch.where(missing, x.masked_fill(missing, 0.0).mean(0), x)
    return x


with warnings.catch_warnings(action="ignore"):
    in_a_script = torch.jit.script(_in_a_script)


HIDDEN = [in_a_loop, in_a_helper, behind_returns, instead_of_another, deep_down, in_a_script]


@pytest.mark.parametrize("guard", HIDDEN, ids=lambda guard: getattr(guard, "__name__", "script"))
def test_no_guard_hides_another(guard):
    assert alone(guard)


def test_a_clamp_behind_a_check_at_the_same_line_is_seen():
    def guard(x):
        if exists(x.isnan()):
            raise ValueError("not a number")
        return x.clamp(-5, 5) if exists(x.abs() > 1e3) else x

    assert "decide" in alone(guard)


def test_more_guards_than_are_tried_are_run_apart():
    def guard(x):
        for number in range(MOST_TURNS + 1):
            if (x == 100 + number).any():
                x = x * 1
        return x

    assert alone(guard)


def answers(*places):
    return [((("file", place, 0), 1), place, True) for place in places]


def test_turned_answers_are_tried_one_by_one_all_together_and_then_what_lies_behind():
    (one, _, _), (two, _, _), (three, _, _) = answers(1, 2, 3)
    turns, seen = Turns(), []
    while (turned := turns.following()) is not None:
        seen.append(turned)
        turns.ran(turned, answers(1, 2, 3) if one in turned else answers(1, 2), failed=two in turned)
    assert seen == [frozenset(each) for each in ([], [one], [two], [one, two], [one, three])]


def test_what_a_model_does_in_its_own_precision_only_is_followed():
    """1.2 and 4.9 times the bound: operations were followed in double precision alone."""

    def in_single(x):
        return filled(x, x == -1) if x.dtype == torch.float32 else x

    def in_half(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ torch.eye(6, dtype=x.dtype)
            return filled(h, h.abs() > 1e3).to(x) if h.dtype == torch.bfloat16 else h

    def clamped_in_single(x):
        return clamped(x) if x.dtype == torch.float32 else x

    assert all(map(alone, (in_single, in_half, clamped_in_single)))
