"""What somebody switches on between two steps, wherever the switch is kept, is studied before it is used."""

import enum
import gc
import random
import weakref
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordina.gradients import Engine
from sordina.gradients._switches import MOST_WAYS, Switches
from sordina.gradients.structure import Mixing

ON, FLAGS = False, {"centre": False}


class Space:
    centre = False


def turn_on() -> None:
    global ON
    ON = True


def says() -> bool:
    return ON


@dataclass
class Config:
    centre: bool = False
    inner: Any = None


class Slotted:
    __slots__ = ("centre",)

    def __init__(self) -> None:
        self.centre = False


class Stage(enum.IntEnum):
    FIRST = 0
    SECOND = 1


class Centring(nn.Module):
    """Centres samples over the batch if a test of its own says so."""

    on: Callable[["Centring"], Any]
    centre = False

    def __init__(self, **kept: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        for name, each in kept.items():
            setattr(self, name, each)

    def is_on(self) -> Any:
        return False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x - x.mean(0) if self.is_on() else x)
        return out


def kind(test: Callable[[Any], Any]) -> type[Centring]:
    """A class of its own, as its attributes change."""
    return type("Own", (Centring,), {"is_on": test, "__module__": __name__})


class ByGlobal(Centring):
    def is_on(self) -> Any:
        return ON


class ByGlobalDictionary(Centring):
    def is_on(self) -> Any:
        return FLAGS["centre"]


class ByFunction(Centring):
    def is_on(self) -> Any:
        return says()


class BySpace(Centring):
    def is_on(self) -> Any:
        return Space.centre


def by_cell() -> tuple[Centring, Callable[[], None]]:
    on = False

    def turn() -> None:
        nonlocal on
        on = True

    return kind(lambda self: on)(), turn


def made(test: Callable[[Any], Any], turn: Callable[[Any], Any], **kept: Any) -> tuple[Centring, Callable[[], Any]]:
    model = kind(test)(**kept)
    return model, lambda: turn(model)


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


SWITCHES: dict[str, Callable[[], tuple[Centring, Callable[[], Any]]]] = {
    "namespace": lambda: made(
        lambda m: m.config.centre, lambda m: put("centre", True)(m.config), config=SimpleNamespace(centre=False)
    ),
    "arguments": lambda: made(
        lambda m: m.config.centre, lambda m: put("centre", True)(m.config), config=Namespace(centre=False)
    ),
    "dataclass": lambda: made(lambda m: m.config.centre, lambda m: put("centre", True)(m.config), config=Config()),
    "inner config": lambda: made(
        lambda m: m.config.inner.centre, lambda m: put("centre", True)(m.config.inner), config=Config(False, Config())
    ),
    "slots": lambda: made(lambda m: m.config.centre, lambda m: put("centre", True)(m.config), config=Slotted()),
    "config replaced": lambda: made(lambda m: m.config.centre, put("config", Config(True)), config=Config()),
    "dictionary": lambda: made(lambda m: m.config["on"], lambda m: m.config.update(on=True), config={"on": False}),
    "inner dictionary": lambda: made(
        lambda m: m.config["a"]["on"], lambda m: m.config["a"].update(on=True), config={"a": {"on": False}}
    ),
    "list": lambda: made(lambda m: m.parts[1], lambda m: m.parts.__setitem__(1, True), parts=[False, False]),
    "set": lambda: made(lambda m: "centre" in m.flags, lambda m: m.flags.add("centre"), flags=set()),
    "class": lambda: made(lambda m: m.centre, lambda m: put("centre", True)(type(m))),
    "class below": lambda: made(lambda m: m.centre, lambda m: setattr(Centring, "centre", True)),
    "method of the class": lambda: made(lambda m: False, lambda m: put("is_on", lambda m: True)(type(m))),
    "function": lambda: made(lambda m: m.prepare is not None, put("prepare", torch.relu), prepare=None),
    "other function": lambda: made(lambda m: m.prepare(), put("prepare", lambda: True), prepare=lambda: False),
    "stage": lambda: made(lambda m: m.stage >= 1, put("stage", 1), stage=0),
    "enumerated": lambda: made(lambda m: m.stage >= 1, put("stage", Stage.SECOND), stage=Stage.FIRST),
    "epoch": lambda: made(lambda m: m.epoch >= 15, put("epoch", 15), epoch=14),
    "weight": lambda: made(lambda m: m.weight > 0, put("weight", 0.5), weight=0.0),
    "new attribute": lambda: made(lambda m: hasattr(m, "centres"), put("centres", True)),
    "tensor": lambda: made(lambda m: m.gate > 0, lambda m: m.gate.fill_(1), gate=torch.zeros(())),
    "buffer": lambda: made(lambda m: m.gate > 0, lambda m: m.gate.fill_(1), gate=nn.Buffer(torch.zeros(1))),
    "parameter at rest": lambda: made(
        lambda m: m.gate > 0,
        lambda m: m.gate.data.fill_(1),
        gate=nn.Parameter(torch.zeros(1), requires_grad=False),
    ),
    "layer's forward": lambda: made(
        lambda m: False, lambda m: put("forward", lambda x: torch.tanh(x - x.mean(0)))(m.net[1])
    ),
    "global": lambda: (ByGlobal(), turn_on),
    "global dictionary": lambda: (ByGlobalDictionary(), lambda: FLAGS.update(centre=True)),
    "global of a function": lambda: (ByFunction(), turn_on),
    "class as a space": lambda: (BySpace(), lambda: put("centre", True)(Space)),
    "cell": by_cell,
}


