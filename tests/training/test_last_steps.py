"""A model that was still on its way when its run ended is told of, from released gradients alone."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import sordina as sd
from sordina.training.last_steps import LastSteps


def rows(seed: int, *, numbers: bool, inputs: float = 1.0, targets: float = 1.0):
    draw = torch.Generator().manual_seed(seed)
    x, w = torch.randn(1400, 10, generator=draw), torch.randn(10, generator=draw)
    score = 3 * x @ (w / w.norm()) + torch.randn(1400, generator=draw)
    return inputs * x, targets * score[:, None] if numbers else (score > 0).long()


def warned(caplog, seed: int, epsilon: float, epochs: float, *, numbers: bool, **scales: float) -> bool:
    caplog.clear()
    caplog.set_level(logging.WARNING, "sordina")
    torch.manual_seed(seed)
    loss = nn.functional.mse_loss if numbers else nn.functional.cross_entropy
    trainer = sd.Trainer(
        nn.Linear(10, 1 if numbers else 2), loss, sd.Budget(epsilon, 1e-5), batch_size=128, epochs=epochs, seed=seed,
        accountant="rdp", track_epsilon=False,
    )  # fmt: skip
    trainer.fit(rows(seed, numbers=numbers, **scales))
    return any("still on its way" in one.getMessage() for one in caplog.records)


@pytest.mark.parametrize("seed", [0, 1])
def test_huge_targets_are_told_of_and_ordinary_ones_and_inputs_are_not(caplog, seed):
    assert warned(caplog, seed, 3, 10, numbers=True, targets=1e4)
    assert not warned(caplog, seed, 10, 5, numbers=False, inputs=1e5)  # the automatic rate finds its way
    assert not warned(caplog, seed, 3, 10, numbers=True)
    assert not warned(caplog, seed, 10, 5, numbers=False)
    assert not warned(caplog, seed, 0.1, 5, numbers=False)


def test_noise_alone_and_turning_gradients_say_nothing_and_one_direction_does():
    draw = torch.Generator().manual_seed(0)
    for kind, told in (("noise", False), ("turning", False), ("same", True)):
        last = LastSteps(100)
        for step in range(1, 101):
            signal = {"noise": 0.0, "turning": 5.0 * (-1) ** step, "same": 5.0}[kind]
            last.take(step, 0.1 * (torch.randn(50, generator=draw) + signal), 0.1)
        assert bool(last.warning) == told, kind


def test_half_of_the_last_steps_is_not_enough_nor_is_a_short_run():
    resumed, short = LastSteps(100), LastSteps(20)
    for step in range(96, 101):
        resumed.take(step, torch.ones(50), 0.01)
    for step in range(1, 21):
        short.take(step, torch.ones(50), 0.01)
    assert resumed.warning is None
    assert short.warning is None
