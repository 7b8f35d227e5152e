"""What people bring that is sound, and had been refused or had failed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import sordina as sd
from sordina.errors import InvalidInput

X, Y = torch.randn(60, 4), torch.randint(0, 2, (60,))


def test_what_a_loss_names_need_not_be_writable():
    weights = np.ones(2)
    weights.setflags(write=False)
    edges = torch.eye(2).to_sparse()

    def loss(out, y):
        each = nn.functional.cross_entropy(out, y, reduction="none")
        return each * torch.as_tensor(weights.tolist())[y] * float(edges.sum() > 0)

    sd.Trainer(nn.Linear(4, 2), loss, sd.Budget(3, 1e-5), batch_size=20, steps=3).fit((X, Y))


def test_categories_of_a_table_have_ranges_of_their_own():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Embedding(size, 2) for size in (5, 7, 4))

        def forward(self, x):
            return sum(part(x[:, place]) for place, part in enumerate(self.parts))

    table = torch.stack([torch.randint(0, size, (60,)) for size in (5, 7, 4)], 1)
    for data in ((table, Y), Subset(TensorDataset(table, Y), range(50))):
        sd.Trainer(Embedded(), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=3).fit(data)
    table[7, 2] = 6
    for data in ((table, Y), Subset(TensorDataset(table, Y), range(50))):
        with pytest.raises(InvalidInput, match="whole number outside the range"):
            sd.Trainer(Embedded(), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=3).fit(data)


class Told:
    """A callback that has nothing but what is needed."""

    def __init__(self):
        self.steps = []

    def report(self, entry):
        self.steps.append(entry["step"])


def test_a_callback_needs_no_more_than_report():
    told = Told()
    sd.Trainer(
        nn.Linear(4, 2), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=3, callbacks=[told]
    ).fit((X, Y))
    assert told.steps[-1] == 3
