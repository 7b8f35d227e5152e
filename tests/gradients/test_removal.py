"""What a study does not meet is found at random steps: ways back that mix, what chance decides, masked results."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sordina.errors import Unsupported
from sordina.gradients import Engine, _calls, _following, _study
from sordina.gradients.structure import Mixing
from sordina.privacy import Budget
from sordina.queries import VectorQuery
from sordina.training import Trainer
from sordina.training.losses import FailingRows


class LaterMixed(torch.autograd.Function):
    """The identity, whose way back adds the mean over a large batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 10 * gradient.mean(0) if len(gradient) >= 11 else gradient


class BackwardMixes(nn.Module):
    """Says nothing of it on its way forward, nor in batches as small as a study's."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.first(x).tanh()
        if self.kind == "hook" and len(hidden) >= 11 and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient + 10 * gradient.mean(0))
        return self.last(LaterMixed.apply(hidden) if self.kind == "function" else hidden)


@pytest.fixture
def unfollowed(monkeypatch):
    """Studies do not follow operations, which would find what a removal test is to find."""
    for module in (_study, _following):
        monkeypatch.setattr(module, "brings_together", lambda *args: "")
    monkeypatch.setattr(_calls, "still_apart", lambda *args: True)


@pytest.mark.parametrize("kind", ["hook", "function", "sound"])
def test_a_backward_that_mixes_only_in_large_batches_is_found(kind, unfollowed):
    """It had been accepted, at 1.43 times the bound. Whether a test falls into so few steps is chance: three tries."""
    data = torch.randn(500, 6), torch.randint(0, 3, (500,))
    found = 0
    for _ in range(3):
        trainer = Trainer(
            BackwardMixes(kind), nn.functional.cross_entropy, Budget(3, 1e-5), batch_size=32, steps=40,
            track_epsilon=False,
        )  # fmt: skip
        try:
            trainer.fit(data)
        except Mixing:
            found += 1
            break
    assert found == (kind != "sound")


class WayBack(torch.autograd.Function):
    """The identity with any way back."""

    @staticmethod
    def forward(ctx, x, back):
        ctx.back = back
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None


def _only_single(gradient):
    if gradient.dtype == torch.float64:
        raise TypeError("single precision only")
    return gradient + 10 * gradient.mean(0)


def _refuses_zeros(gradient):
    if bool((gradient == 0).all(1).any()):
        raise ValueError("a row of zeros")
    return gradient


MIXING_WAYS = {
    "mean": lambda g: g + 10 * g.mean(0),
    "largest": lambda g: g / (1 + g.abs().max()),
    "size": lambda g: g * len(g),
    "neighbour": lambda g: g + g.roll(1, 0),
    "single precision only": _only_single,
}
QUIET_WAY = {"quiet": lambda g: g * (1e-3 / g.abs().max().clamp(max=1e-3))}
"""Lifts gradients that are all small, as those of a trained model are and a study's never were: 62 times the bound."""
APART_WAYS = {
    "clipped": lambda g: g / g.norm(dim=1, keepdim=True).clamp_min(0.1),
    "sign": lambda g: g.sign(),
    "rounded": lambda g: (g * 64).round() / 64,
}


class ManyWays(nn.Module):
    """Forty layers; below the first the way back is another one, in batches of ``least`` or more."""

    def __init__(self, back, least=11):
        super().__init__()
        self.back, self.least = back, least
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(40))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = x + layer(x).tanh()
            if number == 0 and len(x) >= self.least:
                x = WayBack.apply(x, self.back)
        return x


@pytest.mark.parametrize("way", MIXING_WAYS)
def test_a_way_back_that_mixes_is_found_at_once(way, unfollowed):
    """All of them had a good chance to stay: the first of 80 parameters was rarely looked at, and failures were not."""
    model = ManyWays(MIXING_WAYS[way])
    with Engine(model), pytest.raises(Mixing, match="gradients"):
        model(torch.randn(32, 6))


def test_a_way_back_that_mixes_small_gradients_is_found(unfollowed):
    model = ManyWays(QUIET_WAY["quiet"], least=0)
    with Engine(model), pytest.raises(Mixing, match="gradients"):
        _called(model, 100, 6)


@pytest.mark.parametrize("way", [*MIXING_WAYS.values(), *QUIET_WAY.values()], ids=[*MIXING_WAYS, *QUIET_WAY])
def test_where_operations_are_followed_it_is_refused_or_runs_one_sample_at_a_time(way):
    model = ManyWays(way, least=11)
    with Engine(model) as engine:
        try:
            model(torch.randn(32, 6))
        except Mixing:
            return
        assert engine._calls._last.alone


