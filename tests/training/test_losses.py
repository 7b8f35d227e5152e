from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordina as sd
from sordina.errors import InvalidInput
from sordina.training.batches import as_rows
from sordina.training.losses import check_takes, per_sample

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


class FirstBatch(nn.Module):
    """Begins by its first batch, as ActNorm does, or remembers it."""

    def __init__(self, what):
        super().__init__()
        self.inner, self.what = nn.Linear(4, 2), what
        self.shift, self.first = nn.Parameter(torch.zeros(4)), None

    def forward(self, x):
        if self.first is None:
            self.first = x[:1].detach() * 0 + 1 if self.what == "attribute" else 1.0
            if self.what == "parameter":
                with torch.no_grad():
                    self.shift.copy_(x.mean(0) + 1)
        return self.inner((x + self.shift) * self.first)


def test_what_begins_by_its_first_batch_does_not_begin_by_blank_rows():
    data = (torch.randn(60, 4), torch.randint(0, 2, (60,)))
    with pytest.raises(sd.SordinaError, match="changes the parameter 'shift'"):
        sd.Trainer(FirstBatch("parameter"), nn.CrossEntropyLoss(), sd.Budget(3, 1e-5), batch_size=20, steps=2).fit(data)
    model = FirstBatch("attribute")
    check_takes(model, nn.CrossEntropyLoss(), as_rows(data))
    assert model.first is None


def test_checks_that_raise_do_not_make_a_loss_slow(caplog):
    """`torch.any(var < 0)` in torch's own code: that nobody's variance is negative decides nothing else."""

    def loss(outputs, targets):
        return F.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp(), reduction="none")

    data = (torch.randn(60, 4), torch.randn(60))
    sd.Trainer(nn.Linear(4, 2), loss, sd.Budget(3, 1e-5), batch_size=20, steps=2).fit(data)
    assert "one sample at a time" not in caplog.text
