"""A model that is called several times in one step: two views of a sample, two texts, its own result once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.gradients._hooks import leaf_edges
from sordina.queries import VectorQuery

ROWS, BOUND = 6, 0.05
Losses = Callable[[nn.Module, Tensor], Tensor]


def dropped(rate: float = 0.5) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(rate), nn.Linear(8, 5))


def consistent(model: nn.Module, x: Tensor) -> Tensor:
    """R-Drop: two draws of dropout are to agree."""
    one, two = model(x).log_softmax(1), model(x).log_softmax(1)
    far = kl_div(one, two, reduction="none", log_target=True) + kl_div(two, one, reduction="none", log_target=True)
    return far.sum(1) - one[:, 0]


def chained(model: nn.Module, x: Tensor) -> Tensor:
    """The second call is of what the first said."""
    return model(model(x)).square().sum(1)


def halves(model: nn.Module, x: Tensor) -> Tensor:
    """The second call has another shape."""
    return (model(x) * model(torch.stack([x, -x], 1)).sum(1)).sum(1)


class Weighted(nn.Module):
    """Has parameters that only functions use: their gradient is pulled back through these."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
        self.scale, self.drop = nn.Parameter(torch.randn(5)), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.inner(x) * self.scale.exp()).tanh()


class Sometimes(nn.Module):
    """Runs one sample at a time where it is called on sequences: a length depends on values there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.drop, self.out = nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.first(x).tanh())
        if x.dim() == 3:
            hidden = hidden * (1 + 0 * len(x[x > 0]))
        return self.out(hidden)


def truth(model: nn.Module, losses: Tensor) -> Tensor:
    """The gradients of losses that were computed, whatever was done to the parameters' precision meanwhile."""
    edges, rows = leaf_edges([losses]), []
    for each in losses:
        parts: list[Tensor] = []
        for parameter in model.parameters():
            asked: list[Any] = edges.get(id(parameter), [])
            found = torch.autograd.grad(each, asked, retain_graph=True, allow_unused=True)
            total = sum((one for one in found if one is not None), torch.zeros_like(parameter))
            parts.append(total.flatten())
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def vectors(engine: Engine, losses: Tensor) -> Tensor:
    tape = engine.record(losses)
    return torch.stack(tape.contract([VectorQuery(own) for own in torch.eye(len(losses))]))


@pytest.mark.parametrize("losses", [consistent, chained, halves])
@pytest.mark.parametrize("make", [dropped, Weighted])
@pytest.mark.parametrize("study", [False, True], ids=["", "studied in between"])
def test_gradients_are_those_of_the_losses_that_were_computed(
    losses: Losses, make: Callable[[], nn.Module], study: bool
) -> None:
    """The model ran again, with other draws of dropout (a gradient off by 1.15 of its size), and one of a result that
    was an argument counted twice."""
    model, x = make(), torch.randn(ROWS, 5)
    with Engine(model) as engine:
        for rows in (ROWS, ROWS, 1):
            engine._calls.study.left = 2 if study else 10**9
            now = losses(model, x[:rows])
            expected = truth(model, now)
            torch.testing.assert_close(vectors(engine, now), expected, rtol=1e-4, atol=1e-5)
        assert not engine._told


def test_calls_of_which_one_is_alone_are_all_made_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs again draws anew, so nothing does from the second step on."""
    model, x, again = Sometimes(), torch.randn(ROWS, 5), list[int]()
    with Engine(model) as engine:
        once_more = engine._again_apart
        monkeypatch.setattr(engine, "_again_apart", lambda *how: again.append(1) or once_more(*how))
        for _ in range(3):
            assert vectors(engine, halves(model, x)).any(1).all()
            assert again == [1]
    assert "another call of the same step" in caplog.text


class Caught(nn.Module):
    """Runs one sample at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dropped(0.0)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except IndexError:
            return x


@pytest.mark.parametrize("losses", [consistent, halves])
def test_a_study_between_calls_that_are_made_alone_cuts_nothing_off(losses: Losses) -> None:
    model, x = Caught(), torch.randn(ROWS, 5)
    expected = truth(model, losses(model, x))
    with Engine(model) as engine:
        for rows in (ROWS, ROWS, 1):
            engine._calls.study.left = 2
            found = vectors(engine, losses(model, x[:rows]))
            torch.testing.assert_close(found, expected[:rows], rtol=1e-4, atol=1e-5)
        assert engine._calls._last is not None
        assert engine._calls._last.alone