@pytest.mark.parametrize("way", APART_WAYS)
def test_ways_back_of_samples_apart_are_no_mixing(way, caplog):
    model = ManyWays(APART_WAYS[way], least=0)
    with Engine(model) as engine:
        for _ in range(20):
            engine.record(model(torch.randn(32, 6)).square().sum(1))
    assert not caplog.records


def test_a_way_back_that_cannot_be_tested_is_gone_by_each_sample_alone(caplog):
    model, x = ManyWays(_refuses_zeros), torch.randn(32, 6)
    with Engine(model) as engine:
        norms = engine.record(model(x).square().sum(1)).scalars().norms
    assert "one sample at a time" in caplog.text
    with Engine(model) as engine:
        alone = torch.cat([engine.record(model(x[n : n + 1]).square().sum(1)).scalars().norms for n in range(32)])
    assert torch.allclose(norms, alone, rtol=1e-4)


def _called(model, times, width=6):
    for _ in range(times):
        model(torch.randn(16, width))


class Tossed(nn.Module):
    """Mixes by chance: a random order from random numbers, the third of four ways, one time in fifty."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(6, 4)

    def forward(self, x):
        if self.kind == "order":
            return self.layer(x / 2 + x[torch.rand(len(x)).argsort(stable=True)] / 2)
        if self.kind == "own order":
            return self.layer(x.gather(1, torch.rand(x.shape).argsort(1)))
        low, high = (0.5, 0.75) if self.kind == "third" else (0.0, 0.02)
        return self.layer(x - x.mean(0) if low <= float(torch.rand(())) < high else x)


@pytest.mark.parametrize("kind", ["order", "third", "seldom"])
def test_what_random_numbers_decide_is_tried(kind):
    """Constants in their place had hidden it: 3.9 to 22 times the bound."""
    model = Tossed(kind)
    with Engine(model), pytest.raises(Mixing):
        model(torch.randn(16, 6))


def test_the_random_numbers_of_a_step_count(monkeypatch):
    """Where a study did not meet it, the removal test does, with the numbers that the batch had."""
    monkeypatch.setattr("sordina.gradients._study.TOSSES", 0)
    monkeypatch.setattr("sordina.gradients._study.brings_together", lambda *_: "")  # which sees it in any study
    model = Tossed("order")
    with Engine(model), pytest.raises(Mixing, match="the steps since"):
        _called(model, 40)


def test_an_order_of_ones_own_is_no_mixing():
    model = Tossed("own order")
    with Engine(model) as engine:
        for _ in range(20):
            engine.record(model(torch.randn(16, 6)).square().sum(1))


class Masked(nn.Module):
    """Whole numbers as inputs, one class masked, the others centred by the largest of the batch."""

    def __init__(self, low, mixing):
        super().__init__()
        self.low, self.mixing, self.table, self.layer = low, mixing, nn.Embedding(50, 8), nn.Linear(8, 5)

    def forward(self, x):
        scores = self.layer(self.table(x).mean(1))
        largest = scores.detach().amax(0) if self.mixing else 0
        return (scores - largest).masked_fill(torch.tensor([False] * 4 + [True]), self.low)


@pytest.mark.parametrize("low", [-1e9, torch.finfo(torch.float32).min])
def test_a_masked_class_hides_no_mixing(low):
    """It had: the others were compared to its size. 3.6 times the bound."""
    tokens = torch.randint(0, 50, (16, 7))
    with Engine(sound := Masked(low, mixing=False)):
        sound(tokens)
    with Engine(model := Masked(low, mixing=True)), pytest.raises(Mixing):
        model(tokens)


@pytest.mark.parametrize("way", [lambda g: g / g.norm(), lambda g: torch.nan_to_num(g / g.abs().max())])
def test_losses_whose_gradients_are_divided_by_that_of_the_batch_are_refused(way):
    """0 / 0 had hidden it from a probe of "not a number": 60 times the bound."""
    model = nn.Linear(6, 4)
    with Engine(model) as engine:
        outputs = model(torch.randn(16, 6))
        outputs.register_hook(way)
        losses = outputs.square().sum(1)
        with pytest.raises(Mixing, match="loss of one sample"):
            engine.record(losses)


def test_noise_on_the_gradients_of_losses_is_no_mixing():
    model = nn.Linear(6, 4)
    with Engine(model) as engine:
        for _ in range(5):
            outputs = model(torch.randn(16, 6))
            outputs.register_hook(lambda g: g + torch.randn_like(g))
            engine.record(outputs.square().sum(1))


class Remembers(nn.Module):
    """A hook on a parameter divides by the largest norm it has seen."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.largest = nn.Linear(6, 8), nn.Linear(8, 4), 0.0
        self.first.weight.register_hook(self.hook)

    def hook(self, gradient):
        self.largest = max(0.999 * self.largest, float(gradient.norm()))
        return gradient / (self.largest + 1e-12)

    def forward(self, x):
        return self.last(self.first(x).tanh())


