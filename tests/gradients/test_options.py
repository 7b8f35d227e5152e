"""Arguments of a model that are no tensors: what it does is studied for each kind of them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordina.gradients import Engine
from sordina.gradients._switches import MOST_WAYS
from sordina.gradients.structure import Mixing


class Mode(enum.Enum):
    PLAIN = "plain"
    CENTRED = "centred"


def as_it_is(x: Tensor) -> Tensor:
    return x


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


class Optional(nn.Module):
    """Centres samples over the batch if its second argument says so."""

    def __init__(self, says: Callable[[Any], bool]) -> None:
        super().__init__()
        self.layer, self.says = nn.Linear(5, 3), says

    def forward(self, x: Tensor, option: Any) -> Tensor:
        out: Tensor = self.layer(centred(x) if self.says(option) else x)
        return out


def offset(by: bool) -> Callable[[], bool]:
    return lambda: by


OPTIONS: dict[str, tuple[Any, Any, Callable[[Any], bool]]] = {
    "member": (Mode.PLAIN, Mode.CENTRED, lambda option: option is Mode.CENTRED),
    "bytes": (b"plain", b"centred", lambda option: option == b"centred"),
    "type": (torch.float32, torch.float64, lambda option: option is torch.float64),
    "set": ({"plain"}, {"centred"}, lambda option: "centred" in option),
    "slice": (slice(2), slice(3), lambda option: option.stop == 3),
    "object": (SimpleNamespace(on=False), SimpleNamespace(on=True), lambda option: option.on),
    "inner object": (
        SimpleNamespace(inner=SimpleNamespace(on=False)),
        SimpleNamespace(inner=SimpleNamespace(on=True)),
        lambda option: option.inner.on,
    ),
    "function": (as_it_is, centred, lambda option: option is centred),
    "closure": (offset(False), offset(True), lambda option: option()),
    "partial": (functools.partial(bool, 0), functools.partial(bool, 1), lambda option: option()),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_was_not_there_before_is_studied(name: str) -> None:
    """Options were told by their type alone, so that only random tests saw what another one of it does."""
    before, after, says = OPTIONS[name]
    model, x = Optional(says), torch.randn(6, 5)
    with Engine(model) as engine:
        engine.record(model(x, before).square().sum(1))
        engine._calls.removal.left = engine._calls.study.left = 10**9  # no random test is due
        with pytest.raises(Mixing, match="in company than alone"):
            model(x, after)


def test_an_option_that_counts_steps_is_not_studied_in_every_one() -> None:
    model, x = Optional(lambda option: False), torch.randn(6, 5)
    with Engine(model) as engine:
        for step in range(11, 19):
            engine.record(model(x, SimpleNamespace(step=step, weight=1 / (step + 1), inner={"seen": step})).sum(1))
        assert len(engine._calls.ways.known) < 5


class Part(nn.Module):
    """Is looked at."""


class Switched(nn.Module):
    """Centres samples over the batch if an attribute of its part says so, and has attributes of its own that change."""

    def __init__(self, off: Any) -> None:
        super().__init__()
        self.layer, self.part = nn.Linear(5, 3), Part()
        self.part.mode, self.off, self.began, self.text = off, off, False, ""  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        self.began, self.text = True, self.text + "." * self.training
        out: Tensor = self.layer(x if self.part.mode == self.off else centred(x))
        return out


@pytest.mark.parametrize("switch", [(False, True), ("plain", "centred"), (Mode.PLAIN, Mode.CENTRED)])
def test_what_is_switched_on_between_two_steps_is_studied(switch: tuple[Any, Any]) -> None:
    """It was seen at random tests only: 9.4 times the bound until one is due."""
    model, x = Switched(switch[0]), torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(3):
            engine.record(model(x).square().sum(1))
            engine._calls.removal.left = engine._calls.study.left = 10**9  # no random test is due
        assert len(engine._calls.ways.known) == 1
        model.part.mode = switch[1]
        with pytest.raises(Mixing, match="in company than alone"):
            model(x)
        model.part.mode = switch[0]
        engine.record(model(x).square().sum(1))
        known = len(engine._calls.ways.known)
        model.eval()(x)
        model.train()
        engine.record(model(x).square().sum(1))
        assert len(engine._calls.ways.known) == known


def test_a_text_that_is_another_one_in_every_step_is_not_studied_for_ever() -> None:
    model, x = Switched(False), torch.randn(6, 5)
    with Engine(model) as engine:
        for step in range(30):
            model.name = str(step)  # type: ignore[assignment]
            engine.record(model(x).square().sum(1))
        assert len(engine._calls.ways.known) <= MOST_WAYS


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_a_number_in_a_tensor_that_opens_a_gate_is_studied(shape: tuple[int, ...]) -> None:
    """Manifold mixup after a warm-up, with a weight as `Beta.sample` gives it: 2.5 times the bound."""
    model, x = Optional(lambda option: bool((option < 1).any())), torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(3):
            engine.record(model(x, torch.ones(shape)).square().sum(1))
            engine._calls.removal.left = engine._calls.study.left = 10**9  # no random test is due
        assert len(engine._calls.ways.known) == 1
        with pytest.raises(Mixing, match="in company than alone"):
            model(x, torch.full(shape, 0.5))


@pytest.mark.parametrize("counted", [int, torch.tensor, lambda step: torch.arange(step, step + 5)])
def test_what_counts_steps_is_not_studied_in_every_one(counted: Callable[[int], Any]) -> None:
    """A whole number among the arguments was: a step took 43 times as long, and what was learned was kept for ever."""
    model, x = Optional(lambda option: False), torch.randn(6, 5)
    with Engine(model) as engine:
        for step in range(100):
            engine.record(model(x, counted(step)).square().sum(1))
        assert len(engine._calls.ways.known) < 45


def test_a_hook_that_comes_between_two_steps_is_studied() -> None:
    """Manifold mixup hangs one on a layer for some steps."""
    model, x = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(3):
            engine.record(model(x).square().sum(1))
            engine._calls.removal.left = engine._calls.study.left = 10**9  # no random test is due
        handle = model[1].register_forward_hook(lambda _, given, result: result + result.flip(0))
        with pytest.raises(Mixing, match="in company than alone"):
            model(x)
        handle.remove()
        engine.record(model(x).square().sum(1))
        model[1].register_forward_hook(lambda _, given, result: result * 2)
        engine.record(model(x).square().sum(1))
        assert len(engine._calls.ways.known) == 2
