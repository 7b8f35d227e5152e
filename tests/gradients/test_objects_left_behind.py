"""What a forward pass leaves behind for a loss to read: in objects, closures, containers, classes and globals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache, partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.gradients.aside_cases import ROWS, Called, change, large_last
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import cross_entropy

from sordina.errors import Unsupported
from sordina.gradients import Engine
from sordina.gradients._asides import numbers_kept
from sordina.gradients._kept_state import KeptState
from sordina.gradients._reach import Stillness

STORE: dict[str, Any] = {}


TWO = (torch.tensor(50.0), torch.tensor(1e4))


class Size(Enum):
    SMALL, LARGE = 50, 10_000


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: Any) -> None:
        self.scale = scale


BOXES = (Slotted(50), Slotted(10_000))


def constant(scale: Any) -> Callable[[], Any]:
    return lambda: scale


def scaled(scale: Any, by: int) -> Any:
    return scale * by


def noted(scale: Any) -> Any:
    """A function that remembers its results."""
    remembering = lru_cache(partial(scaled, scale))
    remembering(1)
    return remembering


def storing(scale: Any) -> None:
    STORE["scale"] = scale


Leave = Callable[[Any, Tensor], object]
Read = Callable[[Any], Any]
LEFT: dict[str, tuple[Leave, Read]] = {
    "namespace": (lambda m, s: setattr(m, "info", SimpleNamespace(scale=s)), lambda m: m.info.scale),
    "slot": (lambda m, s: setattr(m, "info", Slotted(s)), lambda m: m.info.scale),
    "list of objects": (lambda m, s: setattr(m, "info", [(Slotted(s),)]), lambda m: m.info[0][0].scale),
    "dictionary of objects": (lambda m, s: setattr(m, "info", {1: [Slotted(s)]}), lambda m: m.info[1][0].scale),
    "closure": (lambda m, s: setattr(m, "info", constant(s)), lambda m: m.info()),
    "partial": (lambda m, s: setattr(m, "info", partial(torch.clone, s)), lambda m: m.info()),
    "method": (lambda m, s: setattr(m, "info", s.clone), lambda m: m.info()),
    "cached": (lambda m, s: setattr(m, "info", noted(s)), lambda m: m.info(1)),
    "deque": (lambda m, s: setattr(m, "info", deque([s])), lambda m: m.info[0]),
    "set": (lambda m, s: setattr(m, "info", {s}), lambda m: next(iter(m.info))),
    "distribution": (lambda m, s: setattr(m, "info", Normal(s, 1.0, validate_args=False)), lambda m: m.info.mean),
    "storage": (
        lambda m, s: setattr(m, "info", s.clone().untyped_storage()),
        lambda m: m.info.cpu(),
    ),
    "object that was there": (lambda m, s: setattr(m.box, "scale", s), lambda m: m.box.scale),
    "in a list that was there": (lambda m, s: m.boxes.__setitem__(0, Slotted(s)), lambda m: m.boxes[0].scale),
    "attribute of a function": (lambda m, s: setattr(m.helper, "scale", s), lambda m: m.helper.scale),
    "attribute of a parameter": (
        lambda m, s: setattr(m.net[0].weight, "scale", s),
        lambda m: m.net[0].weight.scale,
    ),
    "object on a parameter": (
        lambda m, s: setattr(m.net[0].bias, "box", Slotted(s)),
        lambda m: m.net[0].bias.box.scale,
    ),
    "class": (lambda m, s: setattr(type(m.model), "shared", s), lambda m: type(m).shared),
    "base class": (lambda m, s: setattr(Leaving, "shared", s), lambda m: Leaving.shared),
    "global": (lambda m, s: storing(s), lambda m: STORE["scale"]),
    "number in an object": (lambda m, s: setattr(m, "info", Slotted(s.item())), lambda m: m.info.scale),
    "number in a dictionary": (lambda m, s: m.boxes.__setitem__(0, {"a": s.item()}), lambda m: m.boxes[0]["a"]),
    "key of a dictionary": (lambda m, s: setattr(m, "info", {s.item(): 0}), lambda m: next(iter(m.info))),
    "array": (lambda m, s: setattr(m, "info", s.numpy()), lambda m: float(m.info)),
    "array in an object": (lambda m, s: setattr(m.box, "scale", s.numpy()), lambda m: float(m.box.scale)),
    "truth in an object": (lambda m, s: setattr(m.box, "scale", bool(s > 50)), lambda m: 100 if m.box.scale else 50),
    "parameter in an object": (
        lambda m, s: setattr(m.box, "scale", nn.Parameter(s, requires_grad=False)),
        lambda m: m.box.scale,
    ),
    "gradient": (
        lambda m, s: setattr(m.net[0].bias, "grad", s.to(m.net[0].bias) * torch.ones_like(m.net[0].bias)),
        lambda m: m.net[0].bias.grad.sum() / 16,
    ),
    "constant": (lambda m, s: setattr(m.box, "kind", Size.LARGE if s > 50 else Size.SMALL), lambda m: m.box.kind.value),
    "one of two tensors": (lambda m, s: setattr(m, "info", TWO[bool(s > 50)]), lambda m: m.info),
    "copy of one of two": (lambda m, s: setattr(m, "info", TWO[bool(s > 50)].clone()), lambda m: m.info),
    "one of two objects": (lambda m, s: setattr(m.box, "info", BOXES[bool(s > 50)]), lambda m: m.box.info.scale),
    "how many there are": (lambda m, s: setattr(m, "many", m.rows), lambda m: 50 + m.many),
    "how many, in an object": (lambda m, s: setattr(m.box, "many", m.rows), lambda m: 50 + m.box.many),
}


class Leaving(Called):
    """Leaves the largest value of a batch somewhere."""

    shared: Any = None

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.box, self.boxes, self.helper = name, SimpleNamespace(), [None], partial(scaled, by=1)

    def forward(self, x: Tensor) -> Tensor:
        LEFT[self.name][0](Rows(self, len(x)), x.detach().abs().max().clamp(min=50))
        return self.net(x)


class Rows:
    """A model, and how many samples it has in front of it."""

    def __init__(self, model: nn.Module, rows: int) -> None:
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "rows", rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.model, name, value)


def reading(model: Any, x: Tensor, y: Tensor) -> Tensor:
    result = model(x)
    return cross_entropy(result / LEFT[model.name][1](model), y, reduction="none")


def not_reading(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Classes and globals as they were."""
    before = KeptState(Leaving("class"))
    yield
    before.restore()
    Leaving.shared = None
    STORE.clear()


