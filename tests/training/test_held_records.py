"""Records of the training data inside of the model would be released as they are."""

import pytest
import torch
from torch import nn

import sordina as sd
from sordina.errors import InvalidInput
from sordina.training.held_records import refuse_held_records

X, Y = torch.randn(80, 6, dtype=torch.float64), torch.randint(0, 2, (80,))


class Radial(nn.Module):
    def __init__(self, centres, kind):
        super().__init__()
        if kind == "buffer":
            self.register_buffer("centres", centres)
        elif kind == "attribute":
            self.centres = centres
        else:
            self.centres = nn.Parameter(centres, requires_grad=kind == "weights")
        self.head = nn.Linear(len(centres), 2)

    def forward(self, x):
        return self.head((-(x[:, None].float() - self.centres.float()).square().sum(2)).exp())


@pytest.mark.parametrize("kind", ["buffer", "attribute", "weights", "frozen weights"])
def test_centres_that_are_records_are_refused(kind):
    trainer = sd.Trainer(
        Radial(X[40:43].float(), kind), nn.functional.cross_entropy, sd.Budget(3, 1e-5), batch_size=20, steps=3
    )
    with pytest.raises(InvalidInput, match="'centres' of the model holds records"):
        trainer.fit((X, Y))


@pytest.mark.parametrize("kind", ["buffer", "weights"])
def test_other_centres_are_not(kind):
    refuse_held_records(Radial(torch.randn(5, 6), kind), (X, Y))
    refuse_held_records(Radial(torch.zeros(5, 6), kind), (torch.zeros(80, 6), Y))
    refuse_held_records(Radial(torch.eye(6), kind), (torch.eye(6).repeat(20, 1), Y))
    grid = torch.linspace(0, 1, 6)
    refuse_held_records(Radial(grid[None], kind), (grid.repeat(80, 1), Y))
    refuse_held_records(nn.LazyLinear(3), (X, Y))
    graph = nn.Linear(6, 2)
    graph.register_buffer("edges", torch.eye(6).to_sparse())
    refuse_held_records(graph, (X, Y))


def test_records_on_their_side_are_refused():
    layer = nn.Linear(3, 6)
    layer.weight = nn.Parameter(X[:3].T.float())
    with pytest.raises(InvalidInput):
        refuse_held_records(layer, (X, Y))
