"""Attributes of a model that no code of it reads are no switches; those that any code reads for it are."""

from functools import lru_cache, partial, partialmethod
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordina.gradients import Engine
from sordina.gradients._study import Study
from sordina.gradients.structure import Mixing


class Quiet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.global_step, self.history = 0, list[float]()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("make", [Quiet, lambda: nn.Sequential(nn.Linear(6, 2))])
def test_what_a_loop_leaves_on_a_model_and_no_code_of_it_reads_is_no_switch(make, monkeypatch):
    """Each of 64 counts had the model studied or tested: half a second a step of a small BERT."""
    learned, learn = list[int](), Study.learn
    monkeypatch.setattr(Study, "learn", lambda *given: learned.append(1) or learn(*given))
    model, x = make(), torch.randn(5, 6)
    with Engine(model) as engine:
        for step in range(20):
            engine._calls.removal.left = engine._calls.study.left = 10**9
            model.global_step = step
            model.history = [*getattr(model, "history", ()), step / 3]
            engine.record(model(x).sum(1)).scalars()
    assert len(learned) == 1


class Helper:
    def read(self, model: nn.Module) -> bool:
        return model.flag


class Holding:
    """Reads a flag by whatever it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def ask(self, *given: Any) -> Any:
        return self.held(*given)


def by_function(model: nn.Module) -> bool:
    return model.flag


def centred(model: nn.Module, x: Tensor, extra: int) -> Tensor:
    return model.layer(x - x.mean(0) if model.flag else x)


BY_NAME = {"read": by_function}
NESTED = {"deep": [{"read": (by_function,)}]}
PARTLY, REMEMBERED = partial(by_function), lru_cache(0)(by_function)
HOLDING, GETTER = Holding(by_function), attrgetter("flag")


class Asking(nn.Module):
    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(6, 2), held

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0) if self.on() else x)

    def on(self) -> bool:
        return False


class ByHelper(Asking):
    def on(self) -> bool:
        return self.held.read(self)


class ByTable(Asking):
    def on(self) -> bool:
        return BY_NAME["read"](self)


class ByNested(Asking):
    def on(self) -> bool:
        return NESTED["deep"][0]["read"][0](self)


class ByGetattr(Asking):
    def on(self) -> bool:
        return getattr(self, "fl" + "ag")


class ByPartial(Asking):
    def on(self) -> bool:
        return PARTLY(self)


class ByMemory(Asking):
    def on(self) -> bool:
        return REMEMBERED(self)


class ByHolding(Asking):
    def on(self) -> bool:
        return HOLDING.ask(self)


class ByHeld(Asking):
    def on(self) -> bool:
        return self.held.ask(self)


class ByGetter(Asking):
    def on(self) -> bool:
        return GETTER(self)


class ByImport(Asking):
    def on(self) -> bool:
        from tests.gradients import reads_flags

        return reads_flags.of(self)


class ByName(Asking):
    def on(self) -> bool:
        from tests.gradients.reads_flags import of

        return of(self)


class ByMethodMadeOfAFunction(nn.Module):
    forward = partialmethod(centred, extra=1)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)


class ByMatch(Asking):
    def on(self) -> bool:
        match self:
            case Asking(flag=True):
                return True
        return False


ASKING = {
    "helper": lambda: ByHelper(Helper()),
    "a helper that holds a function": lambda: ByHeld(Holding(by_function)),
    "a helper in a helper": lambda: ByHeld(Holding(Holding(by_function).ask)),
    "a partial in a list in a helper": lambda: ByHeld(Holding([partial(by_function)].__getitem__(0))),
    **{each.__name__: each for each in (ByTable, ByNested, ByGetattr, ByPartial, ByMemory, ByHolding, ByGetter)},
    **{each.__name__: each for each in (ByImport, ByName, ByMethodMadeOfAFunction, ByMatch)},
}


@pytest.mark.parametrize("how", ASKING)
def test_a_switch_that_others_read_for_a_model_is_one(how):
    model, x = ASKING[how](), torch.randn(5, 6)
    model.flag = False
    with Engine(model) as engine:
        engine.record(model(x).sum(1)).scalars()
        engine._calls.removal.left = engine._calls.study.left = 10**9
        model.flag = True
        with pytest.raises(Mixing):
            engine.record(model(x).sum(1)).scalars()


class Shy:
    """Says nothing of its slots but errors."""

    __slots__ = ("empty",)

    def __getattr__(self, name: str) -> Any:
        raise (AttributeError if name.startswith("__") else TypeError)("nobody asks me")


def test_objects_that_fail_when_they_are_asked_stop_nobody():
    model, x = ByHelper(Helper()), torch.randn(5, 6)
    model.held.shy, model.flag = Shy(), False
    with Engine(model) as engine:
        norms = [engine.record(model(x).sum(1)).scalars().norms for _ in range(2)]
    assert torch.equal(*norms)
    assert norms[0].min() > 0


class Exchanged(Asking):
    def on(self) -> bool:
        return READ_BY(self)


def nobody(model: nn.Module) -> bool:
    return False


READ_BY = nobody


def test_a_function_that_was_exchanged_may_read_other_names(monkeypatch):
    model, x = Exchanged(), torch.randn(5, 6)
    model.flag = False
    with Engine(model) as engine:
        engine.record(model(x).sum(1)).scalars()
        engine._calls.removal.left = engine._calls.study.left = 10**9
        monkeypatch.setitem(globals(), "READ_BY", by_function)
        engine.record(model(x).sum(1)).scalars()
        engine._calls.removal.left = engine._calls.study.left = 10**9
        model.flag = True
        with pytest.raises(Mixing):
            engine.record(model(x).sum(1)).scalars()


FLAG = False


def by_global(model: nn.Module) -> bool:
    return FLAG


FUNCTIONS, PARTIALLY, HOLDS = {"read": [(by_global,)]}, partial(by_global), Holding(by_global)


class ByTableGlobal(Asking):
    def on(self) -> bool:
        return FUNCTIONS["read"][0][0](self)


class ByPartialGlobal(Asking):
    def on(self) -> bool:
        return PARTIALLY(self)


class ByHoldingGlobal(Asking):
    def on(self) -> bool:
        return HOLDS.ask(self)


class ByImportGlobal(Asking):
    def on(self) -> bool:
        from tests.gradients import reads_flags

        return reads_flags.FLAG


GLOBAL = {
    "a helper": lambda: ByHeld(Holding(by_global)),
    **{each.__name__: each for each in (ByTableGlobal, ByPartialGlobal, ByHoldingGlobal, ByImportGlobal)},
}


@pytest.mark.parametrize("how", GLOBAL)
def test_a_global_variable_that_others_read_for_a_model_is_a_switch(how, monkeypatch):
    model, x = GLOBAL[how](), torch.randn(5, 6)
    with Engine(model) as engine:
        engine.record(model(x).sum(1)).scalars()
        engine._calls.removal.left = engine._calls.study.left = 10**9
        monkeypatch.setitem(globals(), "FLAG", True)
        monkeypatch.setattr("tests.gradients.reads_flags.FLAG", True)
        with pytest.raises(Mixing):
            engine.record(model(x).sum(1)).scalars()