@pytest.mark.parametrize("name", LEFT)
def test_a_loss_cannot_use_what_a_forward_pass_leaves_behind(name: str) -> None:
    """An attribute that was a tensor or a number was withheld, one that was an object was not (2.5 C)."""
    with pytest.raises(Unsupported, match="samples mix"):
        change(Leaving(name), *large_last(), reading)


@pytest.mark.parametrize("name", LEFT)
def test_it_may_be_there_if_nobody_uses_it(name: str) -> None:
    assert change(Leaving(name), *large_last(), not_reading) < 1.00001


def test_what_hooks_gather_is_withheld() -> None:
    seen: dict[str, Tensor] = {}
    model = Called()
    model.net[0].register_forward_hook(lambda module, given, result: seen.update(largest=result.detach().max()))

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x) / seen["largest"], y, reduction="none")

    assert change(model, *large_last(), not_reading) < 1.00001
    with pytest.raises(Unsupported, match="samples mix"):
        change(model, *large_last(), losses)


class Calm(Called):
    """Leaves nothing of a sample behind, in all kinds of places."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.tables = SimpleNamespace(calls=0, scale=torch.tensor(2.0)), {"a": [torch.tensor(3.0)]}

    def forward(self, x: Tensor) -> Tensor:
        self.box.calls += 1
        self.box.width = x.shape[1]
        self.last = SimpleNamespace(inputs=x.detach(), step=self.box.calls, names=["a", "b"])
        self.tables["b"] = torch.arange(x.shape[1], device=x.device)
        return self.net(x) * self.tables["a"][0] / self.box.scale


def test_what_is_nobodys_stays_in_place_beside_what_is_withheld() -> None:
    def losses(model: Any, x: Tensor, y: Tensor) -> Tensor:
        own = cross_entropy(model(x) / model.box.scale / model.box.width, y, reduction="none")
        return own * model.tables["b"][1] * model.last.step / model.box.calls

    model = Calm()
    assert change(model, *large_last(), losses) < 1.00001
    assert model.last.inputs.shape[1] == 6
    assert (model.last.step, model.last.names) == (3, ["a", "b"])


def test_a_model_with_something_withheld_is_trained_on() -> None:
    model, (x, _) = Leaving("namespace"), large_last()
    y = torch.arange(ROWS) % 2
    for _ in range(2):
        with Engine(model) as engine:
            engine.record(not_reading(model, x, y)).scalars()
            engine._calls.study.left = 0
            engine.record(not_reading(model, x, y)).scalars()


class Listed(Called):
    """Keeps its arguments."""

    def forward(self, batch: dict[str, Any]) -> Tensor:
        self.batch, self.items = batch, batch["more"]
        return self.net(batch["x"])


def test_what_the_caller_owns_is_left_alone() -> None:
    model, (x, _) = Listed(), large_last()
    batch = {"x": x, "more": [x.sum(1)]}
    with Engine(model) as engine:
        losses = model(batch).square().sum(1) * batch["more"][0].detach()
        assert engine.record(losses).scalars().norms.shape == (ROWS,)
        with pytest.raises(Unsupported, match="samples mix"):
            model.items[0].sum().item()


FLAG = 1000


class Quiet(Called):
    note: Any = 0

    def __init__(self) -> None:
        super().__init__()
        self.items, self.tensor = [0, {"a": 1}], torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * FLAG if self.items[0] else self.net(x)


CHANGES: dict[str, Callable[[Any], object]] = {
    "attribute": lambda m: setattr(m.net[0], "note", 1),
    "list": lambda m: m.items.__setitem__(0, 1),
    "dictionary": lambda m: m.items[1].update(b=1),
    "tensor": lambda m: m.tensor.add_(1),
    "on a parameter": lambda m: setattr(m.net[0].weight, "note", 1),
    "gradient": lambda m: setattr(m.net[0].weight, "grad", torch.ones(16, 6)),
    "class": lambda m: setattr(Quiet, "other", 1),
    "global": lambda m: globals().update(FLAG=FLAG + 1),
    "module": lambda m: m.add_module("more", nn.Identity()),
    "hook": lambda m: m.net[0].register_forward_hook(storing),
}


@pytest.mark.parametrize("change_it", CHANGES.values(), ids=CHANGES)
def test_every_change_ends_the_stillness(change_it: Callable[[Any], object]) -> None:
    model = Quiet()
    with Engine(model):
        still = Stillness(model)
        model(large_last()[0][:0])
        assert still.holds()
        change_it(model)
        assert not still.holds()


def test_what_cannot_be_told_quickly_is_not_still() -> None:
    model = Quiet()
    model.items.append(Slotted(1))
    assert not Stillness(model).holds()


class Counting(Called):
    """Leaves how many samples there were, as a tensor that no sample is in."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.box = SimpleNamespace(size=torch.tensor(1.0))
        self.size = torch.tensor(1.0)

    def forward(self, x: Tensor) -> Tensor:
        size = torch.tensor(float(len(x)))
        if self.kind == "attribute":
            self.size = size
        elif self.kind == "object":
            self.box.size = size
        elif self.kind == "written":
            self.size.fill_(len(x))
        return super().forward(x)

    def told(self) -> Tensor:
        return self.box.size if self.kind == "object" else self.size


