"""What a budget can buy is said before it is spent, from public facts alone."""

from __future__ import annotations

import json
import logging
from functools import partial

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from sordina.cli.main import app
from sordina.errors import InvalidInput
from sordina.privacy import Budget
from sordina.training import AdamBC, Trainer, planned_schedule

ROWS = (torch.zeros(2000, 20), torch.zeros(2000, dtype=torch.long))


def trainer(epsilon: float, width: int = 20, **options) -> Trainer:
    model = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 2))
    return Trainer(model, nn.functional.cross_entropy, Budget(epsilon, 1e-5), accountant="rdp", **options)


def test_a_hopeless_budget_is_called_so_and_gets_a_suggestion():
    found = trainer(0.05, width=400, batch_size=32, epochs=20).plan_report(ROWS)
    assert found.strength < 1
    assert "Next to nothing" in found.verdict
    assert "a model of at most" in found.suggestion
    assert "linear" in found.suggestion
    assert found.useful_after > found.steps


def suggested(rows: tuple[torch.Tensor, ...], model: nn.Module, epsilon: float) -> str:
    made = Trainer(model, nn.functional.cross_entropy, Budget(epsilon, 1e-5), accountant="rdp", batch_size=256)
    return made.plan_report(rows).suggestion


def test_a_linear_model_is_suggested_where_it_is_that_small():
    wide = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 2))
    assert "for instance a linear one, which has 42" in suggested(ROWS, wide, 0.5)
    images = (torch.zeros(1437, 1, 8, 8), torch.zeros(1437, dtype=torch.long))
    found = suggested(images, nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.Tanh(), nn.Linear(200, 10)), 0.1)
    assert "a linear one has 650: it takes fewer inputs" in found
    assert "for instance" not in found
    assert "linear" not in suggested(images, nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), 0.1)


def test_a_plan_is_refused_where_the_run_would_be():
    with pytest.raises(InvalidInput, match="cannot take these data"):
        trainer(8.0).plan_report((torch.zeros(2000, 1, 8, 8), ROWS[1]))
    result = CliRunner().invoke(app, ["train", "digits", "--model", "linear", "--plan"])
    assert isinstance(result.exception, InvalidInput)
    tokens = (torch.zeros(300, 5, dtype=torch.long), torch.zeros(300, dtype=torch.long))
    text = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(15, 2))
    assert Trainer(text, nn.functional.cross_entropy, Budget(0.1, 1e-5), batch_size=30).plan_report(tokens).weights


def test_who_trains_without_hope_is_warned_before_it_is_spent_and_nobody_else(caplog):
    caplog.set_level(logging.WARNING, "sordina")
    trainer(0.001, batch_size=32, steps=2).fit(ROWS)
    assert [one.getMessage() for one in caplog.records if "Next to nothing" in one.getMessage()]
    caplog.clear()
    trainer(8.0, batch_size=256, steps=2).fit(ROWS)
    trainer(float("inf"), batch_size=256, steps=2).fit(ROWS)
    assert not caplog.records


@pytest.mark.parametrize(("epsilon", "said"), [("0.001", "Next to nothing"), ("inf", "NOT PRIVATE")])
def test_the_verdict_stands_in_what_train_prints(epsilon, said):
    arguments = ["train", "digits", "--epsilon", epsilon, "--epochs", "1", "--batch-size", "700", "--model", "mlp"]
    planned, plain, facts = (
        CliRunner().invoke(app, [*arguments, *more]) for more in (["--plan"], [], ["--json"])
    )  # fmt: skip
    assert said in planned.stdout
    assert said in plain.stdout
    assert json.loads(facts.stdout)["verdict"].startswith(said)


def test_a_good_budget_needs_no_suggestion():
    found = trainer(8.0, batch_size=256, epochs=10).plan_report(ROWS)
    assert found.strength > 5
    assert found.suggestion == ""
    assert found.noise_per_weight == pytest.approx(found.noise_multiplier / 256)


def test_the_report_does_not_depend_on_the_rows():
    other = (torch.randn(2000, 20), torch.ones(2000, dtype=torch.long))
    assert trainer(1.0).plan_report(ROWS) == trainer(1.0).plan_report(other)


def test_more_budget_is_more_strength():
    found = [trainer(epsilon, batch_size=256).plan_report(ROWS).strength for epsilon in (0.1, 1.0, 10.0)]
    assert found == sorted(found)


def test_who_states_no_schedule_gets_one():
    size, epochs = planned_schedule(Budget(1.0, 1e-5), 2000, 500)
    assert 64 <= size <= 1000
    assert epochs * 2000 / size >= 60
    run = trainer(1.0, batch_size=None, epochs=None, seed=0, track_epsilon=False).fit(ROWS)
    assert run.guarantee.epsilon <= 1
    assert run.steps >= 60


def test_few_strong_steps_become_more_steps_of_smaller_batches():
    budget = Budget(3.0, 1e-5)
    assert planned_schedule(budget, 60000, 26010) == (2048, 20.0)
    assert planned_schedule(budget, 60000, 26010, batch_size=4096) == (4096, 20.0)
    assert planned_schedule(Budget(1.0, 1e-5), 32561, 5000) == (1024, 10.0), "where noise is the limit, nothing changes"


def test_adam_bc_is_its_formula():
    weight = torch.zeros(3, requires_grad=True)
    optimizer = AdamBC([weight], lr=0.1, betas=(0.9, 0.9), floor=0.5)
    optimizer.param_groups[0]["noise"] = 2.0
    mean, square, expected = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    for step, gradient in enumerate([torch.tensor([3.0, 1.0, -5.0]), torch.tensor([4.0, -2.0, 0.1])], 1):
        weight.grad = gradient.clone()
        optimizer.step()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.9 * square + 0.1 * gradient**2
        left = (square / (1 - 0.9**step) - 4.0).clamp(min=1.0).sqrt()
        expected = expected - 0.1 * mean / (1 - 0.9**step) / left
        assert torch.allclose(weight.detach(), expected, atol=1e-5)


def test_sgd_without_a_rate_has_the_automatic_one_or_is_refused():
    def rate(optimizer):
        torch.manual_seed(0)
        run = trainer(3.0, batch_size=100, steps=3, seed=1, optimizer=optimizer).fit(ROWS)
        return run.history[0]["learning_rate"], run.history[-1]["learning_rate"]

    assert rate(torch.optim.SGD) == rate("sgd") == rate(None)
    assert 1e-3 not in rate(torch.optim.SGD)
    with pytest.raises(InvalidInput, match="has no learning rate"):
        trainer(3.0, optimizer=partial(torch.optim.SGD, momentum=0.9)).fit(ROWS)
    trainer(3.0, batch_size=100, steps=1, optimizer=partial(torch.optim.SGD, lr=0.5)).fit(ROWS)
