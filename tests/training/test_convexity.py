"""A model with one matrix bears long steps only if its loss is convex: a sigmoid before a mean square is not."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordina as sd
from sordina.reproduction.robustness import SOURCES, Cell, trained
from sordina.training.batches import as_rows
from sordina.training.convexity import convex_as_far_as_seen, facts_of_loss, first_loss

X = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
CLASSES, TRUTHS, NUMBERS = torch.arange(20) % 3, (torch.arange(20) % 2).float().unsqueeze(1), X[:, :1] * 2


def linear(outputs: int, *behind: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Dropout(), nn.Linear(12, outputs), *behind)


def brier(outputs: Tensor, classes: Tensor) -> Tensor:
    return (outputs - F.one_hot(classes, 3)).square().sum(1)


CONVEX = {
    "cross entropy": (linear(3), nn.CrossEntropyLoss(), CLASSES),
    "written as two": (linear(3, nn.LogSoftmax(1)), nn.NLLLoss(), CLASSES),
    "one logit": (linear(1), nn.BCEWithLogitsLoss(), TRUTHS),
    "one probability": (linear(1, nn.Sigmoid()), nn.BCELoss(), TRUTHS),
    "squares": (linear(1), nn.MSELoss(), NUMBERS),
    "Huber": (linear(1), nn.HuberLoss(), NUMBERS),
    "margin": (linear(3), nn.MultiMarginLoss(), CLASSES),
}
BENT = {
    "sigmoid, squares": (linear(1, nn.Sigmoid()), nn.MSELoss(), TRUTHS),
    "tanh, squares": (linear(1, nn.Tanh()), nn.MSELoss(), NUMBERS),
    "softmax, squares": (linear(3, nn.Softmax(1)), brier, CLASSES),
}


@pytest.mark.parametrize("name", [*CONVEX, *BENT])
def test_whether_a_loss_is_convex_is_seen(name):
    model, loss, target = {**CONVEX, **BENT}[name]
    weights = [each.clone() for each in model.parameters()]
    before = torch.get_rng_state()
    assert convex_as_far_as_seen(model, loss, as_rows((X, target))) == (name in CONVEX)
    assert all(torch.equal(one, two) for one, two in zip(weights, model.parameters(), strict=True))
    assert torch.equal(before, torch.get_rng_state())
    assert model.training


@pytest.mark.parametrize(
    ("behind", "bounded"),
    [((), False), ((nn.Sigmoid(),), True), ((nn.Tanh(),), True), ((nn.LogSoftmax(1),), False), ((nn.ReLU(),), False)],
)
def test_whether_outputs_are_bounded_is_seen(behind, bounded):
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3), *behind)
    weights = [each.clone() for each in model.parameters()]
    assert (first_loss(model, nn.MSELoss(), as_rows((X, X[:, :3]))) is not None) == bounded
    assert all(torch.equal(one, two) for one, two in zip(weights, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("loss", "least", "most"),
    [
        (nn.MSELoss(), 0.05, 0.15),  # of a number between zero and one and one half: a twelfth
        (lambda out, y: (out - y).square().sum(1), 0.15, 0.45),
        (nn.BCELoss(), 0.6, 0.8),
    ],
)
def test_the_first_loss_is_that_of_targets_within_the_bounds_and_none_of_the_data(loss, least, most):
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3), nn.Sigmoid())
    found = [first_loss(model, loss, as_rows((x, x[:, :3].sigmoid()))) for x in (X, 1000 * X)]
    assert found[0] == found[1]
    assert least < found[0] < most


def test_a_unit_is_half_of_the_first_loss_and_at_most_one():
    model = nn.Sequential(nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 3), nn.Sigmoid())
    rows = as_rows((X, X[:, :3].sigmoid()))
    assert facts_of_loss(model, nn.MSELoss(), rows) == {"unit": first_loss(model, nn.MSELoss(), rows) / 2}
    assert facts_of_loss(model, lambda out, y: 100 * (out - y).square().sum(1), rows) == {"unit": 1.0}
    assert facts_of_loss(model[:3], nn.MSELoss(), rows) == {}


def test_layers_that_are_not_made_yet_stay_so():
    model = nn.Sequential(nn.LazyLinear(3), nn.Sigmoid())
    assert first_loss(model, nn.MSELoss(), as_rows((X, X[:, :3]))) is None
    assert convex_as_far_as_seen(model, nn.MSELoss(), as_rows((X, X[:, :3])))
    assert isinstance(model[0].weight, nn.UninitializedParameter)


def test_what_cannot_be_told_is_taken_for_convex():
    class Particular(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not (x == 0).all():
                raise ValueError("not these")
            return super().forward(x)

    assert convex_as_far_as_seen(Particular(12, 1), nn.MSELoss(), as_rows((X, NUMBERS)))


def test_the_trainer_starts_with_little_trust_where_it_is_not():
    def trust(*behind: nn.Module) -> float:
        trainer = sd.Trainer(linear(1, *behind), nn.MSELoss(), budget=sd.Budget(3, 1e-5), batch_size=4, epochs=20)
        private = trainer._checked((X, TRUTHS), None)
        private.close()
        return private.rate_state.trust

    assert trust() == 1
    assert trust(nn.Sigmoid()) < 1


def test_pictures_behind_a_sigmoid_are_learned():
    """R2 was below zero: one long step drove every pixel to black or white, where no gradient is left."""
    score = trained(SOURCES["pictures"](), Cell("pictures", "linear", 256, 10.0, 10.0), 0, None)
    assert score[0] > 0.6