@pytest.mark.parametrize("make", [Caught, Sometimes])
def test_calls_on_results_are_refused_where_calls_are_made_alone(make: Callable[[], nn.Module]) -> None:
    """The way back from the second call to the first is cut there; its part of the gradient was left out."""
    model, x = make(), torch.randn(ROWS, 5)
    with Engine(model) as engine, pytest.raises(Unsupported, match="both calls inside"):
        engine.record(model(torch.stack([model(x), x], 1)).sum((1, 2)))


class Outside(nn.Module):
    """Is called on what one of its layers says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(5, 5), dropped(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_a_call_on_what_a_layer_says_has_the_layers_gradient() -> None:
    model, x = Outside(), torch.randn(ROWS, 5)

    def losses() -> Tensor:
        return model(model.layer(x)).square().sum(1)

    expected = truth(model, losses())
    with Engine(model) as engine:
        for _ in range(2):
            torch.testing.assert_close(vectors(engine, losses()), expected, rtol=1e-4, atol=1e-5)


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.out = nn.Embedding(30, 8), nn.Linear(8, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.words(words).tanh().mean(1))


@pytest.mark.parametrize("first", [True, False], ids=["at first", "by chance"])
def test_a_record_adds_the_same_alone_where_a_study_falls_on_the_second_call(first: bool) -> None:
    """The study had cut the first call off: 3.0 C with one of two equal texts gone."""
    short = torch.randint(0, 30, (1, 5)).repeat(2, 1)
    long, classes = torch.cat([short, short], 1), torch.tensor([0, 0])

    def losses(model: nn.Module, rows: int) -> Tensor:
        one, two = cross_entropy(model(short[:rows]), classes[:rows], reduction="none"), model(long[:rows])
        return one + 0.3 * cross_entropy(two, 1 - classes[:rows], reduction="none")

    def added(engine: Engine, model: nn.Module, rows: int) -> Tensor:
        tape = engine.record(losses(model, rows))
        return tape.contract([VectorQuery((BOUND / tape.scalars().norms).clamp(max=1))])[0]

    sums = []
    for rows in (2, 1):
        model = Texts()
        with Engine(model) as engine:
            if not first:
                added(engine, model, 2)
                engine._calls.study.left = 2
            sums.append(added(engine, model, rows))
    assert float((sums[0] - sums[1]).norm()) / BOUND < 1.00001


class Scaled(nn.Module):
    """A block whose scale belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.scale = nn.Linear(5, 8), nn.Linear(8, 5), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).tanh()) * self.scale


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.block, self.out = Scaled(), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return self.out(hidden)


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_chained_calls_through_a_checkpoint(rows: int) -> None:
    """On the way from one call to the other a checkpoint was computed again in another way, which is an error."""
    model, x = Checkpointed(), torch.randn(rows, 5)
    expected = truth(model, chained(model, x))
    with Engine(model) as engine:
        for _ in range(2):
            torch.testing.assert_close(vectors(engine, chained(model, x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [dropped, Scaled, Sometimes])
def test_tests_of_a_call_on_another_ones_result_leave_that_ones_graph(make: Callable[[], nn.Module]) -> None:
    """The way back of a removal test went on into the first call and freed its graph: a step then failed by chance."""
    model = make()
    with Engine(model) as engine:
        for _ in range(8):
            first = model(torch.randn(ROWS, 5))
            engine.demand_tests()
            assert vectors(engine, model(first).square().sum(1)).any(1).all()


class Filled(nn.Module):
    """Values that are missing get the batch's mean: it runs one sample at a time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.where(x == 0, x.mean(0), x)).tanh()
        return out


def test_a_model_that_runs_alone_does_so_without_gradients() -> None:
    """What it said without was of the whole batch, and a loss that aims at it moved by 6.1 times the bound."""
    model, x = Filled(), torch.randn(12, 5)
    x[:, 0], x[3] = 0, -900
    with Engine(model) as engine:
        said = []
        for rows in ([*range(12)], [row for row in range(12) if row != 3]):
            with torch.no_grad():
                target = model(x[rows])
            assert not target.requires_grad
            said.append(target[-8:])
            engine.record((model(x[rows]) * target).sum(1))
        assert torch.equal(*said)


def test_other_models_run_at_once_without_gradients(caplog: pytest.LogCaptureFixture) -> None:
    model, x, rows = nn.Linear(5, 3), torch.randn(ROWS, 5), list[int]()
    watching = register_module_forward_pre_hook(lambda _, given: rows.append(len(given[0])))  # not the model's own
    try:
        with Engine(model) as engine:
            for _ in range(3):
                with torch.no_grad():
                    rows.clear()
                    model(x[:4])
                    assert rows[-1] == 4
                engine.record(model(x).sum(1))
    finally:
        watching.remove()
    assert not caplog.text