@pytest.fixture(autouse=True)
def _all_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ON", False)
    monkeypatch.setitem(FLAGS, "centre", False)
    monkeypatch.setattr(Space, "centre", False)
    monkeypatch.setattr(Centring, "centre", False)


def quiet(engine: Engine) -> None:
    """No random test is due."""
    engine._calls.removal.left = engine._calls.study.left = 10**9


def step(engine: Engine, model: nn.Module, x: Tensor) -> None:
    engine.record(model(x).square().sum(1))


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_studied_wherever_it_is_kept(name: str) -> None:
    """Only truths, texts and enumerated values right in a module were: 6.2 times the bound, until a random test."""
    (model, turn), x = SWITCHES[name](), torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(3):
            step(engine, model, x)
            quiet(engine)
        assert len(engine._calls.ways.known) == 1
        turn()
        with pytest.raises(Mixing, match="in company than alone"):
            model(x)


def test_a_hook_that_is_exchanged_is_studied() -> None:
    """Hooks were counted: 6.5 times the bound, until a random test. One made anew in every step is the same one."""
    model, x = Centring(), torch.randn(6, 5)
    with Engine(model) as engine:
        for _ in range(3):
            handle = model.net[1].register_forward_hook(lambda module, given, result: result * 2)
            step(engine, model, x)
            handle.remove()
            quiet(engine)
        assert len(engine._calls.ways.known) == 1
        model.net[1].register_forward_hook(lambda module, given, result: result - result.mean(0))
        with pytest.raises(Mixing, match="in company than alone"):
            model(x)


def test_after_many_texts_a_switch_is_studied() -> None:
    """Nothing was after 16 of them: 6.2 times the bound, until a random test."""
    model, x = kind(lambda m: m.centre)(phase="", centre=False), torch.randn(6, 5)
    with Engine(model) as engine:
        for epoch in range(40):
            model.phase = f"epoch {epoch}"  # type: ignore[assignment]
            step(engine, model, x)
        assert len(engine._calls.ways.known) <= MOST_WAYS
        quiet(engine)
        model.centre = True
        with pytest.raises(Mixing):
            model(x)


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.skip = nn.Linear(5, 5), False

    def forward(self, x: Tensor) -> Tensor:
        return x if self.skip else x + self.lin(x).tanh()


class Skips(Centring):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Skipping() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.net(x - x.mean(0) if self.centre else x)
        return out


def test_after_many_ways_to_skip_blocks_a_switch_is_studied() -> None:
    """As above: 7.4 times the bound."""
    model, x, chance = Skips(), torch.randn(6, 5), random.Random(0)
    with Engine(model) as engine:
        for _ in range(60):
            for block in model.blocks:
                block.skip = chance.random() < 0.3  # type: ignore[assignment]
            model(x)
        assert len(engine._calls.ways.known) <= MOST_WAYS + 6
        quiet(engine)
        model.centre = True
        with pytest.raises(Mixing):
            model(x)


def test_a_state_that_is_only_tested_stays_refused() -> None:
    """Who catches the error and goes on is told again, also after a batch of one sample, which shows nothing."""
    model, x = kind(lambda m: m.phase == "centred")(phase=""), torch.randn(6, 5)
    with Engine(model) as engine:
        for epoch in range(18):
            model.phase = f"epoch {epoch}"  # type: ignore[assignment]
            step(engine, model, x)
        known = len(engine._calls.ways.known)
        model.phase = "centred"  # type: ignore[assignment]
        model(x[:1])
        for _ in range(2):
            quiet(engine)
            with pytest.raises(Mixing):
                model(x)
        assert len(engine._calls.ways.known) <= known + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda model, step: put("step", step)(model),
        lambda model, step: put("weight", 1 / (step + 1))(model),
        lambda model, step: model.config.update(step=step, weight=step / 100),
        lambda model, step: model.history.append(1 / (step + 1)),
        lambda model, step: model.config.update({f"step {step}": step}),
        lambda model, step: put("made", step)(type(model)),
        lambda model, step: put("draw", lambda: step)(model),
    ],
)
def test_what_changes_all_the_time_is_not_studied_all_the_time(change: Callable[[Any, int], None]) -> None:
    model, x = kind(lambda m: False)(config={}, history=[]), torch.randn(6, 5)
    with Engine(model) as engine:
        for number in range(100):
            change(model, number)
            model(x)
        assert len(engine._calls.ways.known) <= 10


class Counting(Centring):
    """Keeps numbers of its own."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.config = getattr(self, "calls", 0) + 1, {"calls": getattr(self, "calls", 0)}
        return super().forward(x)


def test_what_a_model_counts_itself_is_no_switch() -> None:
    model, x = Counting(mode="plain"), torch.randn(6, 5)
    with Engine(model) as engine:
        for number in range(20):
            model.mode = "plain" if number % 3 else "other"  # type: ignore[assignment]
            model(x)
        assert len(engine._calls.ways.known) == 2


def test_nothing_a_model_leaves_behind_is_held() -> None:
    """No graph lives longer than without."""

    class Leaving(Centring):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.net[0](x)
            self.kept, self.inside, self.read = SimpleNamespace(hidden=hidden), {"hidden": [hidden]}, lambda: hidden
            out: Tensor = self.net[2](F.relu(hidden))
            return out

    model, x = Leaving(), torch.randn(6, 5)
    switches = Switches(model)
    model(x)
    switches.look()
    alive = weakref.ref(model.kept.hidden)
    del model.kept, model.inside, model.read
    gc.collect()
    assert alive() is None
