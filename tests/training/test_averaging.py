"""Averages of released weights: what is validated, saved and returned, and never what training goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sordina as sd
from sordina.errors import InvalidInput
from sordina.training import ExponentialAverage, StopTraining, TailAverage
from sordina.training.averaging import WeightAverage, averaging_named
from sordina.training.run import weights_digest


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


class Weights:
    """Keeps the weights after every step, as the validations see them or not."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.seen = model, list[torch.Tensor]()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def report(self, entry: dict[str, Any]) -> None:
        self.seen.append(next(self.model.parameters()).detach().clone())


def trainer(steps: int = 20, **options: Any) -> sd.Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"batch_size": 50, "steps": steps, "epochs": None, "learning_rate": 0.5, "seed": 3}
    return sd.Trainer(
        nn.Linear(5, 2),
        nn.functional.cross_entropy,
        sd.Budget(3, 1e-5),
        **(settings | {"tensorboard": False} | options),
    )


def walk(steps: int = 20) -> list[torch.Tensor]:
    """The weights after every step of the run without averages."""
    one = trainer(steps)
    watch = Weights(one.model)
    one.callbacks = [watch]
    one.fit(rows())
    assert len(watch.seen) == steps
    return watch.seen


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_tail_is_the_mean_of_the_last_steps_and_training_is_not_changed_by_it(share: float) -> None:
    weights = walk()
    run = trainer(averaging=TailAverage(share)).fit(rows())
    expected = torch.stack(weights[-round(20 * share) :]).mean(0)
    torch.testing.assert_close(next(run.model.parameters()).detach(), expected)


def test_exponential_average_by_its_formula() -> None:
    weights = walk()
    mean = weights[0]
    for count, one in enumerate(weights[1:], 1):
        mean = mean + max(1 / (count + 1), 1 / (0.2 * 20)) * (one - mean)
    run = trainer(averaging=ExponentialAverage(0.2)).fit(rows())
    torch.testing.assert_close(next(run.model.parameters()).detach(), mean)


def test_what_is_validated_is_the_average_and_training_goes_on_from_the_weights() -> None:
    weights = walk()
    one = trainer(averaging="tail", validate_every=5)
    watch = Weights(one.model)
    one.callbacks = [watch]
    run = one.fit(rows(), validation=rows())
    by_step = {entry["step"]: seen for entry, seen in zip(run.history, watch.seen, strict=True)}
    torch.testing.assert_close(by_step[5], weights[4])
    torch.testing.assert_close(by_step[15], torch.stack(weights[10:15]).mean(0))
    torch.testing.assert_close(by_step[16], weights[15])
    torch.testing.assert_close(by_step[20], torch.stack(weights[10:]).mean(0))
    assert (
        run.validation["accuracy"] == sd.training.evaluate(run.model, nn.functional.cross_entropy, rows())["accuracy"]
    )


class Killed(RuntimeError):
    pass


@pytest.mark.parametrize("at", [6, 14])
def test_a_killed_run_goes_on_with_its_average(tmp_path: Path, at: int) -> None:
    whole = trainer(averaging="tail").fit(rows())

    class Kill(Weights):
        def report(self, entry: dict[str, Any]) -> None:
            if entry["step"] == at:
                raise Killed

    first = trainer(averaging="tail", folder=tmp_path / "run", checkpoint_every=3)
    first.callbacks = [Kill(first.model)]
    with pytest.raises(Killed):
        first.fit(rows())
    with pytest.raises(InvalidInput):
        trainer(averaging="ema", folder=tmp_path / "run", checkpoint_every=3).fit(rows(), resume=True)
    run = trainer(averaging="tail", folder=tmp_path / "run", checkpoint_every=3).fit(rows(), resume=True)
    for ours, theirs in zip(run.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    saved = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    torch.testing.assert_close(saved["weight"], next(run.model.parameters()).detach(), rtol=0, atol=0)


def test_a_run_that_is_left_early_ends_with_the_average_so_far() -> None:
    weights = walk()

    class Stop(Weights):
        def report(self, entry: dict[str, Any]) -> None:
            if entry["step"] == 13:
                raise StopTraining

    one = trainer(averaging="tail")
    one.callbacks = [Stop(one.model)]
    run = one.fit(rows())
    torch.testing.assert_close(next(run.model.parameters()).detach(), torch.stack(weights[10:13]).mean(0))
    assert run.steps == 20


def test_own_loop_shows_the_average_and_puts_the_weights_back() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = sd.make_private(
        model, optimizer, rows(), budget=sd.Budget(3, 1e-5), batch_size=50, steps=6, seed=0, averaging="tail"
    )
    seen = []
    for x, y in private:
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        now = model.weight.detach().clone()
        seen.append(now)
        with private.averaged():
            shown = model.weight.detach().clone()
        torch.testing.assert_close(model.weight.detach(), now, rtol=0, atol=0)
        expected = now if len(seen) <= 3 else torch.stack(seen[3:]).mean(0)
        torch.testing.assert_close(shown, expected)
    run = private.finish()
    torch.testing.assert_close(model.weight.detach(), torch.stack(seen[3:]).mean(0))
    assert run.weights == weights_digest(model)


def test_the_average_of_noise_is_less_noisy() -> None:
    parameter = torch.zeros(20_000)
    average = WeightAverage(TailAverage(0.5), [parameter], 100)
    for step in range(1, 101):
        parameter.normal_(generator=torch.Generator().manual_seed(step))
        average.add(step)
    average.adopt()
    assert float(parameter.std()) == pytest.approx(50**-0.5, rel=0.05)


@pytest.mark.parametrize("wrong", ["mean", 3, TailAverage])
def test_refuses_what_is_no_averaging(wrong: Any) -> None:
    if wrong is TailAverage:
        with pytest.raises(InvalidInput):
            TailAverage(0.0)
        with pytest.raises(InvalidInput):
            ExponentialAverage(1.5)
        return
    with pytest.raises(InvalidInput):
        averaging_named(wrong)
