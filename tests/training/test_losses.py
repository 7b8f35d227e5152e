from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sordina.errors import InvalidInput
from sordina.training.losses import per_sample

OUTPUT, CLASSES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize(
    "loss",
    [F.cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")],
    ids=["function", "mean", "sum"],
)
def test_a_reduction_is_undone(loss):
    expected = F.cross_entropy(OUTPUT, CLASSES, reduction="none")
    assert torch.equal(per_sample(loss)(OUTPUT, CLASSES), expected)


def test_the_users_loss_module_is_left_alone():
    loss = nn.MSELoss()
    per_sample(loss)
    assert loss.reduction == "mean"


def test_further_dimensions_are_averaged_per_sample():
    losses = per_sample(F.mse_loss)(torch.zeros(2, 3, 4), torch.full((2, 3, 4), 2.0))
    assert losses.tolist() == [4.0, 4.0]


def test_a_mean_of_ones_own_is_refused():
    with pytest.raises(InvalidInput, match="one per sample"):
        per_sample(lambda output, target: (output.sum(1) - target).square().mean())(OUTPUT, CLASSES)
