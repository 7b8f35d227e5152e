from dataclasses import replace

import pytest
import torch
from tests.tuning.world import mlp, world
from torch import nn

import sordina as sd
from sordina._stacked_models import stacked
from sordina.clipping import Automatic, FallingNorm, Fixed, Online, Quantile, TypicalNorm
from sordina.errors import InvalidInput
from sordina.gradients import Engine
from sordina.models import build
from sordina.queries import ScalarQuery, VectorQuery
from sordina.training import LearningRateRule
from sordina.training.losses import per_sample
from sordina.tuning.parallel_runs import layers, perform_together, stackable, stacked_networks
from sordina.tuning.runner import Brief, RunOrder, finished, perform
from sordina.tuning.selection import Selection

LOSS = per_sample(nn.functional.cross_entropy)


def networks(count, bias=True):
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(nn.Sequential(nn.Flatten(), nn.Linear(4, 5, bias=bias), nn.ReLU(), nn.Linear(5, 3)))
    return made


@pytest.mark.parametrize("bias", [True, False])
def test_every_network_gets_the_tape_it_would_get_alone(bias):
    models = networks(3, bias)
    alone = networks(3, bias)
    rng = torch.Generator().manual_seed(9)
    batches = {
        place: (torch.randn(size, 2, 2, generator=rng), torch.randint(0, 3, (size,), generator=rng))
        for place, size in ((0, 7), (2, 4))
    }
    tapes = stacked_networks(models).record(batches, LOSS)
    for tape, (place, (x, y)) in zip(tapes, batches.items(), strict=True):
        with Engine(alone[place]) as engine:
            expected = engine.record(LOSS(alone[place](x), y))
        norms = expected.scalars().norms
        torch.testing.assert_close(tape.scalars().norms, norms)
        queries = [VectorQuery(torch.rand(len(x))), VectorQuery(1 / norms), ScalarQuery(torch.rand(len(x)))]
        for got, wanted in zip(tape.contract(queries), expected.contract(queries), strict=True):
            torch.testing.assert_close(got, wanted)


def test_parameters_are_views_of_the_stack():
    models = networks(2)
    before = [parameter.clone() for parameter in models[1].parameters()]
    stack = stacked_networks(models)
    for old, new in zip(before, models[1].parameters(), strict=True):
        assert torch.equal(old, new)
    with torch.no_grad():
        models[1][1].weight.zero_()
    assert torch.equal(stack.parts[0][1], torch.zeros(5, 4))


class Clip:
    """A strategy with a fixed policy."""

    def __init__(self, clipping, averaging):
        self.clipping, self.averaging = clipping, averaging

    def __call__(self, configuration):
        rule = LearningRateRule(first=configuration["learning_rate"])
        return {"clipping": self.clipping, "learning_rate": rule, "averaging": self.averaging}


@pytest.mark.parametrize("selection", ["public", "private"])
@pytest.mark.parametrize(
    ("clipping", "averaging"),
    [
        (TypicalNorm(), None),
        (FallingNorm(), None),
        (Online(), None),
        (Fixed(0.5), "tail"),
        (Quantile(), None),
        (Automatic(), "ema"),
    ],
)
def test_stacked_runs_are_the_runs_one_by_one(tmp_path, clipping, averaging, selection):
    """Same seeds, same batches, same noise: the same weights, the same events, the same scores."""
    train, held_out = world(200, 0), world(50, 1)
    orders = [
        RunOrder(number, {"learning_rate": 0.3 * (number + 1)}, number, 100 + number, number) for number in range(3)
    ]
    together = Brief(
        mlp, Clip(clipping, averaging), sd.Budget(50, 1e-5), 1.5, "rdp", Selection(selection), tmp_path / "together", 2
    )
    alone = replace(together, runs=tmp_path / "alone")
    perform_together(together, orders, train, held_out)
    for order in orders:
        perform(alone, order, train, held_out)
        ours = torch.load(together.place(order) / "model.pt", weights_only=True)
        theirs = torch.load(alone.place(order) / "model.pt", weights_only=True)
        for name in ours:
            # released sums lie on the noise's grid, so a rounding before it may move a weight by a step of the grid
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-2, atol=5e-3)
            assert torch.isclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5).float().mean() > 0.5
        mine, other = finished(together.place(order)), finished(alone.place(order))
        assert (mine.event, mine.stopped, mine.metric) == (other.event, other.stopped, other.metric)
        assert mine.score == pytest.approx(other.score)
        assert mine.best_step == other.best_step


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize("kind", ["chain", "layer", "hook", "weights"])
def test_a_forward_pass_of_ones_own_is_not_left_out(kind):
    """The network had been taken for the chain of its layers."""
    model = {
        "chain": Doubled(nn.Linear(4, 2)),
        "layer": nn.Sequential(Scaled(4, 2)),
        "hook": nn.Sequential(nn.Linear(4, 2)),
        "weights": nn.Sequential(nn.utils.parametrize.register_parametrization(nn.Linear(4, 2), "weight", nn.Tanh())),
    }[kind]
    if kind == "hook":
        model[0].register_forward_hook(lambda module, args, result: 5 * result)
    parts = [value.detach().expand(3, *value.shape) for value in model.parameters()]
    x = torch.randn(3, 7, 4)
    torch.testing.assert_close(stacked(model).forward(parts, x), torch.stack([model(each) for each in x]))
    assert kind in ("hook", "weights") or layers(model) is None


def test_what_can_be_stacked():
    assert layers(build("mlp")) is not None
    assert layers(build("logistic")) is not None
    assert layers(build("adult-mlp")) is not None
    assert layers(build("adult-mlp", dropout=0.5)) is None
    assert layers(build("digits-cnn")) is None
    assert stackable(mlp(0))
    assert not stackable(replace(mlp(0), microbatch=8))
    with pytest.raises(InvalidInput, match="one architecture"):
        stacked_networks([build("mlp", hidden=8), build("mlp", hidden=9)])
