"""A loss has one value per row, and a row's value does not depend on the others."""

import pytest
import torch
from torch.nn import functional

from sordina.errors import InvalidInput
from sordina.models import losses, metrics

ROWS = 6


def example(name):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def classes(*shape, high):
        return torch.randint(high, shape, generator=generator)

    return {
        "cross-entropy": (normal(ROWS, 5), classes(ROWS, high=5)),
        "next-token": (normal(ROWS, 7, 5), classes(ROWS, 7, high=5)),
        "mse": (normal(ROWS, 1, 4, 4), normal(ROWS, 1, 4, 4)),
        "hinge": (normal(ROWS, 1), classes(ROWS, high=2)),
    }[name]


@pytest.mark.parametrize("name", losses.LOSSES)
def test_one_value_per_row_whatever_the_company(name):
    outputs, targets = example(name)
    values = losses.named(name)(outputs, targets)
    assert values.shape == (ROWS,)
    alone = torch.cat([losses.named(name)(outputs[i : i + 1], targets[i : i + 1]) for i in range(ROWS)])
    assert torch.allclose(values, alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("cross-entropy", functional.cross_entropy),
        ("next-token", lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten())),
        ("mse", functional.mse_loss),
        ("hinge", lambda out, y: (1 - out.squeeze() * (2.0 * y - 1)).clamp(min=0).mean()),
    ],
)
def test_the_mean_is_the_usual_loss(name, mean):
    outputs, targets = example(name)
    assert torch.allclose(losses.named(name)(outputs, targets).mean(), mean(outputs, targets))


def test_regression_targets_may_lack_the_last_dimension():
    outputs = torch.tensor([[1.0], [3.0]])
    assert losses.mse(outputs, torch.tensor([1.0, 1.0])).tolist() == [0, 4]
    assert losses.mse(outputs.squeeze(1), torch.tensor([1.0, 1.0])).tolist() == [0, 4]


def test_tasks_have_their_losses():
    assert losses.for_task("reconstruction") is losses.mse
    assert losses.for_task("classification") is losses.cross_entropy
    with pytest.raises(InvalidInput, match="no loss for the task 'poetry'"):
        losses.for_task("poetry")
    with pytest.raises(InvalidInput, match="unknown loss 'l1'"):
        losses.named("l1")


def test_metrics():
    scores, targets = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]]), torch.tensor([1, 1, 1, 0])
    assert metrics.named("accuracy")(scores, targets) == 0.75
    assert metrics.accuracy(torch.cat([-scores, scores], dim=1), targets) == 0.75
    assert metrics.named("rmse")(torch.tensor([[3.0], [4.0]]), torch.zeros(2, 1)) == pytest.approx(12.5**0.5)
    with pytest.raises(InvalidInput, match="unknown metric 'f1'"):
        metrics.named("f1")