def test_a_way_back_that_remembers_is_refused():
    """One sample at a time, what one was had been carried to the next: 62 times the bound."""
    model = Remembers()
    with Engine(model), pytest.raises(Unsupported, match="keeps data between batches"):
        model(torch.randn(16, 6))


def test_a_backward_pass_by_chance_adds_no_more_than_was_measured(monkeypatch):
    """Large models run each sample back twice, for its norm and for the sum: 4700 times the bound."""
    monkeypatch.setattr("sordina.gradients.one_by_one.KEPT_BYTES", 0)
    model, worst = ManyWays(lambda g: g * (torch.rand(len(g), 1) < 0.2) * 5, least=0), 0.0
    with Engine(model) as engine:
        for _ in range(3):
            tape = engine.record(model(torch.randn(8, 6)).square().sum(1))
            weights = 0.01 / tape.scalars().norms.clamp_min(0.01)
            for unit in range(3):
                only = torch.zeros(8).index_copy_(0, torch.tensor([unit]), weights[unit : unit + 1])
                worst = max(worst, float(tape.contract([VectorQuery(only)])[0].norm()) / 0.01)
    assert worst <= 1 + 1e-5


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def inner(self, x):
        return nn.functional.dropout(self.middle(x).relu(), 0.1)

    def forward(self, x):
        return self.last(checkpoint(self.inner, self.first(x).relu(), use_reentrant=False))


def test_dropout_inside_of_a_checkpoint():
    """It had been refused: computed again in the backward pass, it dropped what it had not dropped before."""
    model = Checkpointed()
    with Engine(model) as engine:
        for _ in range(5):
            engine.record(model(torch.randn(16, 6)).square().sum(1))


def test_a_test_of_the_losses_forgets_no_batch():
    """Dropout and a loss that refuses "not a number": next to no run had come to its end."""
    data = torch.randn(100, 3), torch.randint(0, 2, (100, 1)).float()
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1), nn.Sigmoid())
    trainer = Trainer(model, nn.functional.binary_cross_entropy, Budget(3, 1e-5), batch_size=60, steps=40)
    trainer.fit(data)


def test_a_row_that_fails_silences_nobody_else():
    """Without gradients such a model fails on every row, so all of them had been left out."""

    class OnlyWithGradients(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x):
            x = x.detach().requires_grad_(True)
            return torch.autograd.grad(self.inner(x).sum(), x, create_graph=True)[0]

    def finite(outputs, targets):
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError("not finite")
        return (outputs - targets).square().mean(1)

    model = OnlyWithGradients()
    rows = torch.randn(8, 3), torch.randn(8, 3)
    rows[0][3] = float("nan")
    with Engine(model) as engine:
        losses = FailingRows(model, lambda batch: finite(model(batch[0]), batch[1]), engine)(rows)
    assert losses.nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 7]


def dropped(x: torch.Tensor, rate: float) -> torch.Tensor:
    """Dropout in code that was compiled."""
    return torch.nn.functional.dropout(x, rate, True)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    dropped = torch.jit.script(dropped)


class Draws(nn.Module):
    """Every sample draws numbers of its own."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.steps, self.layer = kind, nn.Embedding(10, 6), nn.Linear(6, 4)

    def forward(self, x):
        if self.kind == "time":
            return self.layer(x + self.steps(torch.randint(0, 10, (len(x),))))
        if self.kind == "category":
            return self.layer(x + self.steps(torch.multinomial(torch.ones(len(x), 10), 1)[:, 0]))
        if self.kind == "numpy":
            return self.layer(x * torch.from_numpy(np.random.rand(len(x), 1) < 0.9))  # noqa: NPY002
        if self.kind == "compiled":
            return self.layer(dropped(x, 0.3))
        if self.kind == "beta":
            return self.layer(x * torch.distributions.Beta(torch.ones(len(x), 6), 1.0).sample())
        if self.kind == "learned keys":
            keys = self.steps.weight[None]
            return self.layer(nn.functional.scaled_dot_product_attention(x[:, None], keys, keys, dropout_p=0.2)[:, 0])
        if self.kind == "shape":
            return self.layer(torch._standard_gamma(nn.functional.softplus(x + self.steps.weight[0])))
        return self.layer(x * torch.distributions.Gamma(torch.ones(len(x), 6), 1.0).sample())


KINDS = ["time", "category", "gamma", "numpy", "compiled", "beta", "learned keys", "shape"]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_ones_own_are_no_mixing(kind):
    """A diffusion model's time, for one: it had been refused."""
    model = Draws(kind)
    with Engine(model) as engine:
        for _ in range(20):
            engine.record(model(torch.randn(16, 6)).square().sum(1))