@pytest.mark.parametrize("kind", ["attribute", "object", "written"])
def test_a_tensor_that_tells_how_many_samples_there_are_is_withheld(kind):
    """Moved the sum by 11 bounds: the losses of all went by one sample more."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = cross_entropy(model(x), y, reduction="none")
        return found * (1 if model.told() % 2 == 0 else -1)

    with pytest.raises(Unsupported):
        change(Counting(kind), *large_last(), losses)


def test_a_tensor_of_another_shape_for_another_batch_stops_nothing():
    """Zeros to begin with, made anew for batches of another size."""

    class Recurrent(Called):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "start") or len(self.start) != len(x):
                self.start = torch.zeros(len(x), 1)
            return super().forward(x + self.start)

    assert change(Recurrent(), *large_last()) <= 1 + 1e-5


class Timed(Called):
    """Leaves a time, and beside it something of the batch."""

    def __init__(self, leave: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.leave, self.head = leave, [0.0]

    def forward(self, x: Tensor) -> Tensor:
        result = self.net(x)
        self.info = self.leave(x.detach())
        self.head[0] += perf_counter()
        return result


TIMED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "dictionary": (lambda x: {"time": perf_counter(), "scale": x.abs().max().item()}, lambda m: m.info["scale"]),
    "tuple": (lambda x: (perf_counter(), len(x)), lambda m: m.info[1]),
    "together": (lambda x: perf_counter() * 1e-12 + len(x), lambda m: m.info),
    "tensors": (lambda x: [torch.tensor(perf_counter()), torch.tensor(len(x))], lambda m: m.info[1]),
    "two tensors": (lambda x: [torch.tensor(len(x)), torch.tensor(0.0)], lambda m: m.info[0]),
    "one of two": (lambda x: [TWO[bool(x.abs().max() > 50)], torch.zeros(1)], lambda m: m.info[0]),
    "one of two functions": (
        lambda x: [(torch.abs, torch.neg)[bool(x.abs().max() > 50)], object()],
        lambda m: m.info[0](torch.ones(1)),
    ),
}


@pytest.mark.parametrize("name", TIMED)
def test_what_lies_beside_a_time_is_withheld(name: str) -> None:
    """Items of a container have one name: with a time among them all were taken for times (2.4 C)."""
    leave, read = TIMED[name]

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x) / read(model), y, reduction="none")

    with pytest.raises(Unsupported):
        change(Timed(leave), *large_last(), losses)


@pytest.mark.parametrize("name", TIMED)
def test_a_time_that_nobody_reads_stops_nothing(name: str) -> None:
    model = Timed(TIMED[name][0])
    assert change(model, *large_last(), not_reading) < 1.00001
    assert f"{model.head[0]:.2f}" == "withheld"


class Large(Called):
    """Leads to more things than anybody looks at one by one, before it leaves something."""

    def __init__(self, tables: Any) -> None:
        super().__init__()
        self.tables, self.stats = tables, dict[str, Any]()

    def forward(self, x: Tensor) -> Tensor:
        self.stats["scale"] = x.detach().abs().max()
        return self.net(x)


def test_what_is_left_behind_many_things_is_withheld() -> None:
    """Nobody looked at more than 20 000 things (2.4 C)."""

    def losses(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x) / model.stats["scale"], y, reduction="none")

    paths = [[n // 2, n // 4] for n in range(30_000)]
    assert change(Large(paths), *large_last(), not_reading) < 1.00001
    with pytest.raises(Unsupported, match="samples mix"):
        change(Large(paths), *large_last(), losses)


def test_too_many_objects_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordina.gradients._reach.MOST", 100)
    assert change(Large(list(range(1000))), *large_last(), not_reading) < 1.00001
    with pytest.raises(Unsupported, match="leads to more than 100 objects"):
        change(Large([Slotted(n) for n in range(1000)]), *large_last(), not_reading)


def test_a_change_in_plain_data_is_seen() -> None:
    model = Large([[n] for n in range(100)])
    still, before = Stillness(model), numbers_kept(model)
    assert still.holds()
    model.tables[50][0] = 0.5
    assert not still.holds()
    assert numbers_kept(model).differing(before) == {"tables"}


class Told(Large):
    """Leaves the largest value in one of many lists."""

    def forward(self, x: Tensor) -> Tensor:
        self.tables[50][0] = x.detach().abs().max().item()
        return self.net(x)


def test_what_is_left_in_plain_data_is_withheld() -> None:
    def losses(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x) / model.tables[50][0], y, reduction="none")

    with pytest.raises(Unsupported, match="samples mix"):
        change(Told([[float(n)] for n in range(100)]), *large_last(), losses)
