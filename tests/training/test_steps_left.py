"""A batch drawn and left, in a loop of one's own: nothing of it is released later, and no row of C is skipped."""

import pytest
import torch
from torch import nn

import sordina as sd
from sordina.errors import InvalidInput
from sordina.mechanisms import BandedNoise, LambdaCGD


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.weight(x)[:, 0]


def bound(**options):
    model = Weight()
    private = sd.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(8, 1),), budget=sd.Budget(50, 1e-5), steps=8,
        clipping=sd.clipping.Fixed(1.0), **{"batch_size": 8, **options},
    )  # fmt: skip
    seen, finish = [], private.private_step.finish

    def spy(*given):
        totals, past = private.private_step._totals[0], private.private_step.past[0]
        summed = 0.0 if totals is None else abs(float(totals[0]))
        seen.append((private.steps_taken - 1, summed, None if past is None else past.step))
        return finish(*given)

    private.private_step.finish = spy
    return model, private, seen


def test_what_is_left_of_a_batch_is_not_in_the_next_sum():
    model, private, seen = bound(microbatch=4)
    for _ in range(3):
        for (x,) in private:
            private.step(model(x))
            break  # after the first of two pieces
    for (x,) in private:
        private.step(model(x))
    assert [summed for _, summed, _ in seen] == pytest.approx([8.0] * 5)


def test_a_step_that_fails_leaves_nothing_behind():
    model, private, seen = bound(microbatch=4)
    for number, (x,) in enumerate(private):
        if number % 4 == 3:  # the last piece of every second batch
            with pytest.raises(InvalidInput):
                private.step(model(x)[:0])
        else:
            private.step(model(x))
    assert [summed for _, summed, _ in seen] == pytest.approx([8.0] * 4)


@pytest.mark.parametrize("noise", [BandedNoise(2), LambdaCGD(0.5)])
def test_rows_and_turns_stay_together(noise):
    model, private, seen = bound(noise=noise, batch_size=4)
    for number, (x,) in enumerate(private):
        if number % 3 == 1:
            with pytest.raises(InvalidInput):
                private.step(model(x)[:0])
        else:
            private.step(model(x))
    for _ in private:
        break
    assert len(seen) < 8
    assert all(turn == row for turn, _, row in seen)


def test_a_loop_that_was_overtaken_goes_no_further():
    model, private, _ = bound(microbatch=4)
    one, two = iter(private), iter(private)
    next(one)
    (x,) = next(two)
    private.step(model(x))
    with pytest.raises(InvalidInput, match="another loop"):
        next(one)