class ScaledAgainstOverflow(nn.Module):
    """Divides by the largest number of the batch, in one precision only."""

    def __init__(self, kind, finite):
        super().__init__()
        self.kind, self.finite = kind, finite
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.first(x).relu()
        if hidden.dtype == self.kind:
            seen = hidden.detach().abs()
            hidden = hidden / (seen[seen.isfinite()] if self.finite else seen).max().clamp(min=1)
        return self.last(hidden)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("finite", [True, False])
def test_mixing_in_one_precision_is_found_at_once(kind, finite):
    """Tests decided in double precision, where the model goes another way: 49 times the bound in bfloat16."""
    model = ScaledAgainstOverflow(kind, finite).to(kind)
    with Engine(model), pytest.raises(Mixing):
        model(torch.randn(64, 6).to(kind))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_short_numbers_are_no_mixing(kind):
    """Experts are given other numbers of rows, which round otherwise."""
    model = nn.Sequential(Experts(), nn.LayerNorm(6), Experts(), nn.Linear(6, 3)).to(kind)
    with Engine(model) as engine:
        for _ in range(30):
            engine.record(model(torch.randn(32, 6).to(kind)).square().sum(1).float())


class Experts(nn.Module):
    """Every sample goes through one of four layers, those of a layer together."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        result = torch.zeros_like(x)
        which = self.gate(x).argmax(1)
        for number, expert in enumerate(self.experts):
            rows = (which == number).nonzero()[:, 0]
            result = result.index_add(0, rows, expert(x[rows]))
        return result


class WarmsUp(nn.Module):
    """Counts its calls, and opens a gate by them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (self.calls / 100)


def test_a_count_of_calls_is_no_memory_of_data():
    model = WarmsUp()
    with Engine(model, public_buffers=["calls"]) as engine:
        for _ in range(20):
            engine.record(model(torch.randn(16, 6)).square().sum(1))


class CountsAlone(WarmsUp):
    """The same in a buffer, a number and a list, with random numbers for which it runs one sample at a time."""

    def __init__(self):
        super().__init__()
        self.number, self.list = 0, []

    def forward(self, x):
        self.number += 1
        self.list.append(self.number)
        opened = self.number / 10 + len(self.list) / 10
        return super().forward(x * torch.from_numpy(np.random.random(x.shape)).to(x)) * opened  # noqa: NPY002


def test_one_sample_at_a_time_a_count_of_calls_is_one_of_batches():
    """It had counted samples: refused as mixing 24 times in 24, or what the others got hung on how many came before."""
    model = CountsAlone()
    with Engine(model, public_buffers=["calls"]) as engine:
        for _ in range(10):
            engine.demand_tests()
            engine.record(model(torch.randn(16, 6)).square().sum(1))
    assert (model.number, int(model.calls), model.list) == (10, 10, list(range(1, 11)))


def test_a_batch_with_a_row_that_fails_is_counted_once():
    """It had been twice, so that a removal test with a row that is no number called annealing by calls mixing."""
    model = CountsAlone()

    def finite(batch):
        outputs = model(batch)
        if not outputs.isfinite().all():
            raise ValueError("not a number")
        return outputs.square().sum(1)

    FailingRows(model, finite, None)(torch.full((4, 6), 2.0).index_fill(0, torch.tensor([1]), float("nan")))
    assert (model.number, int(model.calls), model.list) == (1, 1, [1])


class Twice(nn.Module):
    """A weight times itself: its gradient is pulled back to it through the graph of the forward pass."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return x @ self.weight @ self.weight.T


def test_double_precision_in_a_test_leaves_the_batch_its_graph(monkeypatch):
    """Parameters that were doubled for a while are not those of the graph before: runs had ended in an error."""
    monkeypatch.setattr("sordina.gradients.removal._ALIKE", -1.0)
    model, x = Twice(), torch.randn(4, 6)
    with Engine(model) as engine:
        norms = engine.record(model(x).square().sum(1)).scalars().norms
    alone = [torch.autograd.grad(model(row[None]).square().sum(), model.weight)[0].norm() for row in x]
    assert torch.allclose(norms, torch.stack(alone), rtol=1e-4)
